"""Softmax and gating by Triton's kernels: against their formula in float64, and in a layer against plain operations.

The kernels run in Triton's interpreter, in a process of its own; what a GPU makes of them is in tests/gpu.
"""

import copy
import math
from unittest.mock import patch

import pytest
import torch
from forked import Interpreter
from torch import Tensor, nn

from tcnn.layers import GPSA2d
from tcnn.layers.backends import chunked_passes
from tcnn.layers.backends.chunks import ChunkPlan, plan_for
from tcnn.layers.backends.maps import KernelMaps, PlainMaps, maps_for
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.triton import attention as triton_attention

FLOAT32 = 1e-6
"""Relative L2. Measured: at most 2e-7."""
LAYER = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
"""The same of a whole layer, against float64. Measured: at most 4e-7 and 7e-3."""


def relative(found: Tensor, expected: Tensor) -> float:
    error = (found.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30)
    return float(error) if found.isfinite().all() else math.inf


def kernel_errors(images: int, heads: int, queries: int, pixels: int, last: int, sink: float) -> list[float]:
    """Of maps, of the gradient of their logits, and of Σ_r C D."""
    from tcnn.layers.triton import map_kernels as maps

    generator = torch.Generator().manual_seed(0)
    keys = pixels + last
    logits = torch.randn(images, heads, queries, keys, generator=generator)
    gated = torch.rand(queries, heads, keys, generator=generator)
    share = torch.rand(heads, generator=generator)
    upstream = torch.randn(images, queries, heads, keys, generator=generator)
    found = maps.maps_of(logits, gated, share, pixels, sink, torch.float32)
    grad_logits, sums = maps.gradients_of(logits, share, upstream, pixels, sink)
    exact = logits.double().requires_grad_()
    every = torch.cat((exact[..., :pixels], torch.full((images, heads, queries, last), sink).double()), -1)
    content = torch.softmax(every, -1)
    expected = gated.double() + (share.double()[:, None, None] * content).transpose(1, 2)
    (wanted,) = torch.autograd.grad(expected, exact, upstream.double())
    moved = (content.detach() * upstream.double().transpose(1, 2)).sum(-1)
    return [relative(found, expected.detach()), relative(grad_logits, wanted), relative(sums, moved)]


@pytest.mark.parametrize(
    ("images", "heads", "queries", "pixels", "last", "sink"),
    [
        (2, 3, 12, 12, 4, 1.5), (1, 2, 5, 35, 5, -0.5), (1, 1, 1, 1, 7, 2.0), (1, 2, 3, 120, 8, -math.inf),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((2, 2, 33, 64, 0, 0.0), (1, 1, 2, 4100, 4, 3.0))),
    ],
)  # fmt: skip
def test_equals_the_formula(
    images: int, heads: int, queries: int, pixels: int, last: int, sink: float, interpreter: Interpreter
) -> None:
    errors = interpreter(kernel_errors, images, heads, queries, pixels, last, sink)
    assert max(errors) < FLOAT32, errors


FORMS: dict[str, dict[str, object]] = {
    "padding": {"padding": 1},
    "no padding": {},
    "stride": {"padding": 1, "stride": 2},
    "groups, reflected": {"padding": 1, "groups": 2, "padding_mode": "reflect"},
}


def layer_of(form: str, unpadded: bool) -> GPSA2d:
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 12, 3, **FORMS[form])  # type: ignore[arg-type]
    layer = GPSA2d.from_conv2d(conv, temperature=1.0, content="global,unpadded" if unpadded else "global")
    with torch.no_grad():
        layer.gating_param.normal_(std=0.5)
        layer.query.mul_(20)
        layer.key.mul_(20)
        layer.attention_centers.add_(0.3 * torch.randn(9, 2))
    return layer


def found_by(layer: GPSA2d, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of every parameter."""
    x = x.detach().requires_grad_()
    y = layer(x)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y.dtype)
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], upstream)]


def layer_errors(form: str, unpadded: bool, dtype: torch.dtype, plan: ChunkPlan | None) -> list[float]:
    """Of a layer in chunks whose maps the kernels make."""
    layer = layer_of(form, unpadded)
    x = torch.randn(3, 8, 6, 5, generator=torch.Generator().manual_seed(1))
    with use_backend("reference"):
        exact = copy.deepcopy(layer).to(dtype).double()
        expected = found_by(exact, x.to(dtype).double())
    made = []

    def counted(heads: chunked_passes.Heads) -> KernelMaps:
        maps = maps_for(heads)
        made.append(type(maps))
        return maps  # type: ignore[return-value]

    with (
        patch.object(triton_attention, "supported", lambda *_: False),
        patch.object(chunked_passes, "maps_for", counted),
        patch("tcnn.layers.backends.selection.chunks.plan_for", lambda heads: plan or plan_for(heads)),
    ):
        found = found_by(layer.to(dtype), x.to(dtype))
    assert made == [KernelMaps, KernelMaps], "forward and backward"
    return [relative(a, b) for a, b in zip(found, expected, strict=True)]


QUICK = (("stride", True, torch.bfloat16),)
"""In float32 a layer is quickly tested below, in chunks."""


@pytest.mark.parametrize(
    ("form", "unpadded", "dtype"),
    [
        *(
            pytest.param(form, unpadded, dtype, marks=() if (form, unpadded, dtype) in QUICK else pytest.mark.slow)
            for dtype in (torch.float32, torch.bfloat16)
            for form, unpadded in (*((form, False) for form in FORMS), ("padding", True), ("stride", True))
        ),
    ],
    ids=str,
)  # fmt: skip
def test_a_layer_equals_its_formula(form: str, unpadded: bool, dtype: torch.dtype, interpreter: Interpreter) -> None:
    errors = interpreter(layer_errors, form, unpadded, dtype, None)
    assert max(errors) < LAYER[dtype], errors


@pytest.mark.parametrize(
    "plan",
    [
        *(pytest.param(ChunkPlan(*plan), marks=pytest.mark.slow) for plan in ((2, 6, 0), (1, 4, 0))),
        ChunkPlan(2, 6, 4000),
    ],
    ids=str,
)
def test_in_chunks_of_which_some_are_kept(plan: ChunkPlan, interpreter: Interpreter) -> None:
    errors = interpreter(layer_errors, "padding", False, torch.float32, plan)
    assert max(errors) < LAYER[torch.float32], errors


def test_without_triton_or_for_long_rows_plain_operations_are_taken() -> None:
    layer, seen = layer_of("padding", False), []

    def noted(heads: chunked_passes.Heads) -> PlainMaps:
        maps = maps_for(heads)
        seen.append(type(maps))
        return maps  # type: ignore[return-value]

    with patch.object(chunked_passes, "maps_for", noted):
        layer(torch.randn(1, 8, 6, 5))
    assert seen == [PlainMaps]
