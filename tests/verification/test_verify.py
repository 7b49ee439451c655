"""Verification: the numbers it reports, and that what is equal passes."""

import math
import re
from typing import Any

import pytest
import torch
from nets import PlainNet, image, same_state, seeded_model, snapshot
from torch import nn

import tcnn
from tcnn.config import HARD_TEMPERATURE, VerificationConfig
from tcnn.errors import RequestError
from tcnn.models.running import at_temperature, gpsa_layers
from tcnn.verification.report import VerificationReport
from tcnn.verification.verify import compare_as_run

OPTIONS = {"input_size": (64, 96), "batch_size": 1}


@pytest.fixture(scope="module")
def report() -> VerificationReport:
    source = seeded_model("test_resnet")
    return tcnn.verify(source, tcnn.convert(source).model, randomise=True, **OPTIONS)


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

    def test_tells_what_it_is_doing(self, pair: tuple[nn.Module, nn.Module]) -> None:
        told: list[str] = []
        tcnn.verify(*pair, progress=told.append, **OPTIONS)
        assert told == ["float32", "float64", "what is run", "drift"]

    def test_says_on_what_it_looked(self, report: VerificationReport) -> None:
        assert report.images == "noise 1×3×64×96"
        assert report.statistics_randomised and report.seed == 0

    def test_is_the_same_again_and_differs_by_seed(self, pair: tuple[nn.Module, nn.Module]) -> None:
        first = tcnn.verify(*pair, randomise=True, **OPTIONS)
        torch.manual_seed(99)
        assert tcnn.verify(*pair, randomise=True, **OPTIONS) == first
        assert tcnn.verify(*pair, randomise=True, seed=1, float64=False, **OPTIONS).drift != first.drift

    def test_float64_can_be_left_out(self, pair: tuple[nn.Module, nn.Module]) -> None:
        assert [result.dtype for result in tcnn.verify(*pair, float64=False, **OPTIONS).passes] == ["float32"]

    def test_config_and_keywords_are_the_same(self, pair: tuple[nn.Module, nn.Module]) -> None:
        given: dict[str, Any] = {"seed": 3, "float64": False, **OPTIONS}
        assert tcnn.verify(*pair, VerificationConfig(**given)) == tcnn.verify(*pair, **given)

    def test_a_tolerance_can_be_too_tight(self, pair: tuple[nn.Module, nn.Module]) -> None:
        report = tcnn.verify(*pair, tolerance_float32=1e-12, **OPTIONS)
        assert not report.passed and report.passes[1].passed
        assert "in float32, expected at most 1e-12" in (report.failure() or "")

    def test_a_tolerance_can_be_met_to_the_last_bit(self, pair: tuple[nn.Module, nn.Module]) -> None:
        config = VerificationConfig(float64=False, **OPTIONS)
        images = image((32, 32))
        ran = compare_as_run(pair[1], images, config)
        found = tcnn.verify(*pair, config, images=images).passes[0]
        for result, again in (
            (ran, lambda config: compare_as_run(pair[1], images, config)),
            (found, lambda config: tcnn.verify(*pair, config, images=images).passes[0]),
        ):
            worst = max(result.logits.worst, *(layer.worst for layer in result.layers))
            assert again(config.model_copy(update={"tolerance_float32": worst})).passed
            assert not again(config.model_copy(update={"tolerance_float32": worst * (1 - 1e-12)})).passed

    def test_on_images_that_are_given(self, pair: tuple[nn.Module, nn.Module]) -> None:
        images = image((48, 64), batch=3)
        report = tcnn.verify(*pair, images=images, randomise=True)
        assert report.passed and report.images == "images 3×3×48×64"
        other = tcnn.verify(*pair, images=images + 1, randomise=True, float64=False)
        assert other.passed and other.drift != report.drift

    def test_images_with_values_that_are_no_numbers_are_refused(self, pair: tuple[nn.Module, nn.Module]) -> None:
        """They are not the conversion's fault."""
        images = image((48, 64), batch=3)
        images[2, 0, 0, 0] = torch.nan
        for compare in (lambda: tcnn.verify(*pair, images=images), lambda: tcnn.explain(*pair, images)):
            with pytest.raises(RequestError, match="found NaN or infinity in 1 of 3, first in number 3"):
                compare()

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

    @pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=pytest.mark.slow), torch.bfloat16])
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


class TestTemperature:
    def test_equivalence_is_measured_at_the_hard_limit_and_drift_where_the_model_stands(self) -> None:
        source = seeded_model("test_resnet")
        converted, _ = tcnn.convert(source, temperature=0.25)
        report = tcnn.verify(source, converted, randomise=True, **OPTIONS)
        assert report.passed and report.temperature == pytest.approx(HARD_TEMPERATURE)
        assert report.written is not None and report.written.temperature == 0.25
        assert 0 < report.written.logits.relative < report.drift.logits.relative
        assert {layer.position_temperature.item() for layer in gpsa_layers(converted).values()} == {0.25}

    def test_layers_that_differ_are_told_apart(self, pair: tuple[nn.Module, nn.Module]) -> None:
        first, second = gpsa_layers(pair[1]).values()
        first.set_temperature(0.25)
        report = tcnn.verify(*pair, randomise=True, **OPTIONS)
        assert report.passed and report.temperature == pytest.approx(HARD_TEMPERATURE)
        assert list(report.temperatures) == ["layer4.0.conv1", "layer4.0.conv2"]
        assert list(report.temperatures.values()) == pytest.approx([0.25, HARD_TEMPERATURE])
        assert report.drift.lowest is None and report.drift.range == "1"
        assert report.written is not None
        assert (report.written.lowest, report.written.temperature) == (pytest.approx(HARD_TEMPERATURE), 0.25)
        assert report.written.range == "0.02174 to 0.25" == report.range
        assert report.model_copy(update={"temperatures": {}}).range == "unknown"  # of a report of 0.1.0
        second.set_temperature(0.25)
        both = tcnn.verify(*pair, randomise=True, float64=False, **OPTIONS).written
        assert both is not None and both.lowest is None
        assert both.logits.relative != report.written.logits.relative, "each layer was at its own temperature"

    @pytest.mark.parametrize(("factor", "told"), [(1.005, False), (1.1, True)])
    def test_only_the_hard_limit_itself_needs_no_second_drift(
        self, pair: tuple[nn.Module, nn.Module], factor: float, told: bool
    ) -> None:
        """It is known up to a percent, and whether or not float64 is compared, too."""
        for layer in gpsa_layers(pair[1]).values():
            layer.set_temperature(HARD_TEMPERATURE * factor)
        written = tcnn.verify(*pair, float64=False, **OPTIONS).written
        assert (written is not None) == told
        assert written is None or written.temperature == pytest.approx(HARD_TEMPERATURE * factor)

    @pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
    @pytest.mark.parametrize("number", [0, 1])
    def test_none_that_is_no_temperature_is_accepted(
        self, pair: tuple[nn.Module, nn.Module], value: float, number: int
    ) -> None:
        list(gpsa_layers(pair[1]).values())[number].gate_temperature.fill_(value)
        name = f"layer4.0.conv{number + 1}"
        with pytest.raises(
            RequestError, match=rf"^{re.escape(name)}: expected a gate_temperature above 0, found"
        ) as caught:
            tcnn.verify(*pair, **OPTIONS)
        assert "\n" not in str(caught.value)

    def test_is_put_back_one_by_one(self, pair: tuple[nn.Module, nn.Module]) -> None:
        first, second = gpsa_layers(pair[1]).values()
        first.set_temperature(0.5)
        second.set_temperature(0.125)
        with pytest.raises(ZeroDivisionError), at_temperature(pair[1], 1.0):
            assert first.position_temperature.item() == second.position_temperature.item() == 1
            raise ZeroDivisionError
        assert (first.position_temperature.item(), second.position_temperature.item()) == (0.5, 0.125)
