"""What a model keeps from one forward pass to the next, and how passes that are compared begin alike.

A running estimate that is updated in evaluation mode, too (test-time adaptation), a counter of calls, or a table that
is computed when it is first needed: a model that has run twice is not the model that has run once, so two models would
differ by how often each has run. What a pass writes is therefore taken back: attributes are bound again to what they
were bound to, and buffers, and tensors that are attributes, get their values again. Parameters are not copied, since
they are large, and neither is what lists and other objects hold.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def same_start(model: nn.Module) -> Iterator[None]:
    """Context after which a model's attributes and buffers are what they were."""
    bound = [(space, dict(space)) for module in model.modules() for space in _spaces(module)]
    own = (value for _, before in bound for value in before.values() if isinstance(value, Tensor))
    held = {id(tensor): tensor for tensor in (*model.buffers(), *own) if _has_values(tensor)}
    values = [(tensor, tensor.detach().clone()) for tensor in held.values()]
    try:
        yield
    finally:
        for space, before in bound:
            if space.keys() != before.keys() or any(space[key] is not value for key, value in before.items()):
                space.clear()
                space.update(before)
        with torch.no_grad():
            for tensor, value in values:
                if not torch.equal(tensor, value):  # what is untouched may be needed by a backward pass yet to come
                    tensor.copy_(value)


def _spaces(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Attributes and buffers of a module, by name; those of a module of TorchScript cannot be bound anew."""
    yield vars(module)
    buffers = vars(module)["_buffers"]
    if isinstance(buffers, dict):
        yield buffers


def _has_values(tensor: Tensor) -> bool:
    return not isinstance(tensor, nn.Parameter) and not tensor.is_meta and tensor.layout == torch.strided
