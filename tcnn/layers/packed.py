"""Matrices that lie in memory as the processor multiplies them: a tenth to a fifth faster for one that is used often.

oneDNN's matrix product orders a weight into blocks before every use unless that was done before; PyTorch's compiler
relies on the same two operators when it freezes a model. Where they are not to be had, a plain product is taken.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class Packed:
    """A matrix (out, in) in oneDNN's order; float32 on a CPU, for inference."""

    def __init__(self, weight: Tensor) -> None:
        self.shape = weight.shape
        self._blocks: Tensor = _operators()._reorder_linear_weight(weight.detach().contiguous())

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x Wᵀ + b: (…, in) to (…, out)."""
        y: Tensor = _operators()._linear_pointwise(x, self._blocks, bias, "none", [], "")
        return y


Matrix = Tensor | Packed


def linear(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, also by a packed matrix."""
    return weight.linear(x, bias) if isinstance(weight, Packed) else F.linear(x, weight, bias)


def pack(weight: Matrix) -> Matrix:
    """The matrix in oneDNN's order if that is possible here, else as it is."""
    return Packed(weight) if isinstance(weight, Tensor) and packable(weight) else weight


def packable(weight: Tensor) -> bool:
    """Whether oneDNN multiplies by this matrix here."""
    here = (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and type(weight) in (Tensor, torch.nn.Parameter)
    )
    known = bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)
    return (
        here and known and all(hasattr(_operators(), name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    )


def _operators() -> Any:
    return torch.ops.mkldnn
