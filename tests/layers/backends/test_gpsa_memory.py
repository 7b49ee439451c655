"""What the layer holds in memory: never more than the attention itself, and on large maps only some rows of it."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from operations import Operations
from sampled import crossed
from torch import Tensor

from tcnn.layers import GPSA2d
from tcnn.layers.backends import chunked_passes, chunks
from tcnn.layers.backends.chunks import ChunkPlan
from tcnn.layers.backends.selection import Backend, use_backend

RelativeError = Callable[[Tensor, Tensor], float]

REORDERED = 1e-13
"""Relative L2 in float64 where only the order of operations may differ. Measured: at most 7e-16."""

B, K, CHANNELS = 2, 9, 4
PADDED, OUTPUT = (14, 16), (6, 7)  # of a 12×14 map with padding 1 and stride 2
M, N, REAL = math.prod(OUTPUT), math.prod(PADDED), 12 * 14


@pytest.fixture
def layer() -> GPSA2d:
    torch.manual_seed(0)
    return GPSA2d(CHANNELS, 6, 3, stride=2, padding=1, temperature=1.0, dtype=torch.float64)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(B, CHANNELS, 12, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("way", "keys"), [("reference", N), ("auto", REAL + 8)])
@torch.no_grad()
def test_nothing_larger_than_the_attention_is_built(
    layer: GPSA2d, x: Tensor, operations: Operations, way: Backend, keys: int
) -> None:
    """ConViT's own layer builds an N×N×3 table of offsets and keeps it; here positions cost two small factors.

    The fast way has no row for any padded pixel: a few sinks stand for all, as many as make a multiple of 8.
    """
    with use_backend(way), operations:
        layer(x)
    name, largest, _ = max(operations.outputs, key=lambda output: output[1].numel())
    assert largest.numel() <= B * K * M * N, f"{name} built {tuple(largest)}"
    tables = [shape for _, shape, _ in operations.outputs if shape.numel() >= M * N and shape[-1] in (2, 3)]
    assert not tables, f"a table of offsets was built: {tables}"
    softmaxes = {tuple(shape) for name, shape, _ in operations.outputs if name == "_softmax"}
    content = (B, K, M, keys) if way == "reference" else (B * K, M, keys)
    assert softmaxes == {content, (K, OUTPUT[0], PADDED[0]), (K, OUTPUT[1], PADDED[1])}


@pytest.mark.parametrize("kept", [0, 20_000, 10**9], ids=["nothing kept", "some kept", "all kept"])
@pytest.mark.parametrize("rows", [2, 4])
def test_large_maps_run_in_chunks_of_rows(
    layer: GPSA2d,
    x: Tensor,
    rows: int,
    kept: int,
    operations: Operations,
    relative_error: RelativeError,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Queries do not depend on each other, so the same function comes out, and the same gradients."""

    def run() -> tuple[Tensor, dict[str, Tensor]]:
        layer.zero_grad()
        with operations:
            y = layer(x)
        y.square().sum().backward()
        return y, {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}

    whole, gradients = run()
    operations.outputs.clear()
    limit = K * rows * OUTPUT[1] * (REAL + 8)
    monkeypatch.setattr(chunks, "plan_for", lambda heads: ChunkPlan(images=1, query_rows=rows, saved=kept))
    cut, cut_gradients = run()

    maps = [shape for _, shape, _ in operations.outputs if shape and shape[-1] in (REAL, REAL + 8)]
    assert max(shape.numel() for shape in maps) <= limit
    contents = [shape for name, shape, _ in operations.outputs if name == "_softmax" and shape[-1] == REAL + 8]
    assert len(contents) == B * math.ceil(OUTPUT[0] / rows)
    assert relative_error(cut, whole) < REORDERED
    for name, expected in gradients.items():
        assert relative_error(cut_gradients[name], expected) < REORDERED, name


@pytest.mark.parametrize(("images", "expected"), [(3, [3]), (4, [2, 2]), (7, [2, 2, 3]), (9, [3, 3, 3])])
def test_chunks_of_a_batch_have_nearly_the_same_size(
    layer: GPSA2d, images: int, expected: list[int], operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As few chunks as fit, whose sizes differ by one image at most: of four images two and two, not three and one."""
    monkeypatch.setattr(chunks, "CPU_CHUNK", 3 * K * M * (REAL + 8))
    with operations:
        layer(torch.randn(images, CHANNELS, 12, 14, dtype=torch.float64))
    contents = [shape[0] for name, shape, _ in operations.outputs if name == "_softmax" and shape[-1] == REAL + 8]
    assert contents == [K * size for size in expected]


@pytest.mark.parametrize(
    ("options", "parts"),
    crossed(
        [{}, {"stride": 2, "groups": 2}, {"content": "global,unpadded"}],
        [(1, 2, 0), (2, 99, 0), (1, 3, 2**30), (3, 99, 700)], 3,
    ),
    ids=str,
)  # fmt: skip
def test_content_heads_in_parts(
    options: dict[str, object], parts: tuple[int, int, int], relative_error: RelativeError,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Heads without positions have parts of their own: the function and the gradients of whole maps, twice as well."""
    torch.manual_seed(1)
    given: dict[str, object] = {"padding": 1, "content_heads": 3, "dtype": torch.float64, **options}
    layer = GPSA2d(4, 6, 3, **given)  # type: ignore[arg-type]
    with torch.no_grad():
        layer.proj.normal_()
        layer.query.normal_()
    layer.set_temperature(1 / 46)
    x = torch.randn(5, 4, 7, 6, dtype=torch.float64, requires_grad=True)
    calls = []
    monkeypatch.setattr(
        chunked_passes, "content_forward", lambda *a, f=chunked_passes.content_forward: calls.append(1) or f(*a)
    )

    def run() -> list[Tensor]:
        y = layer(x)
        return [y, *torch.autograd.grad(y.square().sum(), [x, layer.query, layer.key, layer.value, layer.proj])]

    with use_backend("dense"):
        expected = run()
    assert not calls
    monkeypatch.setattr(chunks, "plan_for", lambda heads: ChunkPlan(*parts))
    for found, wanted in zip(run(), expected, strict=True):
        assert relative_error(found, wanted) < 1e-13
    assert calls
    gradient = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)[0]
    with use_backend("dense"):
        other = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)[0]
    twice = [torch.autograd.grad(g.square().sum(), layer.query)[0] for g in (gradient, other)]
    assert relative_error(*twice) < 1e-12


@torch.no_grad()
def test_a_row_is_the_smallest_chunk(
    layer: GPSA2d, x: Tensor, relative_error: RelativeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = layer(x)
    monkeypatch.setattr(chunks, "CPU_CHUNK", 1)
    assert relative_error(layer(x), expected) < REORDERED
    channels_last = layer(x.to(memory_format=torch.channels_last))
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(channels_last, expected) < REORDERED


class Kept:
    """What autograd keeps for the way back, in elements."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        self.sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().size() // tensor.element_size()
        return tensor


@pytest.mark.parametrize(("way", "maps"), [("dense", True), ("fused", False)])
def test_parts_keep_no_maps_for_the_gradients(layer: GPSA2d, x: Tensor, way: Backend, maps: bool) -> None:
    kept = Kept()
    with use_backend(way), torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        layer(x)
    assert (max(kept.sizes.values()) >= B * K * M * REAL) is maps


LOW_PRECISION = {"query": 0.02, "key": 0.02, "value": 0.01, "proj": 0.01, "bias": 0.01, "x": 0.01}
"""Relative L2 of bfloat16 against float64. Measured: query and key 0.007, others at most 0.005."""


def test_content_heads_keep_their_maps_in_the_dtype_of_autocast(
    operations: Operations, relative_error: RelativeError
) -> None:
    """To softmax them in float32 took half of a training step on a CPU: three copies of every map, there and back."""
    torch.manual_seed(0)
    exact = GPSA2d(8, 6, 3, padding=1, content_heads=2, head_dim=8, dtype=torch.float64)
    with torch.no_grad():  # logits of about 1: maps that are neither uniform nor one pixel
        for parameter in (exact.query, exact.key):
            parameter.copy_(torch.randn_like(parameter) * 0.35)
        exact.proj[:, exact.tap_proj.shape[1] :].mul_(4)
    layer = copy.deepcopy(exact).float().train()
    x = torch.randn(2, 8, 7, 8)
    weight = torch.randn(2, 6, 7, 8)

    def gradients(of: GPSA2d) -> dict[str, Tensor]:
        given = x.to(of.proj.dtype, copy=True).requires_grad_()
        (of(given) * weight).sum().backward()
        trained = {"x": given.grad, **{name: of.get_parameter(name).grad for name in LOW_PRECISION if name != "x"}}
        return {name: gradient.double() for name, gradient in trained.items() if gradient is not None}

    with use_backend("reference"):
        expected = gradients(exact)
    with operations, torch.autocast("cpu", torch.bfloat16):
        found = gradients(layer)

    maps = {(name, dtype) for name, shape, dtype in operations.outputs if shape.numel() >= 2 * 2 * 56 * 56}
    assert ("_softmax", torch.bfloat16) in maps
    assert ("_softmax_backward_data", torch.bfloat16) in maps
    assert {dtype for _, dtype in maps} == {torch.bfloat16}, maps
    assert found.keys() == LOW_PRECISION.keys()
    errors = {name: relative_error(found[name], expected[name]) for name in found}
    assert all(errors[name] < LOW_PRECISION[name] for name in errors), errors
