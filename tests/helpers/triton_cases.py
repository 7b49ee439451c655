"""Attention in Triton against its formula in float64, maps and padding written out: cases, and how far off each is."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.layers.triton.attention import attend, supported

NAMES = ("out", "query", "key", "value", "rows", "columns", "gate")
FLOAT32 = 2e-6
"""Relative L2 of the output and of each gradient. Measured: at most 4e-7."""
HALF = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""The same in 16 bits, against float64 from the rounded inputs. Measured: 4e-4 and 7e-3."""
BESIDE_PLAIN = {torch.float16: 1.2, torch.bfloat16: 3.0}
"""At most so many times the error of plain operations in the same dtype. Triton's interpreter shortens float32 to
bfloat16 by cutting, where a GPU rounds to the nearest: that errs twice as much, three times for small sums."""


class Case(NamedTuple):
    asking: tuple[int, int]
    seen: tuple[int, int]
    width: int = 8
    channels: int = 16
    sinks: int | None = None
    images: int = 1
    heads: int = 2
    dtype: torch.dtype = torch.float32
    strange: bool = False
    """Inputs and upstream gradient lie in memory as they seldom do."""


def make(case: Case, device: str = "cpu") -> tuple[list[Tensor], Tensor]:
    """The six inputs as leaves, and the upstream gradient."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = case.asking[0] * case.asking[1], case.seen[0] * case.seen[1]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(case.dtype)

    query, key = (normal(case.images, n, case.heads, case.width).transpose(1, 2) for n in (queries, keys))
    value, upstream = (
        normal(case.images, keys, case.channels),
        normal(case.images, queries, case.heads, case.channels),
    )
    if case.strange:
        query = query.mT.contiguous().mT  # channels lie apart
        key = torch.cat((key, key), dim=-1)[..., : case.width]
        value = value.mT.contiguous().mT
        upstream = upstream[:, :1, :, :1].expand_as(upstream)
    factors = [torch.rand(case.heads, a, b, generator=generator) for a, b in zip(case.asking, case.seen, strict=True)]
    if case.strange:
        factors = [torch.cat((factor, factor), dim=-1)[..., : factor.shape[-1]] for factor in factors]
    gate = torch.rand(case.heads, generator=generator)
    inputs = [tensor.to(device).requires_grad_() for tensor in (query, key, value, *factors, gate)]
    return inputs, upstream.to(device)


def written_out(
    query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor, gate: Tensor, sinks: int, scale: float
) -> Tensor:
    """Eq. 4 over the keys and `sinks` more of zeros, whose values are zeros."""
    key, value = (torch.cat((t, t.new_zeros(*t.shape[:-2], sinks, t.shape[-1])), dim=-2) for t in (key, value))
    content = torch.softmax((torch.einsum("bkmd,bknd->bkmn", query, key) * scale).to(rows.dtype), dim=-1)
    positional = torch.einsum("kiy,kjx->kijyx", rows, columns).flatten(3).flatten(1, 2)
    positional = torch.nn.functional.pad(positional, (0, sinks))
    maps = (1 - gate.view(-1, 1, 1)) * content + gate.view(-1, 1, 1) * positional
    return torch.einsum("bkmn,bnc->bmkc", maps.to(value.dtype), value)


def with_gradients(way: Callable[..., Tensor], inputs: list[Tensor], upstream: Tensor, *rest: object) -> list[Tensor]:
    out = way(*inputs, *rest)
    return [out, *torch.autograd.grad(out, inputs, upstream)]


def relative_errors(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True)]


def errors(case: Case, device: str = "cpu") -> tuple[list[float], list[float]]:
    """Of the kernels, and of plain operations in the same dtype."""
    inputs, upstream = make(case, device)
    scale, sinks = case.width**-0.5, case.sinks or 0
    assert supported(inputs[0], inputs[2])
    found = with_gradients(attend, inputs, upstream, case.sinks, scale)
    assert found[0].is_contiguous() and [t.dtype for t in found] == [case.dtype] * 4 + [torch.float32] * 3
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = with_gradients(written_out, exact, upstream.double(), sinks, scale)
    plain = with_gradients(written_out, inputs, upstream, sinks, scale)
    return relative_errors(found, expected), relative_errors(plain, expected)


def twice(case: Case, device: str = "cpu") -> bool:
    """Whether two runs agree in every bit."""
    inputs, upstream = make(case, device)
    runs = [with_gradients(attend, inputs, upstream, case.sinks, 0.3) for _ in range(2)]
    return all(torch.equal(first, second) for first, second in zip(*runs, strict=True))
