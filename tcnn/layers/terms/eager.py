"""Detect eager execution: whether tensors hold values, or a compiler, tracer or function transform is active.

Under a compiler, a tracer, a transform of `torch.func`, forward-mode differentiation or fake tensors, a layer must
consist of PyTorch operators only: it may neither read a value nor use an operator of its own.
"""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def is_eager(*tensors: Tensor | None) -> bool:
    """Whether all of these (None counts as one) are ordinary tensors or parameters and execution is eager."""
    return not is_transformed() and all(type(t) in (Tensor, nn.Parameter) for t in tensors if t is not None)


def is_transformed() -> bool:
    """Whether a compiler, a tracer or a function transform is active."""
    return bool(
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )
