"""Errors of tensors worked out by hand, and of models with several outputs: the worst one counts, and is named."""

import math
from typing import Any

import pytest
import torch
from nets import image
from torch import Tensor, nn

import tcnn
from tcnn.errors import VerificationError
from tcnn.models.difference import errors, top1_agreement
from tcnn.models.outputs import separate


def test_of_two_vectors() -> None:
    found = errors(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]))
    assert found.max_abs == 0.5
    assert found.relative == pytest.approx(0.5 / 5)
    assert found.max_relative == pytest.approx(0.5 / 4)
    assert found.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))
    assert found.worst == found.max_relative


def test_of_equals() -> None:
    x = image((3, 3))
    found = errors(x, x.clone())
    assert (found.max_abs, found.relative, found.max_relative) == (0, 0, 0)
    assert found.cosine == pytest.approx(1)


def test_is_taken_in_float64() -> None:
    """In float32 the difference of these two would be lost in the sum of squares."""
    a = torch.full((4096,), 4096.0, dtype=torch.float64)
    assert errors(a, a + 1e-9).max_abs == pytest.approx(1e-9, rel=1e-2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["reference", "other", "elsewhere"])
def test_of_what_is_not_finite_in_one_only(value: float, side: str) -> None:
    good, bad = torch.ones(3), torch.tensor([1.0, value, 1.0])
    pair = {"reference": (bad, good), "other": (good, bad), "elsewhere": (bad, bad.roll(1))}[side]
    assert errors(*pair).worst == errors(*pair).max_abs == math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_in_both_is_left_out_of_the_norm(value: float) -> None:
    assert errors(torch.tensor([3.0, value, 4.0]), torch.tensor([3.0, value, 4.5])).relative == pytest.approx(0.1)


def test_infinite_numbers_of_another_sign_or_only_nan_are_no_equals() -> None:
    low, nan = torch.full((2,), -math.inf), torch.full((2,), math.nan)
    assert errors(low, low).worst == 0
    assert {errors(low, -low).worst, errors(nan, nan).worst, errors(nan, low).worst} == {math.inf}


@pytest.mark.parametrize("fill", [-1e4, -1e9, -3e38, 1e9])
def test_what_is_far_greater_is_measured_apart(fill: float) -> None:
    a = torch.tensor([fill, 3.0, 0.0, 4.0, fill], dtype=torch.float64)
    assert errors(a, a + torch.tensor([0, 0, 0, 0.5, 0]), by_scale=True).relative == pytest.approx(0.1)
    assert errors(a, a * torch.tensor([1, 1, 1, 1, 1.5]), by_scale=True).worst == pytest.approx(0.5)


def test_saturated_probabilities_and_zeros_are_no_scale_of_their_own() -> None:
    a = torch.tensor([1.0, 1e-9, 0.0])
    assert errors(a, a + torch.tensor([0, 1e-9, 1e-9]), by_scale=True).worst < 1e-8
    large = torch.tensor([2e6, 0.0, 3e5])
    assert errors(large, large + torch.tensor([0, 1e-3, 0]), by_scale=True).worst < 1e-8


def test_the_greatest_numbers_do_not_overflow() -> None:
    a = torch.full((4,), torch.finfo(torch.float64).min, dtype=torch.float64)
    assert errors(a, a).worst == 0 and errors(a, a / 2).relative == pytest.approx(0.5)


def test_of_complex_numbers_and_of_other_kinds() -> None:
    a = torch.tensor([3 + 4j, 0j])
    assert errors(a, a).worst == 0
    assert errors(a, torch.tensor([3 + 4.5j, 0j])).relative == pytest.approx(0.1)
    assert errors(a, a.real).worst == math.inf
    mask = torch.tensor([True, False])
    assert errors(mask, mask).worst == 0 and errors(mask, ~mask).max_relative == 1


def test_of_different_shapes() -> None:
    assert errors(torch.ones(2, 3), torch.ones(2, 4)).worst == math.inf


def test_beside_a_silent_reference() -> None:
    zero = torch.zeros(3)
    assert errors(zero, zero).worst == 0
    assert errors(zero, torch.tensor([0.0, 1e-30, 0.0])).worst == math.inf


class Several(nn.Module):
    """Logits beside other outputs, as told."""

    def __init__(self, beside: Any) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8, 4)
        self.beside = beside

    def forward(self, x: Tensor) -> Any:
        z = self.conv(self.stem(x))
        return self.beside(x, z, self.head(z.mean((2, 3))))


def masked(x: Tensor, z: Tensor, logits: Tensor) -> Tensor:
    return torch.cat([logits[:, :2], torch.full_like(logits[:, 2:], -1e9)], 1)


BESIDE = {
    "a large mask": (lambda x, z, logits: {"logits": logits, "mask": torch.full_like(x[:, 0], -1e9)}, "logits"),
    "hidden maps": (lambda x, z, logits: (logits, [x * 1e6, x.mean()]), "0"),
    "in one tensor": (masked, None),
    "not finite": (lambda x, z, logits: torch.where(torch.arange(4) == 1, -math.inf, logits), None),
    "booleans": (lambda x, z, logits: {"logits": logits, "inside": x[:, 0] < 10, "index": x[0, 0, 0].long()}, "logits"),
    "complex": (lambda x, z, logits: torch.complex(logits, -logits), None),
}


@pytest.mark.parametrize("beside", BESIDE)
@torch.no_grad()
def test_an_error_in_one_output_is_seen_beside_any_other_and_named(beside: str) -> None:
    torch.manual_seed(0)
    pack, name = BESIDE[beside]
    source = Several(pack).eval()
    model = tcnn.convert(source, input_size=16).model
    report = tcnn.verify(source, model)
    assert report.passed, report.failure()
    assert report.passes[0].top1_agreement == 1 and report.drift.logits.worst > 1e-3
    assert tcnn.fold(model, source=source).report.complete
    model.head.weight.mul_(0.99)
    report = tcnn.verify(source, model)
    told = str(report.failure())
    assert not report.passed and all(one.logits.output == name for one in report.passes)
    assert 1e-4 < report.passes[0].logits.worst < 0.2 and (name is None or f" in the output {name} in float32" in told)
    found = tcnn.explain(source, model, image((16, 16)))
    assert not found.equal and found.passes[1].first == "head" and found.worst is not None


def test_folding_keeps_every_output_within_the_error() -> None:
    torch.manual_seed(0)
    source = Several(lambda x, z, logits: {"logits": logits, "features": 100 * x}).eval()
    model = tcnn.convert(source, input_size=16).model
    model.conv.set_temperature(0.3)
    with pytest.raises(VerificationError, match=r"changes the logits by .* in the output logits, expected at most 1"):
        tcnn.fold(model, max_error=1e-4, source=source)
    report = tcnn.fold(model, max_error=0.9, source=source).report
    assert report.logits.output == "logits" and " in the output logits" in str(report)


def test_agreement_is_that_of_the_worst_output() -> None:
    scores = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    one = separate({"scores": scores, "grid": torch.tensor([[False, True]] * 2)}, 2)
    other = separate({"scores": scores.flip(0), "grid": torch.tensor([[False, True]] * 2)}, 2)
    assert top1_agreement(one, one) == 1 and top1_agreement(one, other) == 0


def test_an_output_that_is_nan_everywhere_proves_nothing_and_is_named() -> None:
    source = Several(lambda x, z, logits: {"logits": logits, "features": z * math.nan}).eval()
    report = tcnn.verify(source, tcnn.convert(source, input_size=16).model)
    told = "; the source's output features is NaN everywhere: nothing can be compared"
    assert not report.passed and str(report.failure()).endswith(told)
