"""What a model keeps from one forward pass to the next, and how passes that are compared begin alike.

A running estimate that is updated in evaluation mode, too (test-time adaptation), a counter of calls, or a table that
is computed when it is first needed: a model that has run twice is not the model that has run once, so two models would
differ by how often each has run. What a pass writes is therefore taken back: attributes are bound again to what they
were bound to, and buffers, and tensors that are attributes, get their values again. Parameters are not copied, since
they are large, and neither is what lists and other objects hold.

A model may also draw random numbers (noise that is injected, the sample of a VAE, dropout that stays on): every pass
draws the same ones, from the generators of PyTorch, NumPy and Python with the same seed, and leaves these as they
were.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SEED = 0
"""Of the random numbers that compared passes draw."""


@contextmanager
def same_start(model: nn.Module) -> Iterator[None]:
    """Context for a forward pass that draws the same random numbers as any other, and leaves the model as it was."""
    with _seeded(any(tensor.is_cuda for tensor in (*model.parameters(), *model.buffers()))), _restored(model):
        yield


@contextmanager
def _seeded(gpu: bool) -> Iterator[None]:
    """Context with the generators that all share at one seed; afterwards they are where they were.

    A GPU that no weight is on is not asked for its generator, as that would start CUDA.
    """
    with torch.random.fork_rng(range(torch.cuda.device_count()) if gpu else ()):
        torch.default_generator.manual_seed(SEED)
        if gpu:
            torch.cuda.manual_seed_all(SEED)
        python, arrays = random.getstate(), np.random.get_state()
        random.seed(SEED)
        np.random.seed(SEED)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
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
    buffers = vars(module).get("_buffers")
    if isinstance(buffers, dict):
        yield buffers


def _has_values(tensor: Tensor) -> bool:
    return not isinstance(tensor, nn.Parameter) and not tensor.is_meta and tensor.layout == torch.strided
