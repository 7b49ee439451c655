"""Isotropic positional attention on a GPU: both factors by one Triton kernel, the gradients of its parameters by one.

Shapes: P heads with a positional part of K heads, Ho×Wo output map, H×W padded map.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tcnn.layers.terms import positions as formulas
from tcnn.layers.terms.isotropic import SOFTPLUS_BETA, Isotropic
from tcnn.layers.terms.positions import Geometry, Pair
from tcnn.layers.triton.attention import current_device, plain_autograd, runs_on
from tcnn.layers.triton.tiles import power_of_two

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
TILE = 16
"""Queries of a program."""
MAX_SIZE = 1024
"""Longest axis of a padded map: a tile of it is held in registers."""


class Where(NamedTuple):
    """Of which map the factors are."""

    size: Pair
    """H×W."""
    geometry: Geometry
    heads: int
    """K."""


def supported(position: Isotropic, temperature: Tensor, size: Pair) -> bool:
    """Whether `factors` can be called here: on a GPU with Triton, without `torch.func`, tracers or compilers.

    τ must be a constant, as it is in training.
    """
    tensors = (*position, temperature)
    kinds = all(type(tensor) in (Tensor, torch.nn.Parameter) and tensor.dtype in DTYPES for tensor in tensors)
    if not kinds or temperature.requires_grad or max(size) > MAX_SIZE or torch.compiler.is_compiling():
        return False
    return runs_on(position.locality_raw.device) and plain_autograd()


def factors(position: Isotropic, temperature: Tensor, where: Where) -> tuple[Tensor, Tensor]:
    """Row factor (K, Ho, H) and column factor (K, Wo, W), float32; zeros for the heads without a positional part.

    The formula is `terms.positions.positional_attention`.
    """
    found: tuple[Tensor, Tensor] = _Factors.apply(*position, temperature, where)
    return found


class _Factors(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, centres: Tensor, temperature: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        from tcnn.layers.triton.position_kernels import forward

        ctx.where = where
        ctx.save_for_backward(raw, centres, temperature)
        raw, centres = raw.contiguous(), centres.contiguous()
        (height, width), counts = where.size, formulas.output_size(where.size, where.geometry)
        rows = raw.new_empty(where.heads, counts[0], height, dtype=torch.float32)
        columns = raw.new_empty(where.heads, counts[1], width, dtype=torch.float32)
        grid = where.heads, sum(-(-count // TILE) for count in counts)
        if rows.numel() and columns.numel():
            with current_device(raw.device):
                forward[grid](raw, centres, temperature, rows, columns, len(raw), *_sizes(where), **_constants(where))
        return rows, columns

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        raw, centres, temperature = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives: every step must be differentiable by PyTorch
            return *_differentiable(raw, centres, temperature, ctx.where, gradients, ctx.needs_input_grad), None, None
        return *_gradients(raw, centres, temperature, ctx.where, *gradients), None, None


def _gradients(
    raw: Tensor, centres: Tensor, temperature: Tensor, where: Where, grad_rows: Tensor, grad_columns: Tensor
) -> tuple[Tensor, Tensor]:
    from tcnn.layers.triton.position_kernels import backward

    found = torch.empty_like(raw, memory_format=torch.contiguous_format)
    of_centres = torch.empty_like(centres, memory_format=torch.contiguous_format)
    if len(raw):
        with current_device(raw.device):
            backward[len(raw),](
                raw.contiguous(), centres.contiguous(), temperature, grad_rows.contiguous(), grad_columns.contiguous(),
                found, of_centres, *_sizes(where), **_constants(where),
            )  # fmt: skip
    return found, of_centres


def _differentiable(
    raw: Tensor, centres: Tensor, temperature: Tensor, where: Where, gradients: tuple[Tensor, ...],
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    leaves = [tensor for tensor, one in zip((raw, centres), wanted, strict=False) if one]
    term = Isotropic(raw, centres)
    found = term.attention(temperature.float(), where.size, where.geometry)
    cut = [gradient[: len(raw)] for gradient in gradients]
    parts = iter(torch.autograd.grad(found, leaves, cut, create_graph=True))
    return tuple(next(parts) if one else None for one in wanted[:2])


def _sizes(where: Where) -> tuple[int, ...]:
    return (
        *formulas.output_size(where.size, where.geometry),
        *where.size,
        *where.geometry.centre,
        *where.geometry.stride,
    )


def _constants(where: Where) -> dict[str, int]:
    block = max(16, power_of_two(max(where.size)))
    return {"BETA": SOFTPLUS_BETA, "TILE": TILE, "BLOCK": block, "num_warps": 4 if block <= 256 else 8}
