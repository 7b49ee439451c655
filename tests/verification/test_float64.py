"""Models that do not run in float64, as one with `.float()` in its forward pass: told so, and compared in float32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from torch import Tensor, nn

import tcnn
from tcnn.config import VerificationConfig
from tcnn.errors import RequestError
from tcnn.models.running import NotInFloat64

Run = Callable[..., Any]
IN_FLOAT32 = VerificationConfig(float64=False)
SAID = (
    r"^Linear32 does not run in float64 \(mat1 and mat2 must have the same dtype, but got Float and Double\), since "
    r"its forward pass makes numbers of another precision; give float64=False to compare in float32 only$"
)


class Images32(tiny_runs.TwoConvs):
    """Whatever it is given, its first convolution gets float32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


class Logits32(tiny_runs.TwoConvs):
    """Runs in float64, and rounds what it returns."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).float()


def pair(kind: type[nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    source = kind().eval()
    return source, tcnn.convert(source, input_size=32).model


CALLS: dict[str, Callable[[nn.Module, nn.Module, bool], Any]] = {
    "verify": lambda source, model, wide: tcnn.verify(source, model, float64=wide).passed,
    "fold": lambda source, model, wide: (
        tcnn.fold(model, source=source, config=None if wide else IN_FLOAT32).report.complete
    ),
    "explain": lambda source, model, wide: tcnn.explain(source, model, torch.randn(2, 3, 32, 32), float64=wide).equal,
}


@pytest.mark.parametrize("call", CALLS)
def test_is_told_and_float32_is_the_way_out(call: str) -> None:
    source, model = pair(tiny_runs.Linear32)
    with pytest.raises(RequestError, match=SAID):
        CALLS[call](source, model, True)
    assert CALLS[call](source, model, False)


def test_other_words_of_pytorchs_are_understood() -> None:
    source, model = pair(Images32)
    with pytest.raises(NotInFloat64, match=r"^Images32 does not run in float64 \(Input type"):
        tcnn.verify(source, model)
    with pytest.raises(RequestError, match=r"^Images32 does not run on an image of 1×32×32 .*channels"):
        tcnn.verify(source, model, images=torch.randn(1, 1, 32, 32), float64=False)


def test_what_returns_float32_has_its_tolerance() -> None:
    source, model = pair(Logits32)
    with torch.no_grad():
        model.head.bias += 1e-7
    report = tcnn.verify(source, model, batch_size=8)
    assert report.passed and 1e-10 < report.passes[1].logits.worst < 1e-5
    assert report.passes[1].note == "the model returns float32, so its tolerance applies"


def test_heads_are_pruned() -> None:
    source, model = pair(tiny_runs.Linear32)
    model.last.set_temperature(0.3)
    with torch.no_grad():
        model.last.attention_centers[0] = 40.0
    with pytest.raises(RequestError, match=SAID):
        tcnn.prune(model, source=source)
    report = tcnn.prune(model, source=source, config=IN_FLOAT32).report
    assert len(report.pruned) == 1 and "in float32)" in str(report)


def test_is_fine_tuned(tmp_path: Path) -> None:
    source, _ = pair(tiny_runs.Linear32)
    found = tiny_runs.run(source, tiny_runs.colours(tmp_path / "data"), tmp_path / "run", epochs=1)
    assert Path(found.best).is_file()
