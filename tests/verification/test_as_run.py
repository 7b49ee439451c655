"""What users run is verified beside the attention: a fast way that computes something else does not pass."""

from collections.abc import Callable

import pytest
import torch
from nets import relative_error, same_state, seeded_model, snapshot, with_random_statistics
from test_verify_differences import Chaotic
from torch import Tensor, nn

import tcnn
from tcnn.layers import GPSA2d
from tcnn.layers.backends import convolution
from tcnn.layers.backends.selection import backend
from tcnn.models.running import gpsa_layers
from tcnn.verification.report import VerificationReport

OPTIONS = {"input_size": (64, 96), "batch_size": 1}


@pytest.fixture(scope="module")
def made() -> tuple[nn.Module, nn.Module]:
    source = with_random_statistics(seeded_model("test_resnet"))
    return source, tcnn.convert(source).model


@pytest.fixture
def break_what_is_run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """From now on every way to compute a layer but the attention of the formula, in parts, is off by a factor."""

    def break_it(factor: float, layer: GPSA2d | None = None) -> None:
        whole = GPSA2d.forward

        def forward(self: GPSA2d, x: Tensor) -> Tensor:
            wrong = backend() != "fused" and layer in (None, self)
            return whole(self, x) * factor if wrong else whole(self, x)

        monkeypatch.setattr(GPSA2d, "forward", forward)

    return break_it


def test_equals_are_reported_apart(pair: tuple[nn.Module, nn.Module]) -> None:
    report = tcnn.verify(*pair, randomise=True, **OPTIONS)
    run = report.as_run
    assert report.passed and run is not None and run.passed
    assert (run.backend, run.dtype, run.tolerance, run.note) == ("auto", "float32", 1e-5, None)
    assert [layer.name for layer in run.layers] == ["layer4.0.conv1", "layer4.0.conv2"]
    assert 0 < run.logits.worst <= 1e-5 and run.top1_agreement == 1, "a convolution rounds otherwise than attention"
    assert all(layer.activation is not None and layer.random != layer.activation for layer in run.layers)


@pytest.mark.parametrize("temperature", [None, pytest.param(0.25, marks=pytest.mark.slow), 1.0])
def test_a_way_that_is_wrong_does_not_pass(
    pair: tuple[nn.Module, nn.Module], break_what_is_run: Callable[..., None], temperature: float | None
) -> None:
    source, converted = pair
    for layer in gpsa_layers(converted).values():
        if temperature is not None:
            layer.set_temperature(temperature)
    x = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        right = converted.eval()(x)
        break_what_is_run(-2.0)
        assert relative_error(right, converted(x)) > 0.01
    report = tcnn.verify(source, converted, randomise=True, **OPTIONS)
    assert all(result.passed for result in report.passes), "the attention is what it was"
    assert not report.passed and report.as_run is not None and not report.as_run.passed
    failure = report.failure() or ""
    assert failure.startswith("what is run (auto) differs from the attention by ") and "\n" not in failure
    assert "in float32, expected at most 1e-05; worst layer layer4.0.conv" in failure


def test_a_layer_whose_error_does_not_reach_the_logits_is_named(
    pair: tuple[nn.Module, nn.Module], break_what_is_run: Callable[..., None]
) -> None:
    source, converted = pair
    for model in pair:
        nn.init.zeros_(model.layer4[0].bn2.weight)
        nn.init.zeros_(model.layer4[0].bn2.bias)
    break_what_is_run(1.01, converted.layer4[0].conv2)
    run = tcnn.verify(source, converted, **OPTIONS).as_run
    assert run is not None and not run.passed and run.logits.worst <= 1e-5
    healthy, damaged = run.layers
    assert healthy.worst <= 1e-5 < 5e-3 < damaged.worst


def test_leaves_no_mark(pair: tuple[nn.Module, nn.Module], break_what_is_run: Callable[..., None]) -> None:
    before = [snapshot(model) for model in pair]
    break_what_is_run(3.0)
    tcnn.verify(*pair, randomise=True, **OPTIONS)
    assert all(same_state(model, state) for model, state in zip(pair, before, strict=True))


def test_the_environment_says_what_is_run(pair: tuple[nn.Module, nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCNN_ATTENTION", "dense")
    run = tcnn.verify(*pair, randomise=True, **OPTIONS).as_run
    assert run is not None and run.passed and run.backend == "dense"


def test_the_sources_own_rounding_is_allowed_for() -> None:
    """Where float32 cannot represent the function at all, two right ways differ as well."""
    torch.manual_seed(0)
    source = Chaotic()
    report = tcnn.verify(source, tcnn.convert(source, input_size=(32, 32)).model, input_size=(32, 32))
    assert report.as_run is not None and report.as_run.logits.worst > 1e-5
    assert report.passed and "source's own rounding" in (report.as_run.note or "")


def test_a_report_from_before_is_still_read(pair: tuple[nn.Module, nn.Module]) -> None:
    said = tcnn.verify(*pair, randomise=True, **OPTIONS)
    old = said.model_dump(mode="json", exclude={"as_run", "temperatures"})
    for drift in filter(None, (old["drift"], old["written"])):
        del drift["lowest"]
    read = VerificationReport.model_validate(old)
    assert read.as_run is None and read.temperatures == {} and read.passed and read.failure() is None
    assert VerificationReport.model_validate_json(said.model_dump_json()) == said


def test_the_shortcut_itself_is_verified_and_stands_in_for_no_attention(
    pair: tuple[nn.Module, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The convolution that an untrained layer is computed as, made wrong on purpose: the attention is found right."""
    right = convolution.convolve
    monkeypatch.setattr(convolution, "convolve", lambda *given: -2 * right(*given))
    report = tcnn.verify(*pair, randomise=True, **OPTIONS)
    assert all(result.passed for result in report.passes)
    assert not report.passed and report.as_run is not None and not report.as_run.passed
