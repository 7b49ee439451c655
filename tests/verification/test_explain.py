"""`explain` names the layer that departs first, where and why, in models that were made to differ in one known way."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tcnn
from tcnn.verification.explain import explain
from tcnn.verification.explanation import DECADES, histogram_of, worst_place

IMAGES = torch.randn(2, 3, 48, 40, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def made(lively: Callable[..., nn.Module]) -> tuple[nn.Module, nn.Module]:
    source = lively("test_resnet")
    return source, tcnn.convert(source).model


@pytest.fixture
def source(made: tuple[nn.Module, nn.Module]) -> nn.Module:
    return copy.deepcopy(made[0])


@pytest.fixture
def converted(made: tuple[nn.Module, nn.Module]) -> nn.Module:
    return copy.deepcopy(made[1])


@torch.no_grad()
def layer_output(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """What a layer gives, by a hook of one's own."""
    found = []
    handle = model.get_submodule(name).register_forward_hook(lambda m, args, out: found.append(out.clone()))
    model.eval()(images)
    handle.remove()
    return found[0]


def test_a_conversion_is_equal_in_every_layer(source: nn.Module, converted: nn.Module) -> None:
    found = explain(source, converted, IMAGES)
    assert found.equal
    assert found.verdict == "The models compute the same function."
    assert [one.first for one in found.passes] == [None, None]
    assert {"conv1.0", "layer4.0.conv1", "layer4.0.bn1", "fc"} <= {layer.name for layer in found.passes[0].layers}
    assert found.unmatched == ()
    assert sum(found.histogram.values()) == 2 * 1000


def test_also_where_it_stands_at_another_temperature(source: nn.Module) -> None:
    model = tcnn.convert(source, temperature=0.5).model
    assert explain(source, model, IMAGES).equal
    assert all(layer.position_temperature == 0.5 for layer in model.modules() if isinstance(layer, tcnn.GPSA2d))


def test_another_filter_is_found_with_its_worst_pixel(source: nn.Module, converted: nn.Module) -> None:
    with torch.no_grad():
        converted.layer4[0].conv2.proj[5, 4 * 96 : 5 * 96] += 0.5  # the centre tap
    found = explain(source, converted, IMAGES)
    assert not found.equal
    assert [one.first for one in found.passes] == ["layer4.0.conv2", "layer4.0.conv2"]
    assert found.verdict.startswith("layer4.0.conv2 (Conv2d → GPSA2d) is the first to depart")
    assert "--weights" in found.advice
    one, other = (layer_output(model.double(), "layer4.0.conv2", IMAGES.double()) for model in (source, converted))
    place = torch.unravel_index((one - other).abs().argmax(), one.shape)
    assert found.worst is not None
    assert (found.worst.image, *found.worst.index) == tuple(int(each) for each in place)
    assert found.worst.expected == pytest.approx(float(one[place]), rel=1e-9)
    assert found.worst.found == pytest.approx(float(other[place]), rel=1e-9)
    assert sum(found.histogram.values()) == one.numel()
    share = (one - other).abs() / one.abs().max()
    assert sum(n for power, n in found.histogram.items() if power >= -3) == int((share >= 1e-3).sum())


def test_what_a_layer_inherits_is_not_its_own(source: nn.Module, converted: nn.Module) -> None:
    converted.layer2[0].bn1.running_mean += 0.3
    found = explain(source, converted, IMAGES)
    assert found.passes[1].first == "layer2.0.bn1"
    assert "statistics" in found.advice
    after = next(layer for layer in found.passes[1].layers if layer.name == "layer4.0.conv1")
    assert after.error.worst > 1e-4
    assert after.own is not None
    assert after.own.worst < 1e-12


def test_rounding_is_called_rounding(source: nn.Module, converted: nn.Module) -> None:
    found = explain(source, converted, IMAGES, {torch.float32: 1e-12})
    assert not found.equal
    assert found.passes[1].first is None
    assert "it is rounding" in found.verdict


class Net(nn.Module):
    """Two layers with a function between them that no module is."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.between = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), between

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.between(self.one(x))).mean((2, 3))


def test_a_function_between_two_layers_is_found_by_what_follows_it() -> None:
    found = explain(Net(F.relu), Net(F.gelu), IMAGES)
    assert found.passes[1].first == "two"
    assert "is itself the same: what it is given differs" in found.verdict


def test_a_function_after_the_last_layer_is_found_by_the_output() -> None:
    class Scaled(Net):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    found = explain(Net(F.relu), Scaled(F.relu), IMAGES)
    assert [one.first for one in found.passes] == [None, None]
    assert found.verdict == "Every layer of one name agrees, the output does not."


def test_what_only_one_has_is_named(source: nn.Module) -> None:
    other = Net(F.relu)
    other.three = nn.Conv2d(4, 4, 1)
    assert explain(Net(F.relu), other, IMAGES).unmatched == ("three",)
    with pytest.raises(tcnn.TcnnError, match="no layer of one name"):
        explain(source, other, IMAGES)


def test_neither_model_is_changed(source: nn.Module, converted: nn.Module) -> None:
    before = [value.clone() for model in (source, converted) for value in model.state_dict().values()]
    source.train()
    explain(source, converted, IMAGES)
    after = [value for model in (source, converted) for value in model.state_dict().values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert source.training
    assert not converted.training
    assert not any(module._forward_hooks for model in (source, converted) for module in model.modules())


def test_values_that_are_no_numbers_are_infinite_errors(source: nn.Module, converted: nn.Module) -> None:
    with torch.no_grad():
        converted.layer4[0].conv1.proj[0, 0] = torch.nan
    found = explain(source, converted, IMAGES)
    assert found.passes[1].first == "layer4.0.conv1"
    assert found.worst is not None
    assert max(found.histogram) == 3


def test_the_page_says_it_all(source: nn.Module, converted: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from tcnn.analysis.pages.explanation import write

    with torch.no_grad():
        converted.layer4[0].conv2.proj[5, 4 * 96 : 5 * 96] += 0.5  # the centre tap
    found = explain(source, converted, IMAGES)
    write(found, "<script>alert(1)</script>", "mine", tmp_path / "why.html")
    page = (tmp_path / "why.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert found.verdict in page
    assert page.count("<svg") == 2
    assert "Conv2d → GPSA2d" in page
    assert 'src="http' not in page
    assert 'href="http' not in page


class Several(nn.Module):
    """A layer with a parameter and a child, one without parameters, and one that gives a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = Scaled()
        self.flat = nn.Flatten(2)
        self.recurrent = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.recurrent(self.flat(self.scaled(x)).transpose(1, 2))[0].mean(1)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.act = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.scale * x)


def test_every_layer_that_gives_a_tensor_is_compared() -> None:
    torch.manual_seed(0)
    one, other = Several(), Several()
    other.load_state_dict(one.state_dict())
    found = explain(one, other, IMAGES)
    assert found.equal and [layer.name for layer in found.passes[0].layers] == ["scaled.act", "scaled", "flat"]
    with torch.no_grad():
        other.scaled.scale += 0.25
    assert [one.first for one in explain(one, other, IMAGES).passes] == ["scaled.act", "scaled.act"]


def test_what_a_layer_adds_itself_is_told_of_one_that_writes_into_its_input() -> None:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(inplace=True), nn.Conv2d(4, 4, 3))
    for exact in explain(one, copy.deepcopy(one), IMAGES).passes:
        assert [layer.own and layer.own.worst for layer in exact.layers] == [0, 0, 0]


def test_rounded_filters_are_equal_as_verification_says(lively: Callable[..., nn.Module]) -> None:
    source = lively("test_nfnet")
    model = tcnn.convert(source).model
    assert tcnn.verify(source, model, images=IMAGES).passed
    found = explain(source, model, IMAGES)
    assert found.equal and [one.tolerance for one in found.passes] == [1e-5, 1e-5]
    assert not explain(source.double(), tcnn.convert(source).model.double(), IMAGES).passes[1].tolerance > 1e-10


def test_weights_in_another_dtype_are_called_so(source: nn.Module, converted: nn.Module) -> None:
    found = explain(source, converted.half(), IMAGES)
    assert not found.equal
    assert found.advice.startswith("Weights in float32 are compared with weights in float16: give both ")


@pytest.mark.parametrize("wrong", [1e-4, {"float32": 1e-4}, {torch.float32: 0}, {torch.int64: 1}, {torch.float32: "a"}])
def test_tolerances_that_are_none(wrong: object, source: nn.Module) -> None:
    with pytest.raises(tcnn.TcnnError, match=r"^tolerances: expected relative errors above 0 by dtype, such as "):
        explain(source, source, IMAGES, wrong)  # type: ignore[arg-type]


def test_t_cnns_at_any_temperature_are_compared_in_the_hard_limit(source: nn.Module) -> None:
    model = tcnn.convert(source, temperature=1).model
    for one, other in ((model, model), (model, source), (copy.deepcopy(model), tcnn.convert(source).model)):
        assert explain(one, other, IMAGES).equal
    assert all(layer.position_temperature == 1 for layer in model.modules() if isinstance(layer, tcnn.GPSA2d))


def test_what_was_folded_or_fused(source: nn.Module) -> None:
    model = tcnn.convert(source, temperature=1).model
    assert explain(source, tcnn.prune(model, far=0.5).model, IMAGES).advice.startswith(
        "Its heads were folded or pruned"
    )
    with pytest.raises(
        tcnn.TcnnError, match=r"was fused, for inference only; explain the model that it was fused from$"
    ):
        explain(source, tcnn.fuse(model), IMAGES)


def test_another_kind_of_layer_and_values_that_are_no_numbers_are_called_so() -> None:
    one = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 3))
    other = copy.deepcopy(one)
    other[1] = nn.ReLU()
    assert explain(one, other, IMAGES).advice.startswith("It is another kind of layer")
    with torch.no_grad():
        one[0].weight.fill_(torch.nan)
    assert explain(one, one, IMAGES).advice.startswith("It gives NaN or infinity in the first model, too")


def test_outputs_of_other_classes(lively: Callable[..., nn.Module]) -> None:
    with pytest.raises(tcnn.TcnnError, match=r"found 7 and 5; give both as many classes, by num_classes$"):
        explain(lively("test_resnet", num_classes=7), lively("test_resnet", num_classes=5), IMAGES)


def test_models_without_weights() -> None:
    assert explain(nn.Sequential(nn.Flatten()), nn.Sequential(nn.Flatten()), IMAGES).equal


def test_differences_are_counted_by_powers_of_ten_of_the_largest_value() -> None:
    expected = torch.tensor([[100.0, 1.0, 2.0, 3.0, 4.0, 5.0]])
    found = expected + torch.tensor([[0.0, 0.5, 0.05, 1e15, torch.inf, 5e-4]])
    assert histogram_of(expected, found) == {DECADES.start: 1, -3: 1, -4: 1, -6: 1, DECADES.stop - 1: 2}


def test_the_worst_place_is_told_however_small_it_is() -> None:
    expected, found = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4, 5)
    assert worst_place(expected, found) is None
    found[1, 2, 3, 4] = -0.25
    worst = worst_place(expected, found)
    assert worst is not None and (worst.image, worst.index, worst.found) == (1, (2, 3, 4), -0.25)
