"""Resume points that take long to write are left out at an epoch's end, and nothing is lost by that."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import TwoConvs, colours, run, seeded

from tcnn.errors import Stopped
from tcnn.training.runs import resume
from tcnn.training.runs.callbacks import Progress
from tcnn.training.runs.resume import points, read_point
from tcnn.training.updates import learner

EPOCHS = 3


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Epoch and step of each point, on a disk that takes 0.6 s for one, which no epoch here is worth."""
    found: list[tuple[int, int]] = []
    save = resume.save_point

    def slowly(directory: Path, position: resume.Position, *rest: Any) -> Path:
        time.sleep(0.6)
        found.append((position.epoch, position.step))
        return save(directory, position, *rest)

    monkeypatch.setattr(resume, "save_point", slowly)
    monkeypatch.setattr(learner, "LEAST", 1000)
    yield found


def test_a_quick_point_is_written_before_and_after_every_validation(tmp_path: Path) -> None:
    result = run(seeded(TwoConvs), colours(tmp_path / "photos"), tmp_path / "run", epochs=EPOCHS, keep=99)
    steps = result.updates // EPOCHS
    found = {(p.epoch, p.step) for p in (read_point(path).position for path in points(tmp_path / "run" / "resume"))}
    assert found == {(0, 1), *((epoch, steps) for epoch in range(EPOCHS)), (1, 0), (2, 0), (3, 0)}


def test_a_slow_point_is_left_out(written: list[tuple[int, int]], tmp_path: Path) -> None:
    """After the first step, in case one takes hours, and at the end, so that the run is known to be finished."""
    photos = colours(tmp_path / "photos")
    run(seeded(TwoConvs), photos, tmp_path / "run", epochs=EPOCHS)
    assert written == [(0, 1), (EPOCHS, 0)]
    again = run(seeded(TwoConvs), photos, tmp_path / "run", epochs=EPOCHS, resume=True)
    assert again.epochs == EPOCHS
    assert {*written} == {(0, 1), (EPOCHS, 0)}, "no step was left to be trained"


def test_a_stop_in_a_validation_loses_nothing(written: list[tuple[int, int]], tmp_path: Path) -> None:
    """No point stands before the validation here, so the stop writes one; resumed, the run ends as a whole one does."""
    photos = colours(tmp_path / "photos", images=30)  # three batches for a validation
    whole = run(seeded(TwoConvs), photos, tmp_path / "whole", epochs=EPOCHS)
    steps = whole.updates // EPOCHS
    heard: list[str] = []

    def late(now: Progress) -> None:
        if now.phase == "validating" and now.epoch == 2:
            heard.append(now.phase)

    written.clear()
    options: dict[str, Any] = {"epochs": EPOCHS, "stop": lambda: bool(heard)}
    with pytest.raises(Stopped):
        run(seeded(TwoConvs), photos, tmp_path / "run", report=late, **options)
    assert written == [(0, 1), (1, steps)]
    heard.clear()
    again = run(seeded(TwoConvs), photos, tmp_path / "run", resume=True, **options)
    assert again.updates == whole.updates
    expected = load_file(whole.last)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in load_file(again.last).items())


def test_a_stop_writes_the_point_for_which_there_was_no_room(tmp_path: Path, file_size_limit: Any) -> None:
    """It counted as written, so that a stop in the validation right after it lost the epoch."""
    full, heard = ExitStack(), list[str]()

    def report(now: Progress) -> None:
        if now.phase == "validating":
            full.close()
            heard.append(now.phase)
        elif now.phase == "training" and now.step == now.steps:
            full.enter_context(file_size_limit(5_000))

    photos = colours(tmp_path / "photos", images=30)
    with full, pytest.raises(Stopped):
        run(seeded(TwoConvs), photos, tmp_path / "run", report=report, stop=lambda: bool(heard), epochs=EPOCHS)
    newest, first = (read_point(path).position for path in points(tmp_path / "run" / "resume"))
    assert ((newest.epoch, newest.step), (first.epoch, first.step)) == ((0, newest.steps), (0, 1))


def test_points_that_were_asked_for_are_written_however_slow(written: list[tuple[int, int]], tmp_path: Path) -> None:
    """Three steps an epoch: after the first of the run, and after every second."""
    run(seeded(TwoConvs), colours(tmp_path / "photos"), tmp_path / "run", epochs=2, checkpoint_steps=2)
    assert written == [(0, 1), (0, 2), (1, 1), (1, 3), (2, 0)]
