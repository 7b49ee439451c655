"""Surgery: `convert` returns another model that is what the report says, and leaves the source alone."""

import copy

import pytest
import timm
import torch
from nets import (
    LAST_STAGE,
    PlainNet,
    Tied,
    image,
    meta_model,
    relative_error,
    same_state,
    seeded_model,
    snapshot,
    spatial_convolutions,
    with_random_statistics,
)
from torch import nn

import tcnn
from tcnn.config import HARD_TEMPERATURE, ConversionConfig
from tcnn.conversion.surgery import rebuild
from tcnn.errors import NothingToConvertError, RequestError
from tcnn.layers import GPSA2d
from tcnn.models.running import gpsa_layers

SIZE = (64, 96)


def source_model(**options: object) -> nn.Module:
    return with_random_statistics(seeded_model("test_resnet", **options)).double().eval()


def gpsa_names(model: nn.Module) -> list[str]:
    return list(gpsa_layers(model))


def storages(model: nn.Module) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}


class TestSource:
    """What is given is left as it was."""

    @pytest.mark.parametrize("options", [{}, {"stride": "remove"}, {"temperature": 1.0}, {"target": ".*conv2"}])
    def test_is_never_changed(self, options: dict[str, object]) -> None:
        model = seeded_model("test_resnet").train()
        model.layer1.eval()
        model.bn1.weight.requires_grad_(False)
        handle = model.layer2.register_forward_hook(lambda *_: None)
        before = snapshot(model)
        modules = dict(model.named_modules())
        modes = {name: module.training for name, module in modules.items()}
        wants = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        attributes = {name: set(vars(module)) for name, module in modules.items()}
        cfg = copy.deepcopy(model.pretrained_cfg)
        strides = {name: module.stride for name, module in modules.items() if isinstance(module, nn.Conv2d)}

        tcnn.convert(model, **options)

        assert same_state(model, before)
        assert all(model.get_submodule(name) is module for name, module in modules.items())
        assert {name: module.training for name, module in model.named_modules()} == modes
        assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == wants
        assert {name: set(vars(module)) for name, module in modules.items()} == attributes
        assert {n: m.stride for n, m in model.named_modules() if isinstance(m, nn.Conv2d)} == strides
        assert model.pretrained_cfg == cfg
        assert [name for name, m in model.named_modules() if m._forward_hooks] == ["layer2"]
        assert list(model.layer2._forward_hooks) == [handle.id]

    @pytest.mark.parametrize("stride", ["keep", "remove"])
    def test_shares_no_memory_with_the_result(self, stride: str) -> None:
        model = seeded_model("test_resnet")
        converted, _ = tcnn.convert(model, stride=stride)
        assert not storages(model) & storages(converted)
        before = snapshot(model)
        with torch.no_grad():
            for tensor in (*converted.parameters(), *converted.buffers()):
                tensor.zero_()
        assert same_state(model, before)

    def test_is_not_changed_by_a_conversion_that_fails(self) -> None:
        model = seeded_model("test_resnet").train()
        before = snapshot(model)
        with pytest.raises(NothingToConvertError):
            tcnn.convert(model, target="nothing")
        assert same_state(model, before) and model.training

    def test_converting_twice_is_refused(self) -> None:
        converted, _ = tcnn.convert(seeded_model("test_resnet"))
        with pytest.raises(NothingToConvertError, match="GPSA layers already"):
            tcnn.convert(converted)


class TestResult:
    """What comes back."""

    def test_unpacks_as_model_and_report(self) -> None:
        conversion = tcnn.convert(PlainNet())
        model, report = conversion
        assert model is conversion.model and report is conversion.report
        assert type(model) is PlainNet
        assert gpsa_names(model) == LAST_STAGE == [layer.name for layer in report.layers]

    def test_config_and_keywords_are_the_same(self) -> None:
        source = seeded_model("test_resnet")
        config = ConversionConfig(target=r"layer[34]\.0\.conv2", temperature=0.5, head_dim=4, seed=7)
        by_config, first = tcnn.convert(source, config)
        by_keyword, second = tcnn.convert(source, target=r"layer[34]\.0\.conv2", temperature=0.5, head_dim=4, seed=7)
        assert same_state(by_keyword, snapshot(by_config))
        assert first == second and first.config == config
        for name in ("layer3.0.conv2", "layer4.0.conv2"):
            layer = by_config.get_submodule(name)
            assert layer.head_dim == 4
            assert layer.position_temperature.item() == 0.5

    @pytest.mark.parametrize(
        "options",
        [
            {"stage": "last"},
            {"stride": "half"},
            {"temperature": 0},
            {"temperature": -1.0},
            {"temperature": float("nan")},
            {"temperature": float("inf")},
            {"head_dim": 0},
            {"target": "("},
            {"seed": -1},
            {"input_size": (0, 8)},
            {"size": 3},
        ],
    )
    def test_a_wrong_option_is_one_line_that_names_it(self, options: dict[str, object]) -> None:
        with pytest.raises(RequestError, match=f"^{next(iter(options))}") as caught:
            tcnn.convert(PlainNet(), **options)
        assert "\n" not in str(caught.value)

    def test_the_same_seed_gives_the_same_bits(self) -> None:
        source = seeded_model("test_resnet")
        torch.manual_seed(1)
        first = snapshot(tcnn.convert(source, seed=3).model)
        torch.manual_seed(2)
        assert same_state(tcnn.convert(source, seed=3).model, first)
        other = tcnn.convert(source, seed=4).model
        assert not torch.equal(other.layer4[0].conv1.query, first["layer4.0.conv1.query"])
        assert torch.equal(other.layer4[0].conv1.proj, first["layer4.0.conv1.proj"])

    def test_the_global_random_state_is_left_alone(self) -> None:
        source = seeded_model("test_resnet")
        torch.manual_seed(5)
        before = torch.get_rng_state()
        tcnn.convert(source)
        assert torch.equal(torch.get_rng_state(), before)

    def test_stands_as_the_paper_says(self) -> None:
        """α = λ = 1, W_val = I, W_out = the filter, τ = 1/46."""
        source = seeded_model("test_resnet")
        converted, _ = tcnn.convert(source)
        for name in gpsa_names(converted):
            layer, conv = converted.get_submodule(name), source.get_submodule(name)
            assert torch.equal(layer.gating_param, torch.ones(9))
            assert torch.allclose(layer.locality_strength, torch.ones(9))
            assert torch.equal(layer.value, torch.eye(layer.in_channels))
            assert torch.equal(layer.filter, conv.weight)
            assert layer.position_temperature.item() == pytest.approx(HARD_TEMPERATURE)

    @pytest.mark.parametrize("training", [True, False])
    def test_keeps_the_mode_of_every_module(self, training: bool) -> None:
        source = seeded_model("test_resnet").train(training)
        source.bn1.train(not training)
        converted, _ = tcnn.convert(source)
        expected = {name: module.training for name, module in source.named_modules()}
        assert {name: m.training for name, m in converted.named_modules() if name in expected} == expected
        assert converted.layer4[0].conv1.training is training

    def test_keeps_what_is_frozen(self) -> None:
        source = seeded_model("test_resnet")
        source.layer1.requires_grad_(False)
        source.layer4[0].conv2.requires_grad_(False)
        converted, _ = tcnn.convert(source)
        assert not any(p.requires_grad for p in converted.layer1.parameters())
        assert not any(p.requires_grad for p in converted.layer4[0].conv2.parameters())
        assert all(p.requires_grad for p in converted.layer4[0].conv1.parameters())

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_keeps_the_dtype(self, dtype: torch.dtype) -> None:
        source = seeded_model("test_resnet").to(dtype).eval()
        converted, _ = tcnn.convert(source)
        floating = [t for t in (*converted.parameters(), *converted.buffers()) if t.is_floating_point()]
        assert {tensor.dtype for tensor in floating} == {dtype}
        with torch.no_grad():
            x = image(SIZE).to(dtype)
            expected, found = source(x), converted(x)
        assert found.dtype == dtype
        assert relative_error(expected, found) <= {torch.float64: 1e-13}.get(dtype, 0.02)

    def test_lives_where_the_source_lives(self) -> None:
        source = meta_model("resnet50d")
        converted, report = tcnn.convert(source)
        assert all(tensor.is_meta for tensor in (*converted.parameters(), *converted.buffers()))
        assert len(report.layers) == 3

    def test_keeps_a_shared_layer_shared(self) -> None:
        source = Tied().double()
        converted, report = tcnn.convert(source)
        assert converted.first is converted.second and isinstance(converted.first, GPSA2d)
        assert [layer.name for layer in report.layers] == ["first"]
        x = image((12, 14), double=True)
        assert relative_error(source(x), converted(x)) < 1e-13

    @pytest.mark.parametrize(
        "source",
        [
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, (2, 5), stride=(1, 2), padding=1)),
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.Sequential(
                nn.ModuleDict({"a": nn.Identity()})["a"], nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 2))
            ),
            PlainNet(),
        ],
        ids=["sequential", "one convolution", "nested", "module"],
    )
    def test_of_modules_that_are_no_timm_models(self, source: nn.Module) -> None:
        source = source.double().eval()
        converted, report = tcnn.convert(source)
        assert gpsa_names(converted) == [layer.name for layer in report.layers] != []
        assert report.base_model == type(source).__name__
        x = image((17, 22), double=True)
        with torch.no_grad():
            assert relative_error(source(x), converted(x)) < 1e-13

    def test_at_temperature_one_it_is_another_function(self) -> None:
        source = source_model()
        x = image(SIZE, double=True)
        with torch.no_grad():
            assert relative_error(source(x), tcnn.convert(source, temperature=1.0).model(x)) > 0.05


def test_a_target_may_leave_the_last_stage() -> None:
    source = source_model()
    converted, report = tcnn.convert(source, target=r"layer[12]\..*conv\d")
    assert gpsa_names(converted) == spatial_convolutions(source, "layer1.", "layer2.")
    assert {layer.name for layer in report.layers} == set(gpsa_names(converted))
    x = image(SIZE, double=True)
    with torch.no_grad():
        assert relative_error(source(x), converted(x)) < 1e-12


def test_the_source_may_be_a_model_from_a_pickle_free_state_dict() -> None:
    """Conversion copies what stands in the module, not what timm would create."""
    source = timm.create_model("test_resnet", num_classes=3)
    source.load_state_dict({name: torch.full_like(value, 0.01) for name, value in source.state_dict().items()})
    converted, _ = tcnn.convert(source)
    assert torch.equal(converted.fc.weight, source.fc.weight)
    assert torch.equal(converted.layer4[0].conv1.proj, torch.full_like(converted.layer4[0].conv1.proj, 0.01))


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_conversion_is_named_as_timm_will_know_it(rebuilt: bool) -> None:
    """And remembers the options that it was made with; the source keeps its own name."""
    source = source_model()
    made = tcnn.convert(source, head_dim=4)
    model = rebuild(source, made.report) if rebuilt else made.model
    assert model.pretrained_cfg["architecture"] == model.default_cfg["architecture"] == "t_test_resnet"
    assert model._model_args["head_dim"] == 4
    assert source.pretrained_cfg["architecture"] == "test_resnet"


def test_a_name_is_no_module() -> None:
    with pytest.raises(RequestError, match="model: expected a module, found 'resnet18'; build it first"):
        tcnn.convert("resnet18")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="found a value of type OrderedDict; build it first"):  # not all its numbers
        tcnn.convert(PlainNet().state_dict())  # type: ignore[arg-type]


def test_reports_are_printed_in_lines_that_a_person_reads() -> None:
    """`print(report)` was one line of a thousand characters and more."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(4, 6, 3, padding=1))
    model, report = tcnn.convert(net, input_size=(16, 16))
    assert str(report).splitlines() == [
        "Sequential: stage 8×8 pixels",
        "1: Conv2d 3×3, 4 → 6, 9 heads of width 8",
        f"parameters: {report.parameters_before:,} → {report.parameters_after:,}",
    ]
    first, second, run, drift = str(tcnn.verify(net, model)).splitlines()
    assert first.startswith("equal in float32: relative error ") and second.startswith("equal in float64: ")
    assert run.startswith("equal as run in float32: ") and drift.startswith("drift at τ = 1: ")
