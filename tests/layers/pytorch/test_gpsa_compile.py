"""`torch.compile` and `torch.export` see one graph whatever the size of the map.

The backends that run the captured graph as it is ("eager", and "aot_eager" for the gradients) are enough: what a C++ or
Triton compiler makes of the graph afterwards is not the layer's doing, and would take longer than all other tests.
What `torch.jit.trace` makes consists of operators that converters of its programs know.
"""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import UserError
from torch.export import Dim, export

import tcnn
from tcnn.layers import GPSA2d

RelativeError = Callable[[Tensor, Tensor], float]

SAME_GRAPH = 1e-6
"""Relative L2 in float32; the same operations may be fused or reordered. Measured: 0."""


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def make_layer(**options: object) -> GPSA2d:
    torch.manual_seed(0)
    return GPSA2d(4, 6, **{"kernel_size": 3, "padding": 1, "temperature": 1.0, **options})


@pytest.mark.parametrize(
    "options", [{"kernel_size": 1, "padding": 0}, pytest.param({}, marks=pytest.mark.slow)], ids=["one head", "nine"]
)
@torch.no_grad()
def test_compiles_to_one_graph_for_every_size(options: dict[str, object], relative_error: RelativeError) -> None:
    layer = make_layer(stride=2, **options)
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for shape in ((2, 4, 9, 10), (3, 4, 7, 12), (4, 4, 12, 5)):
        x = torch.randn(shape)
        assert relative_error(compiled(x), layer(x)) < SAME_GRAPH
    assert len(graphs) <= 2, "one graph for the first size, one for all others"


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_layer_keeps_the_memory_format() -> None:
    compiled = torch.compile(make_layer(stride=2), fullgraph=True, backend="eager")
    x = torch.randn(3, 4, 8, 10).to(memory_format=torch.channels_last)
    assert compiled(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
def test_compiled_gradients(relative_error: RelativeError) -> None:
    layer, x = make_layer(), torch.randn(2, 4, 9, 10)
    gradients = []
    for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        layer.zero_grad()
        run(x).square().sum().backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in layer.named_parameters()})
    for name, expected in gradients[0].items():
        assert relative_error(gradients[1][name], expected) < SAME_GRAPH, name


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"padding": "dynamic"}, marks=pytest.mark.slow),
        pytest.param({"padding": "same", "kernel_size": (2, 3), "groups": 2}, marks=pytest.mark.slow),
        pytest.param({"padding_mode": "circular"}, marks=pytest.mark.slow),
        pytest.param({"stride": 2}, marks=pytest.mark.slow),
        pytest.param({"padding": 0}, marks=pytest.mark.slow),
        pytest.param({"padding": "dynamic", "stride": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
@torch.no_grad()
def test_exports_with_dynamic_batch_and_size(options: dict[str, object], relative_error: RelativeError) -> None:
    """`Dim.DYNAMIC` is an error where a size would be frozen into the program."""
    layer = make_layer(**options).eval()
    dynamic = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    program = export(layer, (torch.randn(2, 4, 9, 10),), dynamic_shapes=(dynamic,)).module()
    for shape in ((2, 4, 9, 10), (3, 4, 7, 12), (1, 4, 16, 6)):
        x = torch.randn(shape)
        assert relative_error(program(x), layer(x)) < SAME_GRAPH


NAMED = {0: Dim("batch"), 2: Dim("height", min=4, max=64), 3: Dim("width", min=4, max=64)}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"kernel_size": 2, "padding": 0}, marks=pytest.mark.slow),
        pytest.param({"padding": "dynamic"}, marks=pytest.mark.slow),
        pytest.param({"content": "pooled:3"}, marks=pytest.mark.slow),
        pytest.param({"kernel_size": 2, "padding": 0, "position": "relative"}, marks=pytest.mark.slow),
        pytest.param({"kernel_size": 2, "padding": 0, "content_heads": 2}, marks=pytest.mark.slow),
        pytest.param({"kernel_size": 2, "padding": "dynamic"}, marks=pytest.mark.slow),
        pytest.param({"kernel_size": 1, "padding": "dynamic"}, marks=pytest.mark.slow),
        pytest.param({"padding": "dynamic", "stride": 3}, marks=pytest.mark.slow),
    ],
    ids=str,
)
@torch.no_grad()
def test_a_layer_with_a_stride_is_exported_for_named_sizes(
    options: dict[str, object], relative_error: RelativeError
) -> None:
    """Named sizes are an error where anything is assumed of them: whether they are even, for one."""
    layer = make_layer(**{"stride": 2, **options}).eval()
    program = export(layer, (torch.randn(2, 4, 10, 12),), dynamic_shapes=(NAMED,)).module()
    for shape in ((1, 4, 9, 8), (3, 4, 16, 11)):
        x = torch.randn(shape)
        assert relative_error(program(x), layer(x)) < SAME_GRAPH


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"position": "quadratic"}, {"position": "relative-content"}, {"content": "pooled:3"}], ids=str
)
@torch.no_grad()
def test_where_named_sizes_are_refused_free_ones_are_not(
    options: dict[str, object], relative_error: RelativeError
) -> None:
    """docs/export.md: of half of a size the tracer does not know in all forms that it is at least one pixel."""
    layer = make_layer(stride=2, kernel_size=2, padding=0, **options).eval()
    image = torch.randn(2, 4, 10, 12)
    with pytest.raises(UserError, match="Constraints violated"):
        export(layer, (image,), dynamic_shapes=(NAMED,))
    free = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    program = export(layer, (image,), dynamic_shapes=(free,)).module()
    for shape in ((2, 4, 9, 8), (3, 4, 16, 11)):
        x = torch.randn(shape)
        assert relative_error(program(x), layer(x)) < SAME_GRAPH


@pytest.mark.parametrize("options", [{}, {"position": "relative"}], ids=str)
@torch.no_grad()
def test_traced_programs_are_of_operators_that_converters_know(
    options: dict[str, object], relative_error: RelativeError
) -> None:
    """OpenVINO has no rule for `threshold`, and reads `softplus` without its β."""
    layer, x = make_layer(**options).eval(), torch.randn(2, 4, 8, 40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.jit.trace(layer, x)
    nodes = list(program.inlined_graph.nodes())
    assert "aten::threshold" not in {node.kind() for node in nodes}
    assert all(list(node.inputs())[1].toIValue() == 1 for node in nodes if node.kind() == "aten::softplus")
    assert relative_error(program(x), layer(x)) < SAME_GRAPH


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"content": "window:4"}, {"content_heads": 2}, {"position": "quadratic"}, {"position": "relative-content"}],
    ids=str,
)
@torch.no_grad()
def test_openvino_converts_layers(options: dict[str, object], relative_error: RelativeError) -> None:
    openvino = pytest.importorskip("openvino")
    layer, x = make_layer(**options).eval(), torch.randn(2, 4, 9, 7)
    for one in (layer, tcnn.fuse(layer)):
        converted = openvino.convert_model(one, example_input=x)
        run = openvino.compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        assert relative_error(torch.from_numpy(run(x.numpy())[0].copy()), layer(x)) < SAME_GRAPH
