"""Networks whose first parameter is no weight: a count of steps, or complex numbers, before those of layers."""

from pathlib import Path

import pytest
import tiny_runs
import torch
from nets import relative_error
from torch import Tensor, nn

import tcnn
from tcnn.models.running import in_dtype, weights_dtype
from tcnn.workflows.fold_file import measure_speed

FIRST = {"whole": torch.tensor(2), "complex": torch.full((8,), 0.6 + 0.8j)}


class Counted(nn.Module):
    """Its own parameter takes part in its arithmetic, and parameters of a module come before those of its children."""

    def __init__(self, first: Tensor) -> None:
        super().__init__()
        self.first = nn.Parameter(first.clone(), requires_grad=False)
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.last(self.norm(self.stem(x)).relu()).mean((2, 3))
        if self.first.is_complex():
            return self.head(((pooled + 0j) @ self.first.diag()).real)  # which takes numbers of one precision only
        return self.head(pooled * self.first)


@pytest.fixture(params=FIRST)
def source(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return Counted(FIRST[request.param]).eval()


@pytest.mark.parametrize("randomise", [True, False])
def test_is_verified(source: nn.Module, randomise: bool) -> None:
    report = tcnn.verify(source, tcnn.convert(source, input_size=16).model, randomise=randomise)
    assert report.passed, report.failure()
    assert report.drift.logits.relative > 0


def test_complex_numbers_are_as_precise_as_the_others() -> None:
    wide = in_dtype(Counted(FIRST["complex"]), torch.float64)
    assert (wide.first.dtype, weights_dtype(wide)) == (torch.complex128, torch.float64)
    again = in_dtype(wide, torch.float32)
    assert (again.first.dtype, weights_dtype(again)) == (torch.complex64, torch.float32)
    counted = in_dtype(Counted(FIRST["whole"]), torch.float64)
    assert counted.first.dtype == torch.int64


def test_is_explained_and_fused(source: nn.Module) -> None:
    model, _ = tcnn.convert(source, input_size=16)
    assert not model.training
    images = torch.randn(2, 3, 16, 16)
    assert tcnn.explain(source, model, images).equal
    with torch.no_grad():
        assert relative_error(tcnn.fuse(model)(images), source(images)) < 1e-5


def test_is_folded_pruned_and_timed(source: nn.Module) -> None:
    model, _ = tcnn.convert(source, input_size=16, temperature=0.3)
    with torch.no_grad():
        model.last.attention_centers[0] = 40.0
    folded, report = tcnn.fold(model, max_error=0.99, source=source)
    assert report.logits.worst <= 0.99
    pruned, _ = tcnn.prune(model, source=source, config=tcnn.VerificationConfig(input_size=(16, 16)))
    assert measure_speed(folded, pruned).device == "cpu"


def test_is_fine_tuned(source: nn.Module, tmp_path: Path) -> None:
    data = tiny_runs.colours(tmp_path / "data")
    found = tiny_runs.run(source, data, tmp_path / "run", epochs=1)
    assert torch.equal(tcnn.load(found.best, source=source).first, source.first)
