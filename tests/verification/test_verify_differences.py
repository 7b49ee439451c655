"""Verification fails what is different and names where: one weight, one gate, one pixel of padding."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from nets import seeded_model
from sampled import crossed
from torch import Tensor, nn

import tcnn
from tcnn.config.base import ErrorStats
from tcnn.layers import GPSA2d
from tcnn.verification.judging import allow_for_rounding
from tcnn.verification.report import DtypePass

OPTIONS = {"input_size": (64, 96), "batch_size": 1}
DAMAGED = "layer4.0.conv2"


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
    @pytest.mark.parametrize(
        ("damage", "randomise"),
        crossed(
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
            [True, False],
            3,
        ),
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
        told = "; every converted layer is within 1e-05, so what differs is outside of them, or adds up: tcnn.explain "
        assert told in str(report.failure()) and "worst layer" not in str(report.failure())

    def test_the_worst_layer_is_that_of_the_largest_error(self, pair: tuple[nn.Module, nn.Module]) -> None:
        """Be it on random inputs or on the activations; of what is run alone nothing else can differ."""
        report = tcnn.verify(*pair, **OPTIONS)
        assert report.failure() is None and report.as_run is not None
        first, second = report.passes[0].layers
        wrong = second.random.model_copy(update={"relative": 0.5})
        layers = (first, second.model_copy(update={"activation": wrong}))
        failed = report.passes[0].model_copy(update={"passed": False, "layers": layers})
        told = str(report.model_copy(update={"passes": (failed,)}).failure())
        assert told.endswith(f"; worst layer {second.name} at 5.00e-01")
        run = report.as_run.model_copy(update={"passed": False})
        told = str(report.model_copy(update={"as_run": run}).failure())
        assert told.endswith("; every converted layer is within 1e-05, and their errors add up")

    def test_a_source_that_is_not_finite_proves_nothing(self) -> None:
        source = seeded_model("test_resnet")
        with torch.no_grad():
            source.fc.weight[0, 0] = math.nan
        report = tcnn.verify(source, tcnn.convert(source).model, **OPTIONS)
        assert not report.passed
        assert "; fc.weight of the source holds NaN or infinite weights: nothing can be" in str(report.failure())

    def test_a_layer_that_never_runs_is_not_verified(self) -> None:
        class OnlyLarge(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.stem = nn.Conv2d(3, 4, 4, stride=4)
                self.a, self.b, self.c = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))

            def forward(self, x: Tensor) -> Tensor:
                large = x.shape[-1] >= 32
                x = self.a(self.stem(x))
                return (self.c(self.b(x)) if large else x).mean((2, 3))

        source = OnlyLarge()
        converted, report = tcnn.convert(source, input_size=(32, 32))
        assert [layer.name for layer in report.layers] == ["a", "b", "c"]
        assert tcnn.verify(source, converted, input_size=(32, 32)).passed
        blind = tcnn.verify(source, converted, input_size=(28, 28))
        assert not blind.passed
        assert all(result.note == "never ran: b, c" for result in blind.passes)

    def test_other_classes(self, pair: tuple[nn.Module, nn.Module]) -> None:
        report = tcnn.verify(seeded_model("test_resnet", num_classes=7), pair[1], **OPTIONS)
        assert not report.passed and report.passes[0].logits.worst == math.inf


def shaken(x: Tensor, times: int) -> Tensor:
    """The logistic map, which doubles every error at each turn."""
    x = x.sigmoid()
    for _ in range(times):
        x = 3.99 * x * (1 - x)
    return x


class Chaotic(nn.Module):
    """A function that float32 cannot represent: its own logits there are some 5e-3 from those in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 4, stride=4)
        self.conv = nn.Conv2d(64, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return shaken(self.conv(shaken(self.stem(x), 8)).flatten(1), 10)


class TestRounding:
    """What the source's own rounding does is not held against the conversion, where float64 proves it equal."""

    @pytest.fixture
    def chaotic(self) -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(0)
        source = Chaotic()
        return source, tcnn.convert(source, input_size=(32, 32)).model

    def test_is_allowed_for_and_said(self, chaotic: tuple[nn.Module, nn.Module]) -> None:
        report = tcnn.verify(*chaotic, input_size=(32, 32))
        single, double = report.passes
        assert report.passed and report.failure() is None
        assert single.logits.worst > 1e-5 >= max(layer.random.worst for layer in single.layers)
        assert single.note is not None and "source's own rounding" in single.note
        assert double.logits.worst <= 1e-10 and double.note is None

    def test_is_not_allowed_for_without_the_proof_in_float64(self, chaotic: tuple[nn.Module, nn.Module]) -> None:
        report = tcnn.verify(*chaotic, input_size=(32, 32), float64=False)
        assert not report.passed and "in float32, expected at most 1e-05" in (report.failure() or "")

    def test_hides_no_difference(self, chaotic: tuple[nn.Module, nn.Module]) -> None:
        """A stem that is off by a millionth disappears in float32's noise here, but not in float64."""
        source, converted = chaotic
        with torch.no_grad():
            converted.stem.weight *= 1 + 1e-6
        report = tcnn.verify(source, converted, input_size=(32, 32))
        assert not report.passed and not any(result.passed for result in report.passes)

    @pytest.mark.parametrize(
        ("rounding", "allowed"),
        [(0.001, True), (0.001 * (1 - 1e-12), False), (0.02, False), (math.inf, False), (math.nan, False)],
    )
    def test_is_allowed_for_up_to_twice(self, rounding: float, allowed: bool) -> None:
        """The source's own rounding, to the last bit; one that is not finite, or no rounding, allows nothing."""
        off = ErrorStats(max_abs=0.002, relative=0.002, max_relative=0.001, cosine=1.0)
        single = DtypePass(
            dtype="float32", tolerance=1e-5, logits=off, top1_agreement=1.0, layers=(), passed=False, note=None
        )
        double = single.model_copy(update={"dtype": "float64", "passed": True})
        found = allow_for_rounding(single, double, rounding)
        assert found.passed == allowed and (found.note is not None) == allowed
