"""Large matrix products in float32 on a CPU by oneDNN, as convolutions are; PyTorch itself would ask a BLAS.

Beside MKL, on an AMD processor, that is 1.1 to 1.2 times faster for the projection of a layer and 1.3 to 1.6 times for
its gradients, and another tenth to a fifth for a matrix that is used often and was put into oneDNN's order before.
PyTorch's compiler relies on the same two operators when it freezes a model. Where they are not to be had, a plain
product is taken.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from tcnn.layers.terms.eager import is_eager, is_transformed

WORTH_IT = 2**27
"""Multiply-adds from which on oneDNN is faster; below, it takes longer to be told of a product."""


class Packed(NamedTuple):
    """A matrix (out, in) in oneDNN's order; float32 on a CPU, for inference. `pack` makes it."""

    blocks: Tensor
    """Opaque."""
    shape: torch.Size

    def plain(self) -> Tensor:
        """The matrix as it was."""
        return self.blocks.to_dense()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Packed":
        return _packed(self.plain())

    def __reduce__(self) -> tuple[Callable[[Tensor], "Packed"], tuple[Tensor]]:
        return _packed, (self.plain(),)

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x Wᵀ + b: (…, in) to (…, out)."""
        differentiated = torch.is_grad_enabled() and x.requires_grad
        if differentiated or not is_eager(x, bias) or not packable(x) or torch.is_autocast_enabled("cpu"):
            return F.linear(x, self.plain(), bias)  # whatever is watching knows nothing of oneDNN's operator
        y: Tensor = _operators()._linear_pointwise(x, self.blocks, bias, "none", [], "")
        return y


Matrix = Tensor | Packed


def linear(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, also by a packed matrix."""
    if isinstance(weight, Packed):
        return weight.linear(x, bias)
    if not _worth_it(x, weight):
        return F.linear(x, weight, bias)
    y: Tensor = _Linear.apply(x.flatten(0, -2), weight, bias)
    return y.unflatten(0, x.shape[:-1])


def pack(weight: Matrix) -> Matrix:
    """The matrix in oneDNN's order if that is possible here, else as it is."""
    if isinstance(weight, Packed) or not packable(weight):
        return weight
    return _packed(weight)


def _packed(weight: Tensor) -> Packed:
    return Packed(_operators()._reorder_linear_weight(weight.detach().contiguous()), weight.shape)


def packable(weight: Tensor) -> bool:
    """Whether oneDNN multiplies by this matrix here."""
    here = (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and type(weight) in (Tensor, torch.nn.Parameter)
    )
    known = bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)
    return (
        here and known and all(hasattr(_operators(), name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    )


class _Linear(torch.autograd.Function):
    """x Wᵀ + b of (N, in), (out, in) and (out,); its gradients are such products, too, and so are theirs.

    Forward-mode differentiation never comes here: `_worth_it` leaves it to PyTorch.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        # oneDNN reads a transposed matrix as it lies; for one whose rows lie apart it takes a thousand times as long.
        weight = weight if weight.is_contiguous() or weight.t().is_contiguous() else weight.contiguous()
        y: Tensor = _operators()._linear_pointwise(x, weight, bias, "none", [], "")
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (x, weight), wanted = gradients, ctx.saved_tensors, ctx.needs_input_grad
        return (
            linear(gradient, weight.t()) if wanted[0] else None,
            linear(gradient.t(), x.t()) if wanted[1] else None,
            gradient.sum(0) if wanted[2] else None,
        )


def _worth_it(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is to multiply these: not where PyTorch looks at what is computed, and takes it for its own."""
    if is_transformed() or torch.is_autocast_enabled("cpu") or x.numel() * weight.shape[0] < WORTH_IT:
        return False
    return packable(x) and packable(weight)


def _operators() -> Any:
    return torch.ops.mkldnn


if hasattr(torch.ops.mkldnn, "_linear_pointwise"):

    @register_flop_formula(torch.ops.mkldnn._linear_pointwise)
    def _flops(x: Any, weight: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        """For PyTorch's own counter: two a multiply-add."""
        return int(2 * prod(x) * out_shape[-1])
