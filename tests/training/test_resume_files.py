"""Resume points as files: whole or absent, the newest that can be read, and none lost to a full disk."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_runs import Normed, TwoConvs, colours, run, seeded, tiny, trained
from torch import nn

import tcnn
from tcnn.errors import CheckpointError, RequestError, StorageError
from tcnn.training.recipe.optim import create_optimizer
from tcnn.training.runs.resume import Position, latest_point, points, read_point, restore, save_point
from tcnn.training.runs.rundir import RunDirectory


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("colours"))


def save(directory: Path, updates: int, keep: int = 2, **options: Any) -> Path:
    model, optimizer = trained(**options)
    return save_point(directory, Position(updates=updates, step=updates), model, optimizer, None, {}, keep)


def test_the_position_comes_back(tmp_path: Path) -> None:
    position = Position(
        epoch=3, step=7, steps=8, updates=31, converted_at=20, loss_sum=0.1 + 0.2, images=56, best=2 / 3, best_epoch=1,
        unreadable=["a b.png", "é.png"], chunk=4, finished=True,
    )  # fmt: skip
    model, optimizer = trained()
    path = save_point(tmp_path, position, model, optimizer, None, {}, 2)
    assert read_point(path).position == position
    assert path.name == "step-000000031-00003-0000007.safetensors"


def test_no_pickle_and_nothing_else(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    with safe_open(path, "pt") as file:
        assert file.metadata()["tcnn_version"] == tcnn.__version__
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert set(load_file(path)) > {"model.head.bias", "optimizer.head.bias.exp_avg", "optimizer.head.bias.step"}


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    saved = [save(tmp_path, updates, keep) for updates in (2, 9, 10, 100)]
    assert points(tmp_path) == saved[::-1][:keep]


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "short": content[:-100], "text": b"no safetensors", "head": content[:50]}[how])


@pytest.mark.parametrize("how", ["empty", "short", "text", "head"])
def test_a_broken_point_falls_back_to_the_one_before(tmp_path: Path, how: str) -> None:
    first, second = save(tmp_path, 1), save(tmp_path, 2)
    damage(second, how)
    point, complaints = latest_point(tmp_path)
    assert point is not None
    assert point.path == first
    assert len(complaints) == 1
    assert complaints[0] == f"{second}: not a whole resume file; it is passed over"
    damage(first, how)
    point, complaints = latest_point(tmp_path)
    assert point is None
    assert len(complaints) == 2


def test_a_foreign_safetensors_file_is_passed_over(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "step-000000001-00000-0000001.safetensors")
    point, complaints = latest_point(tmp_path)
    assert point is None
    assert len(complaints) == 1


@pytest.mark.parametrize("keep", [1, 2])
def test_a_broken_newer_point_does_not_push_good_ones_out(tmp_path: Path, keep: int) -> None:
    """After falling back, what is saved is older by number than what could not be read."""
    for updates in (8, 9):
        damage(save(tmp_path, updates, keep), "short")
    good = save(tmp_path, 3, keep)
    assert points(tmp_path) == [good]
    point, complaints = latest_point(tmp_path)
    assert (point and point.path, complaints) == (good, [])


def test_a_full_disk_costs_only_the_point_being_written(tmp_path: Path, file_size_limit: Any) -> None:
    first = save(tmp_path, 1, keep=1)
    before = first.read_bytes()
    with file_size_limit(1000), pytest.raises(StorageError, match="no space left"):
        save(tmp_path, 2, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == [first.name], "no half file, and no temporary one"
    assert first.read_bytes() == before


def test_a_point_of_another_model_is_one_line(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    with pytest.raises(CheckpointError, match=r"does not fit Sequential: ") as caught:
        restore(read_point(path), model, create_optimizer(model, tiny()), None, torch.amp.GradScaler("cpu"))
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def one_epoch(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, finished."""
    out = tmp_path_factory.mktemp("one") / "run"
    run(seeded(TwoConvs), data, out, epochs=1)
    return out


@pytest.fixture
def begun(data: Path, tmp_path: Path, one_epoch: Path) -> Callable[..., Any]:
    """Runs in one directory; what is said is kept in `.said`. One epoch is a copy of `one_epoch`."""

    def begin(**options: Any) -> Any:
        begin.said = []  # type: ignore[attr-defined]
        if options == {"epochs": 1}:
            return shutil.copytree(one_epoch, tmp_path / "run")
        return run(seeded(TwoConvs), data, tmp_path / "run", say=begin.said.append, **options)  # type: ignore[attr-defined]

    return begin


def test_resume_begins_where_there_is_nothing(begun: Callable[..., Any]) -> None:
    result = begun(resume=True, epochs=1)
    assert (result.epochs, result.updates) == (1, 3)
    assert not any("going on" in line for line in begun.said)  # type: ignore[attr-defined]


def test_a_finished_run_is_finished(begun: Callable[..., Any], tmp_path: Path) -> None:
    first = begun()
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    again = begun(resume=True)
    assert "the run is finished already" in begun.said  # type: ignore[attr-defined]
    assert again.model_dump(exclude={"seconds", "notes"}) == first.model_dump(exclude={"seconds", "notes"})
    assert {path: path.read_bytes() for path in before} == before


def test_other_settings_are_listed_and_refused(begun: Callable[..., Any], tmp_path: Path) -> None:
    begun(epochs=1)
    config = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(RequestError) as caught:
        begun(resume=True, epochs=1, lr=0.125, seed=9, size=40, workers=1, log_steps=1)
    message = str(caught.value)
    for change in ("lr: 0.0005 → 0.125", "seed: 0 → 9", "size: 32 → 40", "size: [32, 32] → [40, 40]"):
        assert change in message
    assert "workers" not in message
    assert "log_steps" not in message
    assert message.endswith("give the same ones, or --allow-changes")
    assert "\n" not in message
    assert (tmp_path / "run" / "config.json").read_bytes() == config


def test_other_data_are_refused(begun: Callable[..., Any], tmp_path: Path) -> None:
    begun(epochs=1)
    other = colours(tmp_path / "other")
    with pytest.raises(RequestError, match="data: "):
        run(seeded(TwoConvs), other, tmp_path / "run", resume=True, epochs=1)
    with pytest.raises(RequestError, match="model: TwoConvs → Normed"):
        run(seeded(Normed), other, tmp_path / "run", resume=True, epochs=1)


@pytest.mark.slow
def test_settings_of_the_machine_may_change(begun: Callable[..., Any]) -> None:
    begun(epochs=1)
    result = begun(resume=True, epochs=1, workers=1, keep=5, log_steps=1, checkpoint_steps=1, checkpoint_minutes=1)
    assert not any("changed" in line for line in begun.said)  # type: ignore[attr-defined]
    assert result.epochs == 1


def test_more_epochs_where_that_is_allowed(begun: Callable[..., Any], tmp_path: Path) -> None:
    begun(epochs=1)
    result = begun(resume=True, epochs=3, allow_changes=True)
    said = begun.said  # type: ignore[attr-defined]
    assert "changed: epochs: 1 → 3" in said
    assert "going on in epoch 2 at step 0 of 3" in said
    assert (result.epochs, result.updates) == (3, 9)
    assert [row["epoch"] for row in RunDirectory(tmp_path / "run").rows("epoch")] == [0, 1, 2]


def test_the_first_step_of_every_start_is_saved(begun: Callable[..., Any], tmp_path: Path) -> None:
    """Whatever is killed again and again gets farther every time, however long its steps are."""
    begun(epochs=1, keep=9)
    begun(resume=True, epochs=2, keep=9, allow_changes=True)
    assert {read_point(path).position.updates for path in points(tmp_path / "run" / "resume")} == {1, 3, 4, 6}


@pytest.mark.slow
def test_without_a_point_nothing_is_measured_twice(begun: Callable[..., Any], tmp_path: Path) -> None:
    """Killed before the first point, or with all of them broken: the run begins again, and so do its records."""
    begun(log_steps=1)
    expected = (tmp_path / "run" / "summary.csv").read_bytes()
    for path in points(tmp_path / "run" / "resume"):
        damage(path, "short")
    result = begun(resume=True, log_steps=1)
    assert sum("passed over" in line for line in begun.said) == 2  # type: ignore[attr-defined]
    assert result.updates == 6
    rows = RunDirectory(tmp_path / "run").rows()
    assert [(row["kind"], row["updates"]) for row in rows] == [
        ("train", 1), ("train", 2), ("train", 3), ("epoch", 3), ("train", 4), ("train", 5), ("train", 6), ("epoch", 6),
    ]  # fmt: skip
    assert (tmp_path / "run" / "summary.csv").read_bytes() == expected
    assert latest_point(tmp_path / "run" / "resume")[1] == []


@pytest.mark.slow
def test_falling_back_ends_with_the_same_weights(begun: Callable[..., Any], tmp_path: Path) -> None:
    begun(checkpoint_steps=1, keep=9)
    last = tmp_path / "run" / "last.safetensors"
    expected = load_file(last)
    for path in points(tmp_path / "run" / "resume")[:3]:
        damage(path, "short")
    last.unlink()
    begun(resume=True, checkpoint_steps=1, keep=9)
    assert sum("passed over" in line for line in begun.said) == 3  # type: ignore[attr-defined]
    found = load_file(last)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_disk_too_small_for_a_model_ends_a_run_that_can_go_on(
    data: Path, tmp_path: Path, file_size_limit: Any
) -> None:
    """The message said that nothing was kept, and not how far the run has come and that it can be resumed."""
    with file_size_limit(5_000), pytest.raises(StorageError) as caught:
        run(seeded(TwoConvs), data, tmp_path / "run", convert=False)
    position = rf"stopped in epoch 1, step 3 of 3 \(update 3\); go on with --resume --out {tmp_path}/run$"
    assert re.search(rf"\.safetensors: no space left while writing; .*; {position}", str(caught.value))
    assert not list((tmp_path / "run").glob("*.safetensors"))
    result = run(seeded(TwoConvs), data, tmp_path / "run", convert=False, resume=True)
    assert (result.epochs, result.updates) == (2, 6)


def test_a_disk_too_small_for_points_costs_no_training(data: Path, tmp_path: Path, file_size_limit: Any) -> None:
    """A resume point holds the moments as well, so it is what no longer fits."""
    said: list[str] = []
    with file_size_limit(2_500_000):
        result = run("test_resnet", data, tmp_path / "run", say=said.append)
    assert result.updates == 6
    assert any("no space left" in line and line.endswith("training goes on") for line in said)
    assert points(tmp_path / "run" / "resume") == []
    assert list((tmp_path / "run" / "resume").iterdir()) == []
    assert len(RunDirectory(tmp_path / "run").rows("epoch")) == 2
    assert json.loads((tmp_path / "run" / "config.json").read_text())["run"] == "finetune"
