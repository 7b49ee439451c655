"""Matrix products in float32 on a CPU by oneDNN instead of the BLAS that PyTorch would call.

Compared with MKL, on an AMD processor, that is 1.1 to 1.2 times faster for the projection of a layer and 1.3 to 1.6
times for its gradients, and another 10 to 20 % for a matrix that is used often and was packed into oneDNN's layout
before; where that processor has AVX-512, twice as fast, for MKL uses it on Intel's alone. On those MKL is as fast, and
for gradients 1.3 to 2.5 times faster, so that there only packed matrices are oneDNN's. PyTorch's compiler uses the same
two operators when it freezes a model. Where they are not available, a plain product is computed.
"""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from tcnn.layers.terms.execution import is_batch_of_gradients, is_eager, is_transformed

MIN_MULTIPLY_ADDS = 2**27
"""Number of multiply-adds from which oneDNN is faster; below it, the overhead of the call is larger than the gain."""

MIN_BESIDE_AVX2 = 2**22
"""The same for each thread, where the BLAS computes with half of the processor (`blas_lacks_avx512`)."""


class Packed(NamedTuple):
    """A matrix (out, in) beside its copy in oneDNN's blocked layout; float32 on a CPU, for inference. See `pack`."""

    blocks: Tensor
    """The matrix as an opaque oneDNN tensor."""
    weight: Tensor
    """The matrix, (out, in)."""

    @property
    def shape(self) -> torch.Size:
        """(out, in)."""
        return self.weight.shape

    def __deepcopy__(self, memo: dict[int, Any]) -> "Packed":
        return _packed(self.weight.clone())

    def __reduce__(self) -> tuple[Callable[[Tensor], "Packed"], tuple[Tensor]]:
        return _packed, (self.weight,)

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Linear layer x Wᵀ + b: (…, in) to (…, out)."""
        differentiated = torch.is_grad_enabled() and x.requires_grad
        if differentiated or not is_eager(x, bias) or not packable(x) or torch.is_autocast_enabled("cpu"):
            return F.linear(x, self.weight, bias)  # whatever is watching knows nothing of oneDNN's operator
        y: Tensor = _operators()._linear_pointwise(x, self.blocks, bias, "none", [], "")
        return y


Matrix = Tensor | Packed


def linear(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """Linear layer, as `torch.nn.functional.linear`; the weight may be a packed matrix."""
    if isinstance(weight, Packed):
        return weight.linear(x, bias)
    if not _use_onednn(x, weight):
        return F.linear(x, weight, bias)
    y: Tensor = _Linear.apply(x.flatten(0, -2), weight, bias)
    return y.unflatten(0, x.shape[:-1])


def batched(a: Tensor, b: Tensor) -> Tensor:
    """Products of matrices one by one, as `torch.bmm`: (B, m, k) and (B, k, n) to (B, m, n)."""
    if not _use_onednn_batched(a, b):
        return torch.bmm(a, b)
    product: Tensor = _Batched.apply(a, b)
    return product


def batched_into(total: Tensor, a: Tensor, b: Tensor, add: bool) -> None:
    """The same written into, or added to, a tensor (B, m, n)."""
    if _use_onednn_batched(a, b):
        for one, first, second in zip(total, a, b, strict=True):
            (one.add_ if add else one.copy_)(_multiply(first, second.t()))
    elif add:
        total.baddbmm_(a, b)
    else:
        torch.bmm(a, b, out=total)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b by oneDNN of (m, k), (n, k) and (n,)."""
    # oneDNN reads a transposed matrix as it lies; for one whose rows lie apart it takes a thousand times as long.
    weight = weight if weight.is_contiguous() or weight.t().is_contiguous() else weight.contiguous()
    y: Tensor = _operators()._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def pack(weight: Matrix) -> Matrix:
    """Pack a matrix into oneDNN's layout if that is possible here, else return it unchanged."""
    if isinstance(weight, Packed) or not packable(weight):
        return weight
    return _packed(weight)


def _packed(weight: Tensor) -> Packed:
    return Packed(_operators()._reorder_linear_weight(weight.detach().contiguous()), weight)


def packable(weight: Tensor) -> bool:
    """Whether oneDNN can multiply by this matrix: float32, on a CPU, an ordinary tensor, and oneDNN is available."""
    here = (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and type(weight) in (Tensor, torch.nn.Parameter)
    )
    known = bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)
    return (
        here
        and known
        and not is_batch_of_gradients(weight)
        and all(hasattr(_operators(), name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    )


class _Linear(torch.autograd.Function):
    """Linear layer x Wᵀ + b of (N, in), (out, in) and (out,) by oneDNN, differentiable any number of times.

    Forward-mode differentiation never comes here: `_use_onednn` leaves it to PyTorch.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (x, weight), wanted = gradients, ctx.saved_tensors, ctx.needs_input_grad
        return (
            linear(gradient, weight.t()) if wanted[0] else None,
            linear(gradient.t(), x.t()) if wanted[1] else None,
            gradient.sum(0) if wanted[2] else None,
        )


class _Batched(torch.autograd.Function):
    """Products of (B, m, k) and (B, k, n) by oneDNN, one by one, differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        product = a.new_empty(len(a), a.shape[1], b.shape[2])
        batched_into(product, a, b, add=False)
        return product

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (a, b), wanted = gradients, ctx.saved_tensors, ctx.needs_input_grad
        return (
            batched(gradient, b.transpose(1, 2)) if wanted[0] else None,
            batched(a.transpose(1, 2), gradient) if wanted[1] else None,
        )


def _use_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is to compute this product: large enough, and no compiler, tracer or autocast active."""
    if is_transformed() or torch.is_autocast_enabled("cpu") or blas_is_intels_own():
        return False
    if x.numel() * weight.shape[0] < _least():
        return False
    return packable(x) and packable(weight) and not pytorch_takes_onednn()


def _use_onednn_batched(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN is to compute these products, which is worth its while beside a slow BLAS alone."""
    if is_transformed() or torch.is_autocast_enabled("cpu") or not blas_lacks_avx512():
        return False
    large = a.shape[1] * a.shape[2] * b.shape[2] >= _least()
    return large and packable(a) and packable(b) and not pytorch_takes_onednn()


def _least() -> int:
    """Number of multiply-adds from which a product is oneDNN's here."""
    slow = MIN_BESIDE_AVX2 * torch.get_num_threads() if blas_lacks_avx512() else MIN_MULTIPLY_ADDS
    return min(slow, MIN_MULTIPLY_ADDS)


def pytorch_takes_onednn() -> bool:
    """Whether PyTorch computes float32 products by oneDNN: after `torch.set_float32_matmul_precision("medium")`.

    It then writes them where they belong, those of many matrices, too, which no operator that is called from here does.
    """
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)  # from torch 2.9
    found = torch.get_float32_matmul_precision() if getter is None else getter("mkldnn", "matmul")
    supported = getattr(_operators(), "_is_mkldnn_bf16_supported", None)
    return found in ("medium", "bf16") and (supported is None or bool(supported()))


@cache
def blas_lacks_avx512() -> bool:
    """Whether the BLAS is MKL on an AMD processor with AVX-512: it uses that on Intel's alone, oneDNN on both."""
    return _mkl_on("AMD") and bool(_capabilities().get("avx512_f"))


@cache
def blas_is_intels_own() -> bool:
    """Whether the BLAS is MKL on an Intel processor."""
    return _mkl_on("Intel")


def _mkl_on(maker: str) -> bool:
    return torch.backends.mkl.is_available() and str(_capabilities().get("cpu_name", "")).startswith(maker)


def _capabilities() -> dict[str, object]:
    """Of the processor; nothing is known of it before torch 2.9."""
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return found


def _operators() -> Any:
    return torch.ops.mkldnn


if hasattr(torch.ops.mkldnn, "_linear_pointwise"):

    @register_flop_formula(torch.ops.mkldnn._linear_pointwise)
    def _flops(x: Any, weight: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        """FLOPs of the oneDNN operator for `torch.utils.flop_counter`: two per multiply-add."""
        return int(2 * prod(x) * out_shape[-1])
