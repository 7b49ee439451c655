"""Verification: it passes what is equal, fails what is not and names where, and leaves both models as they were."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import timm
import torch
from nets import PlainNet, image, same_state, seeded_model, snapshot
from torch import Tensor, nn

import tcnn
from tcnn.config import HARD_TEMPERATURE, VerificationConfig
from tcnn.conversion.report import VerificationReport
from tcnn.conversion.verify import at_temperature, errors
from tcnn.errors import RequestError
from tcnn.layers import GPSA2d

OPTIONS = {"input_size": (64, 96), "batch_size": 1}
DAMAGED = "layer4.0.conv2"


@pytest.fixture
def pair() -> tuple[nn.Module, nn.Module]:
    source = seeded_model("test_resnet")
    return source, tcnn.convert(source).model


@pytest.fixture(scope="module")
def report() -> VerificationReport:
    source = seeded_model("test_resnet")
    return tcnn.verify(source, tcnn.convert(source).model, randomise=True, **OPTIONS)


class TestErrors:
    """The numbers themselves, worked out by hand."""

    def test_of_two_vectors(self) -> None:
        found = errors(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]))
        assert found.max_abs == 0.5
        assert found.relative == pytest.approx(0.5 / 5)
        assert found.max_relative == pytest.approx(0.5 / 4)
        assert found.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))
        assert found.worst == found.max_relative

    def test_of_equals(self) -> None:
        x = image((3, 3))
        found = errors(x, x.clone())
        assert (found.max_abs, found.relative, found.max_relative) == (0, 0, 0)
        assert found.cosine == pytest.approx(1)

    def test_is_taken_in_float64(self) -> None:
        """In float32 the difference of these two would be lost in the sum of squares."""
        a = torch.full((4096,), 4096.0, dtype=torch.float64)
        assert errors(a, a + 1e-9).max_abs == pytest.approx(1e-9, rel=1e-2)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("side", ["reference", "other", "both"])
    def test_of_what_is_not_finite(self, value: float, side: str) -> None:
        good, bad = torch.ones(3), torch.tensor([1.0, value, 1.0])
        found = errors(good if side == "other" else bad, good if side == "reference" else bad)
        assert found.worst == found.max_abs == math.inf

    def test_of_different_shapes(self) -> None:
        assert errors(torch.ones(2, 3), torch.ones(2, 4)).worst == math.inf

    def test_beside_a_silent_reference(self) -> None:
        zero = torch.zeros(3)
        assert errors(zero, zero).worst == 0
        assert errors(zero, torch.tensor([0.0, 1e-30, 0.0])).worst == math.inf


class TestEqual:
    def test_passes(self, report: VerificationReport) -> None:
        assert report.passed and report.failure() is None
        single, double = report.passes
        assert (single.dtype, single.tolerance, single.note) == ("float32", 1e-5, None)
        assert (double.dtype, double.tolerance, double.note) == ("float64", 1e-10, None)
        assert 0 < single.logits.worst <= 1e-5
        assert double.logits.worst <= 1e-10
        assert single.top1_agreement == double.top1_agreement == 1
        assert single.logits.cosine == pytest.approx(1)

    def test_every_layer_on_noise_and_on_what_reaches_it(self, report: VerificationReport) -> None:
        for result in report.passes:
            assert [layer.name for layer in result.layers] == ["layer4.0.conv1", "layer4.0.conv2"]
            for layer in result.layers:
                assert layer.activation is not None
                assert layer.random.worst <= result.tolerance and layer.activation.worst <= result.tolerance
                assert layer.random != layer.activation

    def test_drift_stands_beside_it(self, report: VerificationReport) -> None:
        """At τ = 1 the same weights are another function: the comparison is not blind."""
        assert report.temperature == pytest.approx(HARD_TEMPERATURE)
        assert report.drift.temperature == 1
        assert report.drift.logits.relative > 0.01
        assert report.written is None

    def test_says_on_what_it_looked(self, report: VerificationReport) -> None:
        assert report.images == "noise 1×3×64×96"
        assert report.statistics_randomised and report.seed == 0

    def test_is_the_same_again_and_differs_by_seed(self, pair: tuple[nn.Module, nn.Module]) -> None:
        first = tcnn.verify(*pair, randomise=True, **OPTIONS)
        torch.manual_seed(99)
        assert tcnn.verify(*pair, randomise=True, **OPTIONS) == first
        assert tcnn.verify(*pair, randomise=True, seed=1, **OPTIONS).drift != first.drift

    def test_float64_can_be_left_out(self, pair: tuple[nn.Module, nn.Module]) -> None:
        assert [result.dtype for result in tcnn.verify(*pair, float64=False, **OPTIONS).passes] == ["float32"]

    def test_config_and_keywords_are_the_same(self, pair: tuple[nn.Module, nn.Module]) -> None:
        assert tcnn.verify(*pair, VerificationConfig(seed=3, **OPTIONS)) == tcnn.verify(*pair, seed=3, **OPTIONS)

    def test_a_tolerance_can_be_too_tight(self, pair: tuple[nn.Module, nn.Module]) -> None:
        report = tcnn.verify(*pair, tolerance_float32=1e-12, **OPTIONS)
        assert not report.passed and report.passes[1].passed
        assert "in float32, expected at most 1e-12" in (report.failure() or "")

    def test_on_images_that_are_given(self, pair: tuple[nn.Module, nn.Module]) -> None:
        images = image((48, 64), batch=3)
        report = tcnn.verify(*pair, images=images, randomise=True)
        assert report.passed and report.images == "images 3×3×48×64"
        other = tcnn.verify(*pair, images=images + 1, randomise=True)
        assert other.passed and other.drift != report.drift

    def test_of_a_model_without_feature_info(self) -> None:
        source = PlainNet()
        assert tcnn.verify(source, tcnn.convert(source).model, input_size=(20, 28), batch_size=1).passed

    def test_of_several_outputs(self) -> None:
        source = seeded_model("test_resnet", features_only=True)
        converted, _ = tcnn.convert(source)
        assert tcnn.verify(source, converted, randomise=True, **OPTIONS).passed
        with torch.no_grad():
            converted.layer4[0].conv1.proj[3] *= 1.01
        assert not tcnn.verify(source, converted, randomise=True, **OPTIONS).passed

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_of_half_precision(self, dtype: torch.dtype) -> None:
        """Compared in float32 and float64 copies: half precision's own rounding is no conversion error."""
        source = seeded_model("test_resnet").to(dtype)
        converted, _ = tcnn.convert(source)
        before = snapshot(converted)
        report = tcnn.verify(source, converted, randomise=True, **OPTIONS)
        assert report.passed, report.failure()
        assert report.passes[1].logits.worst <= 1e-10
        assert report.drift.logits.relative > 0.01
        assert same_state(converted, before)


class TestStandardised:
    """A standardised filter is baked in rounded to the weight's dtype, and that is said."""

    def test_float32_weights_get_its_tolerance_in_float64(self) -> None:
        source = seeded_model("test_nfnet")
        report = tcnn.verify(source, tcnn.convert(source).model, randomise=True, **OPTIONS)
        double = report.passes[1]
        assert report.passed
        assert double.tolerance == 1e-5
        assert double.note is not None and "rounded to float32" in double.note
        assert double.logits.worst > 1e-10

    def test_float64_weights_keep_the_tight_tolerance(self) -> None:
        source = seeded_model("test_nfnet").double()
        report = tcnn.verify(source, tcnn.convert(source).model, randomise=True, **OPTIONS)
        assert report.passed
        assert report.passes[1].tolerance == 1e-10 and report.passes[1].note is None


def one_weight(layer: GPSA2d) -> None:
    layer.proj[5, 7] += 1e-3


def one_gate(layer: GPSA2d) -> None:
    layer.gating_param[4] = 0.0


def one_centre(layer: GPSA2d) -> None:
    layer.attention_centers[0, 1] += 1


def one_strength(layer: GPSA2d) -> None:
    layer.locality_raw[2] = -2.0


def one_value(layer: GPSA2d) -> None:
    layer.value[0, 1] += 1e-2


def padding_mode(layer: GPSA2d) -> None:
    layer.geometry = replace(layer.geometry, padding_mode="replicate")


def padding_side(layer: GPSA2d) -> None:
    layer.geometry = replace(layer.geometry, padding=(2, 0, 1, 1))


def query_not_a_number(layer: GPSA2d) -> None:
    """Only a comparison that runs the attention can see it: no convolution reads the query."""
    layer.query[0, 0] = math.nan


def weight_infinite(layer: GPSA2d) -> None:
    layer.proj[0, 0] = math.inf


class TestDifferent:
    @pytest.mark.parametrize("randomise", [True, False])
    @pytest.mark.parametrize(
        "damage",
        [
            one_weight,
            one_gate,
            one_centre,
            one_strength,
            one_value,
            padding_mode,
            padding_side,
            query_not_a_number,
            weight_infinite,
        ],
    )
    def test_fails_and_names_the_layer(
        self, pair: tuple[nn.Module, nn.Module], damage: Callable[[GPSA2d], None], randomise: bool
    ) -> None:
        source, converted = pair
        with torch.no_grad():
            damage(converted.get_submodule(DAMAGED))
        report = tcnn.verify(source, converted, randomise=randomise, **OPTIONS)
        assert not report.passed and not any(result.passed for result in report.passes)
        failure = report.failure()
        assert failure is not None and f"worst layer {DAMAGED} at" in failure
        assert "in float32, expected at most 1e-05 at temperature 0.02174" in failure
        assert "\n" not in failure
        for result in report.passes:
            healthy, damaged = result.layers
            assert healthy.random.worst <= result.tolerance < damaged.random.worst

    def test_a_branch_that_a_zero_scale_hides_end_to_end_is_seen_layer_by_layer(self) -> None:
        source = seeded_model("test_resnet")
        nn.init.zeros_(source.layer4[0].bn2.weight)
        nn.init.zeros_(source.layer4[0].bn2.bias)
        converted, _ = tcnn.convert(source)
        with torch.no_grad():
            converted.get_submodule(DAMAGED).proj.mul_(2)
        plain = tcnn.verify(source, converted, **OPTIONS)
        assert not plain.passed
        assert plain.passes[0].logits.worst <= 1e-5  # the logits alone would have let it through
        shaken = tcnn.verify(source, converted, randomise=True, **OPTIONS)
        assert not shaken.passed and shaken.passes[0].logits.worst > 1e-3

    def test_a_change_outside_the_converted_layers(self, pair: tuple[nn.Module, nn.Module]) -> None:
        source, converted = pair
        with torch.no_grad():
            converted.fc.weight.neg_()
            converted.fc.bias.neg_()
        report = tcnn.verify(source, converted, **OPTIONS)
        assert not report.passed
        assert report.passes[0].top1_agreement == 0
        assert report.passes[0].logits.cosine == pytest.approx(-1)
        assert all(layer.random.worst <= 1e-5 for layer in report.passes[0].layers)

    def test_a_source_that_is_not_finite_proves_nothing(self) -> None:
        source = seeded_model("test_resnet")
        with torch.no_grad():
            source.fc.weight[0, 0] = math.nan
        report = tcnn.verify(source, tcnn.convert(source).model, **OPTIONS)
        assert not report.passed and report.passes[0].logits.worst == math.inf

    def test_a_layer_that_never_runs_is_not_verified(self) -> None:
        class OnlyLarge(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.stem = nn.Conv2d(3, 4, 4, stride=4)
                self.a, self.b = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))

            def forward(self, x: Tensor) -> Tensor:
                large = x.shape[-1] >= 32
                x = self.a(self.stem(x))
                return (self.b(x) if large else x).mean((2, 3))

        source = OnlyLarge()
        converted, report = tcnn.convert(source, input_size=(32, 32))
        assert [layer.name for layer in report.layers] == ["a", "b"]
        assert tcnn.verify(source, converted, input_size=(32, 32)).passed
        blind = tcnn.verify(source, converted, input_size=(28, 28))
        assert not blind.passed
        assert all(result.note == "never ran: b" for result in blind.passes)

    def test_other_classes(self, pair: tuple[nn.Module, nn.Module]) -> None:
        report = tcnn.verify(seeded_model("test_resnet", num_classes=7), pair[1], **OPTIONS)
        assert not report.passed and report.passes[0].logits.worst == math.inf


class TestTemperature:
    def test_equivalence_is_measured_at_the_hard_limit_and_drift_where_the_model_stands(self) -> None:
        source = seeded_model("test_resnet")
        converted, _ = tcnn.convert(source, temperature=0.25)
        report = tcnn.verify(source, converted, randomise=True, **OPTIONS)
        assert report.passed and report.temperature == pytest.approx(HARD_TEMPERATURE)
        assert report.written is not None and report.written.temperature == 0.25
        assert 0 < report.written.logits.relative < report.drift.logits.relative
        assert {layer.temperature.item() for layer in gpsa(converted)} == {0.25}

    def test_is_put_back_one_by_one(self, pair: tuple[nn.Module, nn.Module]) -> None:
        first, second = gpsa(pair[1])
        first.temperature.fill_(0.5)
        second.temperature.fill_(0.125)
        with pytest.raises(ZeroDivisionError), at_temperature(pair[1], 1.0):
            assert first.temperature.item() == second.temperature.item() == 1
            raise ZeroDivisionError
        assert (first.temperature.item(), second.temperature.item()) == (0.5, 0.125)


def gpsa(model: nn.Module) -> list[GPSA2d]:
    return [module for module in model.modules() if isinstance(module, GPSA2d)]


class TestLeavesNoMark:
    @pytest.fixture(autouse=True)
    def unchanged(self, pair: tuple[nn.Module, nn.Module]) -> Iterator[None]:
        """Whatever the test does, both models have the same bits, modes, hooks and gradients afterwards."""
        for model in pair:
            model.train()
            model.layer1.eval()
            model.layer2.requires_grad_(False)
        before = [(snapshot(model), modes(model), wants(model)) for model in pair]
        yield
        for model, (state, mode, want) in zip(pair, before, strict=True):
            assert same_state(model, state)
            assert modes(model) == mode and wants(model) == want
            assert all(parameter.grad is None for parameter in model.parameters())
            assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    @pytest.mark.parametrize("randomise", [True, False])
    def test_when_it_passes(self, pair: tuple[nn.Module, nn.Module], randomise: bool) -> None:
        assert tcnn.verify(*pair, randomise=randomise, **OPTIONS).passed

    def test_when_the_models_raise(self, pair: tuple[nn.Module, nn.Module]) -> None:
        with pytest.raises(Exception, match="channels"):
            tcnn.verify(*pair, randomise=True, images=image((64, 64), channels=4))

    def test_when_drift_raises(self, pair: tuple[nn.Module, nn.Module]) -> None:
        """The last forward pass fails, after all that was changed has been changed."""

        def stop(step: str) -> None:
            if step == "drift":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tcnn.verify(*pair, randomise=True, progress=stop, **OPTIONS)

    @pytest.mark.parametrize("randomise", [True, False])
    @pytest.mark.parametrize("name", ["resnet18", "test_convnext", "test_byobnet"])
    def test_when_the_source_is_the_wrong_one(
        self, pair: tuple[nn.Module, nn.Module], name: str, randomise: bool
    ) -> None:
        wrong = timm.create_model(name)
        before = snapshot(wrong)
        with pytest.raises(RequestError) as caught:
            tcnn.verify(wrong, pair[1], randomise=randomise, **OPTIONS)
        assert "\n" not in str(caught.value)
        assert same_state(wrong, before)


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


def wants(model: nn.Module) -> dict[str, bool]:
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


class TestRefused:
    def test_a_source_that_lacks_the_layers(self, pair: tuple[nn.Module, nn.Module]) -> None:
        expected = r"^layer4\.0\.conv1: .* the source has nothing; is it the right source\?$"
        with pytest.raises(RequestError, match=expected):
            tcnn.verify(timm.create_model("test_convnext"), pair[1], **OPTIONS)

    def test_the_converted_model_as_its_own_source(self, pair: tuple[nn.Module, nn.Module]) -> None:
        with pytest.raises(RequestError, match="the source has GPSA2d"):
            tcnn.verify(pair[1], pair[1], **OPTIONS)

    def test_two_cnns(self, pair: tuple[nn.Module, nn.Module]) -> None:
        with pytest.raises(RequestError, match="has no GPSA layer: nothing to verify"):
            tcnn.verify(pair[0], pair[0], **OPTIONS)

    @pytest.mark.parametrize(
        "options", [{"tolerance_float32": 0}, {"batch_size": 0}, {"input_size": (0, 3)}, {"sise": 3}]
    )
    def test_a_wrong_option(self, pair: tuple[nn.Module, nn.Module], options: dict[str, object]) -> None:
        with pytest.raises(RequestError, match=f"^{next(iter(options))}"):
            tcnn.verify(*pair, **options)
