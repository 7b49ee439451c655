"""Requests to stop that come late, or twice: heeded by what follows, and by nobody taken for impatience."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import processes, run_tcnn
from safetensors.torch import load_file
from sampled import sampled
from tiny_runs import TwoConvs, colours, run, seeded
from torch.utils.data import get_worker_info

from tcnn.data import worker
from tcnn.errors import EnvironmentFailure, Stopped
from tcnn.training import before_after
from tcnn.training.runs.callbacks import Progress, stop_on_signal

ASKED, IGNORED = 7, 8


def test_a_stop_in_the_last_validation_is_heeded_by_what_follows(tmp_path: Path) -> None:
    """All is trained then, and only the comparison is left to be done when the run is resumed."""
    photos = colours(tmp_path / "photos")
    heard: list[str] = []
    options: dict[str, Any] = {"epochs": 1, "compare": True, "stop": lambda: bool(heard)}

    def late(now: Progress) -> None:
        if now.phase == "validating":  # the only batch is done, and nobody looks again
            heard.append(now.phase)

    with pytest.raises(Stopped, match="stopped after the last epoch; go on with --resume --out ") as stopped:
        run("test_resnet", photos, tmp_path / "run", report=late, **options)
    assert stopped.value.exit_code == 75
    assert not (tmp_path / "run" / before_after.FILE).exists()
    last = load_file(tmp_path / "run" / "last.safetensors")
    heard.clear()
    again = run("test_resnet", photos, tmp_path / "run", resume=True, **options)
    assert again.before_after is not None
    assert all(torch.equal(tensor, last[name]) for name, tensor in load_file(again.last).items())


@pytest.mark.parametrize(
    ("loaded", "stopped", "pause"),
    sampled(
        [(0, False, 0.0), (8, False, 0.0), (8, False, 0.5), (8, True, 0.0), (8, True, 0.5)],
        [(0, False, 0.0), (8, False, 0.5), (8, True, 0.0)],
    ),
)
def test_a_worker_that_dies_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: int, stopped: bool, pause: float
) -> None:
    """What was trained before is there to go on from. Who asks for an end may end workers, too: that is no failure.

    With a pause the worker dies while the step is computed; without, as soon as it can, before the next or in this one.
    """
    photos, whole, out = colours(tmp_path / "photos"), tmp_path / "whole", tmp_path / "run"
    options: dict[str, Any] = {"epochs": 2, "workers": 1}
    run(seeded(TwoConvs), photos, whole, **options)
    asked, seed = tmp_path / "asked", worker.sample_seed

    def dying(*place: int) -> int:
        """Called before an image is transformed."""
        if get_worker_info() is not None and len(seen) == loaded:  # 8 images are those of the first step
            while loaded and not asked.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(place)
        return seed(*place)

    def stop() -> bool:
        """Asked for after the first step, where it is not heeded yet, and once the worker has died."""
        before = asked.exists()
        asked.touch()
        time.sleep(0 if before else pause)
        return before and stopped

    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(worker, "sample_seed", dying)
    step = min(loaded, 1)
    place = rf"stopped in epoch 1, step {step} of 3 \(update {step}\); go on with --resume --out "
    failure = pytest.raises(EnvironmentFailure, match=rf"^a process that loads images died .*; {place}.*fewer workers")
    with pytest.raises(Stopped, match=f"^{place}") if stopped else failure:
        run(seeded(TwoConvs), photos, out, stop=stop, **options)
    monkeypatch.undo()
    assert len(list((out / "resume").iterdir())) == 1
    run(seeded(TwoConvs), photos, out, resume=True, **options)
    expected = load_file(whole / "last.safetensors")
    for name, tensor in load_file(out / "last.safetensors").items():
        assert torch.equal(tensor, expected[name]), name


def twice(first: str, second: str, pause: float) -> None:
    with stop_on_signal() as stop:
        for name in (first, second):
            signal.raise_signal(signal.Signals[name])
            time.sleep(pause)
        os._exit(ASKED if stop else IGNORED)


@pytest.mark.parametrize(
    ("first", "second", "pause", "code"),
    [
        (
            "SIGTERM",
            "SIGTERM",
            0.0,
            ASKED,
        ),  # `timeout` tells the process and its group; torchrun passes on what all got
        ("SIGHUP", "SIGTERM", 0.0, ASKED),
        ("SIGTERM", "SIGINT", 0.3, ASKED),
        ("SIGINT", "SIGINT", 0.0, ASKED),  # pressed once
        ("SIGINT", "SIGINT", 0.3, 130),
    ],
)
def test_what_comes_twice_ends_a_run_only_where_somebody_presses_again(
    first: str, second: str, pause: float, code: int
) -> None:
    target: Callable[..., None] = twice
    process = processes.Process(target=target, args=(first, second, pause))
    process.start()
    process.join(60)
    assert process.exitcode == code


def test_a_run_that_gets_sigterm_twice_saves_and_goes_on(tmp_path: Path) -> None:
    """As from `timeout`; what comes of it in the end is what comes of a run that nobody stopped."""
    colours(tmp_path / "p", images=4)
    command = (
        "finetune", "test_resnet", "--no-pretrained", "--data", "p", "--preset", "quick", "--epochs", 6,
        "--batch-size", 4, "--size", 32, "--val-split", 0.25, "--device", "cpu", "--workers", 0, "--set", "log_steps=1",
    )  # fmt: skip

    def disturb(pid: int) -> None:
        metrics, ends = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 100
        while not (metrics.is_file() and metrics.read_text()) and time.monotonic() < ends:
            time.sleep(0.002)
        for _ in range(2):
            os.kill(pid, signal.SIGTERM)
            time.sleep(0.001)

    stopped = run_tcnn(tmp_path, *command, "--out", "run", disturb=disturb)
    assert stopped.code == 75, stopped
    assert stopped.stderr.splitlines()[-1].endswith("go on with --resume --out run")
    for more in (("--out", "run", "--resume"), ("--out", "whole")):
        assert run_tcnn(tmp_path, *command, *more).code == 0
    resumed = load_file(tmp_path / "run" / "last.safetensors")
    for name, tensor in load_file(tmp_path / "whole" / "last.safetensors").items():
        assert torch.equal(tensor, resumed[name]), name
