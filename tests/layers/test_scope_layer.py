"""A layer with a content scope as a module: how it is written, what it holds in memory, dtypes, compilers, exports."""

import copy
import math
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from operations import Operations
from torch import Tensor, nn
from torch.export import Dim, export
from torch.utils.flop_counter import FlopCounterMode

from tcnn.errors import RequestError
from tcnn.layers import GPSA2d
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.terms import scopes
from tcnn.layers.terms.scopes import Scope

RelativeError = Callable[[Tensor, Tensor], float]
LOCAL = ("window:3", "window:4", "pooled:3", "window:3,unpadded", "pooled:3,unpadded")


def make_layer(content: str, **options: object) -> GPSA2d:
    torch.manual_seed(0)
    return GPSA2d(4, 6, **{"kernel_size": 3, "padding": 1, "temperature": 1.0, "content": content, **options})  # type: ignore[arg-type]


def test_how_a_scope_is_written() -> None:
    for text, scope in {
        "global": Scope(),
        "window:14": Scope("window", 14),
        "pooled:7": Scope("pooled", 7),
        "window:999999": Scope("window", 999999),
        "global,unpadded": Scope(padding=False),
        "pooled:3,unpadded": Scope("pooled", 3, padding=False),
    }.items():
        assert scopes.parse(text) == scope
        assert str(scope) == text
    assert "content" not in repr(make_layer("global"))
    layer = make_layer("window:14")
    assert repr(layer).endswith("head_dim=8, content='window:14')")
    assert layer.content == copy.deepcopy(layer).content == pickle.loads(pickle.dumps(layer)).content == "window:14"


@pytest.mark.parametrize(
    "text", ["", "window", "window:", "window:0", "window:-3", "window:07", "window:2.5", "pooled:1000000", "Global",
             "window:7 ", "local:3", "window:٣", "global:3", "global,padded", "unpadded", 14, None],
)  # fmt: skip
def test_nonsense_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(RequestError, match=r"^content: expected global, window:W or pooled:R with .*, found .*$"):
        GPSA2d(4, 4, 3, content=text)


@pytest.mark.parametrize(
    ("scope", "inner", "covers"),
    [(Scope(), (99, 99), True), (Scope("window", 7), (7, 6), True), (Scope("window", 7), (6, 8), False),
     (Scope("pooled", 3), (1, 1), True), (Scope("pooled", 3), (2, 1), False),
     (Scope("pooled", 3, padding=False), (3, 2), True), (Scope("pooled", 3, padding=False), (3, 4), False)],
)  # fmt: skip
def test_what_a_scope_covers(scope: Scope, inner: tuple[int, int], covers: bool) -> None:
    """A window is of the map's own pixels; a pool is of all, those of the padding too."""
    assert scope.covers((inner[0] + 2, inner[1] + 2), inner) is covers


def test_pools_are_pytorchs() -> None:
    for pools, size in ((1, 5), (3, 7), (4, 6), (5, 5), (7, 30)):
        found = scopes.pooling(pools, size, torch.zeros(1, dtype=torch.float64))
        expected = nn.functional.adaptive_avg_pool1d(torch.eye(size, dtype=torch.float64)[None], pools)[0].T
        torch.testing.assert_close(found, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("content", LOCAL)
def test_at_conversion_it_is_the_convolution(content: str, relative_error: RelativeError) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 6, (3, 5), stride=(2, 1), padding=(1, 2), groups=2).double()
    layer = GPSA2d.from_conv2d(conv, content=content)
    x = torch.randn(2, 8, 11, 9, dtype=torch.float64)
    assert layer.content == content
    for way in ("auto", "fused", "reference"):  # with auto it is the convolution; the attention is the other two
        with torch.no_grad(), use_backend(way):  # type: ignore[arg-type]
            assert relative_error(layer(x), conv(x)) < 1e-14, way


@pytest.mark.parametrize("content", LOCAL)
def test_folding_keeps_the_scope(content: str, relative_error: RelativeError) -> None:
    """Heads that stay attention see what they saw, a content head that lost its positional part too."""
    layer = make_layer(content, dtype=torch.float64)
    with torch.no_grad():
        layer.gating_param[3] = -100.0
    folded = FoldedGPSA2d.from_gpsa2d(layer, ["attention"] * 3 + ["content"] + ["attention"] * 5, [None] * 9)
    x = torch.randn(2, 4, 9, 8, dtype=torch.float64)
    with torch.no_grad():
        assert relative_error(folded(x), layer(x)) < 1e-13
    assert repr(folded).endswith(f"content='{content}')")


@pytest.mark.parametrize("content", LOCAL)
def test_three_axes_and_channels_last(content: str, relative_error: RelativeError) -> None:
    layer, x = make_layer(content), torch.randn(2, 4, 9, 8)
    with torch.no_grad():
        y = layer(x)
        assert torch.equal(layer(x[0]), layer(x[:1])[0])
        other = layer(x.to(memory_format=torch.channels_last))
    assert y.is_contiguous()
    assert other.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(other, y) < 1e-6


@pytest.mark.parametrize("content", LOCAL)
def test_half_precision_and_autocast(content: str, relative_error: RelativeError) -> None:
    """bfloat16 has 8 bits of mantissa: its results are off by a few parts in a thousand. Measured: 5e-3."""
    layer, x = make_layer(content), torch.randn(2, 4, 9, 8)
    with torch.no_grad():
        expected = layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert relative_error(layer(x), expected) < 0.02
        assert relative_error(layer.bfloat16()(x.bfloat16()), expected) < 0.02


@pytest.mark.parametrize("content", LOCAL)
@pytest.mark.parametrize("stride", [1, 2])
def test_every_tensor_is_linear_in_the_pixels(content: str, stride: int, operations: Operations) -> None:
    """Twice the sides, four times the pixels: no tensor, forward or backward, grows more than that.

    With 4 channels a table of positions along one axis, M·W, would be the largest of all, were there one.
    """
    layer = make_layer(content, padding=0, stride=stride)
    held: list[dict[str, int]] = []
    for side in (24, 48):
        operations.outputs.clear()
        layer.zero_grad()
        with operations:
            layer(torch.randn(2, 4, side, side, requires_grad=True)).square().sum().backward()
        held.append({})
        for name, shape, _ in operations.outputs:
            held[-1][name] = max(held[-1].get(name, 0), shape.numel())
    assert "_softmax_backward_data" in held[0], "the backward pass was not seen"
    assert held[1].keys() <= held[0].keys()
    for name, large in held[1].items():
        assert large <= 4.6 * held[0][name], f"{name}: {held[0][name]} → {large}"  # 22² queries → 46²: 4.37


@pytest.mark.parametrize(
    ("content", "keys"), [pytest.param("window:14", 14**2, marks=pytest.mark.slow), ("pooled:7", 7**2)]
)
def test_a_map_of_64_by_64_holds_nothing_of_its_square(content: str, keys: int, operations: Operations) -> None:
    """Forward and backward: channels, or the keys that one query sees. The full attention has 170 million elements."""
    torch.manual_seed(0)
    layer = GPSA2d(64, 64, 3, padding=1, temperature=1.0, content=content)
    with operations:
        layer(torch.randn(1, 64, 64, 64)).sum().backward()
    name, largest, _ = max(operations.outputs, key=lambda output: math.prod(output[1]))
    assert math.prod(largest) <= 9 * 70**2 * max(64, keys), f"{name} built {tuple(largest)}"


def test_arithmetic_from_32_to_64() -> None:
    """Linear is 4×. The two products of the positional part grow 8×, but are few; windows grow from 12 to 14 pixels."""

    def flops(side: int) -> int:
        with torch.device("meta"):
            layer = GPSA2d(256, 256, 3, padding=1, content="window:14")
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                layer(torch.zeros(1, 256, side, side))
        return int(counter.get_total_flops())

    assert flops(64) / flops(32) < 4.8


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("content", ["window:4", "pooled:4"])
def test_compiles_to_one_graph_for_every_size(content: str, relative_error: RelativeError) -> None:
    layer = make_layer(content, stride=2)
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    with torch.no_grad():
        for shape in ((2, 4, 9, 10), (3, 4, 7, 12), (4, 4, 12, 5)):
            x = torch.randn(shape)
            assert relative_error(compiled(x), layer(x)) < 1e-6
    assert len(graphs) <= 2, "one graph for the first size, one for all others"


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("content", ["window:4", "pooled:4"])
def test_compiled_gradients(content: str, relative_error: RelativeError) -> None:
    layer, x = make_layer(content), torch.randn(2, 4, 9, 10)
    gradients = []
    for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        layer.zero_grad()
        run(x).square().sum().backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in layer.named_parameters()})
    for name, expected in gradients[0].items():
        assert relative_error(gradients[1][name], expected) < 1e-5, name


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"padding": 1}, {"padding": "dynamic", "stride": 2}], ids=str)
@pytest.mark.parametrize("content", ["window:4", "pooled:4"])
@torch.no_grad()
def test_exports_with_dynamic_batch_and_size(
    content: str, options: dict[str, object], relative_error: Callable[[Tensor, Tensor], float]
) -> None:
    """`Dim.DYNAMIC` is an error where a size would be frozen into the program."""
    torch.manual_seed(0)
    layer = GPSA2d(4, 6, 3, temperature=1.0, content=content, **options).eval()  # type: ignore[arg-type]
    dynamic = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    program: Callable[[Tensor], Tensor] = export(layer, (torch.randn(2, 4, 9, 10),), dynamic_shapes=(dynamic,)).module()
    for shape in ((2, 4, 9, 10), (3, 4, 7, 12), (5, 4, 16, 6)):
        x = torch.randn(shape)
        assert relative_error(program(x), layer(x)) < 1e-6
