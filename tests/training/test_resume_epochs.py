"""A run that is resumed with epochs of another length, or with another epoch to be converted after."""

from pathlib import Path
from typing import Any

import pytest
from tiny_runs import TwoConvs, colours, run, seeded

import tcnn
from tcnn.errors import RequestError, Stopped
from tcnn.models.running import gpsa_layers
from tcnn.training.runs.callbacks import Progress
from tcnn.training.runs.resume import Position
from tcnn.training.runs.rundir import RunDirectory

SCHEDULED = ("lr", "temperature", "gate_temperature")
"""What the rows of epochs have of the schedules."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("colours"))


def begin(data: Path, out: Path, steps: int, **options: Any) -> None:
    """A run that is stopped after so many steps, of three an epoch."""
    done: list[int] = []

    def report(now: Progress) -> None:
        if now.phase == "training":
            done.append(now.step)

    with pytest.raises(Stopped):
        run(seeded(TwoConvs), data, out, report=report, stop=lambda: len(done) >= steps - 1, **options)


def go_on(data: Path, out: Path, **options: Any) -> Any:
    return run(seeded(TwoConvs), data, out, resume=True, allow_changes=True, quiet=True, **options)


@pytest.mark.parametrize(
    ("before", "steps", "after"),
    [
        (Position(epoch=2, step=3, steps=5, updates=13), 5, (3, 13)),
        (Position(epoch=2, step=3, steps=5, updates=13), 2, (1, 5)),
        (Position(epoch=2, step=3, steps=5, updates=13), 10, (6, 26)),
        (Position(epoch=2, step=5, steps=5, updates=15), 2, (2, 6)),
        (Position(epoch=0, step=0, steps=5), 2, (0, 0)),
        (Position(epoch=2, step=3, updates=13), 2, (1, 5)),
        (Position(epoch=0, step=3, updates=3), 5, (3, 3)),
        (Position(epoch=0, step=3, updates=3), 2, (2, 2)),
    ],
)
def test_an_epoch_keeps_the_share_that_is_done(before: Position, steps: int, after: tuple[int, int]) -> None:
    """Its end stays its end; in points of 0.2.0 the steps of an epoch are those of the epochs that are over."""
    found = before.resized(steps)
    assert (found.step, found.scheduled) == after
    assert (found.epoch, found.updates) == (before.epoch, before.updates), "what is done stays done"


def test_the_conversion_keeps_its_epoch() -> None:
    assert Position(epoch=3, step=1, steps=3, updates=10, converted_at=6).resized(5).converted_at == 10


@pytest.mark.parametrize("done", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{}, pytest.param({"convert_at": 1}, marks=pytest.mark.slow)], ids=str)
def test_schedules_follow_epochs(data: Path, tmp_path: Path, done: int, options: dict[str, Any]) -> None:
    """They are those of a run with two steps an epoch from the beginning; the rest was trained at the last rate."""
    options = {"epochs": 4, "anneal_epochs": 2, **options}
    run(seeded(TwoConvs), data, tmp_path / "whole", batch_size=12, **options)
    begin(data, tmp_path / "run", done, **options)
    result = go_on(data, tmp_path / "run", batch_size=12, **options)
    whole, found = (RunDirectory(tmp_path / name).rows("epoch") for name in ("whole", "run"))
    assert [row["epoch"] for row in found] == [0, 1, 2, 3]
    for one, other in list(zip(whole, found, strict=True))[(done - 1) // 3 :]:
        assert [one[name] for name in SCHEDULED] == [other[name] for name in SCHEDULED], one["epoch"]
    assert result.updates == found[-1]["updates"] == {2: 9, 3: 9, 7: 10}[done], "those that were done"


def test_the_images_of_an_epoch_stay_its_fraction(data: Path, tmp_path: Path) -> None:
    """Epochs are as many as the fraction goes into one, and could not be told apart from others."""
    begin(data, tmp_path / "run", 2)
    with pytest.raises(RequestError, match=r"fraction: expected 1 as before, .* found 0\.5; give the same one$"):
        go_on(data, tmp_path / "run", fraction=0.5, batch_size=4)


def test_a_conversion_that_was_due_earlier_is_made_at_once(data: Path, tmp_path: Path) -> None:
    """Nothing was converted, and the run ended with its CNN."""
    begin(data, tmp_path / "run", 8, convert_at=3, epochs=4)
    found = go_on(data, tmp_path / "run", convert_at=1, epochs=4, conversion={"target": "last"})
    assert found.layers == len(gpsa_layers(tcnn.load(found.last, seeded(TwoConvs)))) == 1
