"""torch.fx takes a converted layer as one call, in anybody's tracer."""

import copy
import pickle
from collections.abc import Callable

import pytest
import timm
import torch
from nets import image, relative_error
from sampled import crossed
from timm.models import FeatureGraphNet
from timm.models import create_feature_extractor as timm_extractor
from torch import fx, nn
from torchvision.models.feature_extraction import NodePathTracer, create_feature_extractor, get_graph_node_names

import tcnn
from tcnn.errors import TcnnError
from tcnn.layers.functional import gpsa
from tcnn.layers.fused import FusedGPSA2d

LAYER = "layer4.0.conv2"


HARD, SOFT = {}, {"temperature": 1.0}


@pytest.fixture(params=[HARD, SOFT], ids=["hard", "soft"])
def converted(request: pytest.FixtureRequest, lively: Callable[..., nn.Module]) -> nn.Module:
    return tcnn.convert(lively(), **request.param).model.eval()


@torch.no_grad()
def test_symbolic_trace(converted: nn.Module) -> None:
    graph = fx.symbolic_trace(converted)
    calls = [node for node in graph.graph.nodes if node.op == "call_function" and node.target is gpsa]
    assert len(calls) == 2, "one for each layer: the choices inside are made when the graph runs"
    for size in ((64, 64), (48, 80)):
        assert torch.equal(graph(image(size)), converted(image(size)))


def test_gradients_pass_through_a_graph(converted: nn.Module) -> None:
    converted.train()
    traced = fx.symbolic_trace(copy.deepcopy(converted))
    found = {}
    for key, model in (("module", converted), ("graph", traced)):
        model(image((64, 64), batch=2)).square().mean().backward()
        found[key] = {name: p.grad for name, p in model.named_parameters() if name.startswith(LAYER)}
    assert found["graph"].keys() == found["module"].keys() != set()
    assert all(torch.allclose(found["graph"][name], grad) for name, grad in found["module"].items())


@pytest.mark.parametrize(
    ("converted", "extractor"),
    crossed([HARD, SOFT], [timm_extractor, create_feature_extractor], 2),
    indirect=["converted"],
    ids=["hard-timm", "hard-torchvision", "soft-timm", "soft-torchvision"],
)
@torch.no_grad()
def test_feature_extractors(converted: nn.Module, extractor: Callable[..., nn.Module]) -> None:
    seen = []
    converted.get_submodule(LAYER).register_forward_hook(lambda module, args, output: seen.append(output))
    x = image((64, 96))
    converted(x)
    assert any(name.startswith(LAYER) for name in get_graph_node_names(converted)[1])
    found = extractor(converted, {LAYER: "attention", "fc": "logits"})(x)
    assert relative_error(seen[0], found["attention"]) < 1e-6
    assert relative_error(converted(x), found["logits"]) < 1e-6


@torch.no_grad()
def test_timms_graph_net_takes_a_converted_classifier(converted: nn.Module) -> None:
    x = image((64, 64))
    expected = converted.forward_intermediates(x, indices=(2, 4), intermediates_only=True)
    found = FeatureGraphNet(copy.deepcopy(converted), (2, 4)).eval()(x)
    assert all(relative_error(e, f) < 1e-6 for e, f in zip(expected, found, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("options", [HARD, SOFT], ids=["hard", "soft"])
def test_a_graph_of_a_fused_model_has_its_layers(options: dict[str, float], lively: Callable[..., nn.Module]) -> None:
    """As modules, which move and can be copied; nothing is left behind in the model, whose matrices are opaque."""
    fused = tcnn.fuse(tcnn.convert(lively(), **options).model)
    own, x = {name: set(vars(module)) for name, module in fused.named_modules()}, image((48, 80))
    graph = fx.symbolic_trace(fused)
    assert {name: set(vars(module)) for name, module in fused.named_modules()} == own
    called = {node.target for node in graph.graph.nodes if node.op == "call_module"}
    assert called >= {name for name, module in fused.named_modules() if isinstance(module, FusedGPSA2d)} != set()
    assert graph.state_dict().keys() == fused.state_dict().keys()
    for found in (graph, copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert torch.equal(found(x), fused(x))
    assert torch.equal(copy.deepcopy(fused)(x), fused(x))
    assert relative_error(graph.double()(x.double()), copy.deepcopy(fused).double()(x.double())) < 1e-12


@torch.no_grad()
def test_other_tracers_of_fused_layers(lively: Callable[..., nn.Module]) -> None:
    """torchvision's, which names every node, a layer that is traced alone, and a graph that is traced again."""
    fused = tcnn.fuse(tcnn.convert(lively(), temperature=1.0).model)
    tracer, x = NodePathTracer(), image((64, 64))
    graph = fx.GraphModule(fused, tracer.trace(fused))
    assert LAYER in tracer.node_to_qualname.values()
    for found in (graph, fx.symbolic_trace(graph)):
        assert torch.equal(found(x), fused(x))
    layer = fused.get_submodule(LAYER)
    alone, x = fx.symbolic_trace(layer), torch.randn(2, layer.in_channels, 8, 9)
    for found in (alone, copy.deepcopy(alone), fx.symbolic_trace(alone)):
        assert torch.equal(found(x), layer(x))


def test_torchscript_is_refused_in_one_line() -> None:
    with pytest.raises(TcnnError, match=r"TorchScript.*torch\.export") as caught:
        torch.jit.script(timm.create_model("t_test_resnet"))
    assert "\n" not in str(caught.value)
