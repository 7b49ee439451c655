"""Runs that are started from outside: what is refused, what the processes say, what asks a run to stop (Ctrl-C,
SIGTERM, a terminal that goes), that a stop reaches all of them, and that a kill leaves nobody.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from houses import processes_of, wait_for
from tiny_runs import TINY, colours, tiny

from tcnn.config import build
from tcnn.errors import DivergedError, EnvironmentFailure, RequestError
from tcnn.training.launch.exchange import Exchange, Placement, RunRequest, batch_size_problem
from tcnn.training.launch.launcher import finetune_on
from tcnn.training.runs.callbacks import SAME_PRESS, SIGNALS, Callbacks, Progress, stop_on_signal
from tcnn.training.runs.resume import points


def nowhere(directory: Path) -> RunRequest:
    return RunRequest(model="test_resnet", data="x/", config=tiny(), out=str(directory / "run"))


def test_shares() -> None:
    assert batch_size_problem(tiny(batch_size=8, mixup=0, cutmix=0), 8) is None
    assert batch_size_problem(tiny(batch_size=8, mixup=0.8), 4) is None
    assert batch_size_problem(tiny(batch_size=7, mixup=0, cutmix=0), 1) is None
    assert batch_size_problem(tiny(batch_size=8, mixup=0.8), 8) == (
        "batch_size 8 cannot be shared equally among 8 processes, an even number for each as mixup takes pairs; "
        "give 16, or another number of processes"
    )


def test_what_cannot_be_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="batch_size 8 cannot be shared"):
        finetune_on(Placement(num_workers=3), nowhere(tmp_path))
    with pytest.raises(RequestError, match="engine: expected ray and the cluster's address, or neither"):
        build(Placement, {"engine": "ray"})
    assert list(tmp_path.iterdir()) == []


def test_no_ray_cluster_at_the_address(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="TRAINING ON RAY IS NOT TESTED: pip install 'tcnn[ray]'")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"  # nobody listens there, and nobody else will
        placement = Placement(engine="ray", address=address, num_workers=2)
        with pytest.raises(EnvironmentFailure, match=f"{address}: no Ray cluster answers") as caught:
            finetune_on(placement, nowhere(tmp_path))
    assert caught.value.exit_code == 4
    assert list(tmp_path.iterdir()) == []


def test_what_the_processes_say_arrives_once(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path / "x")
    request = RunRequest(model="m", data="d", val=None, config=tiny(), out="run", directory=str(tmp_path))
    exchange.open(request)
    rank = Exchange(tmp_path / "x")
    assert rank.request() == request
    heard: list[object] = []
    callbacks = Callbacks(lambda now: heard.append(now.phase), heard.append)
    rank.say("one")
    rank.report(Progress(phase="training", epoch=1, epochs=2, step=0, steps=3, percent=0))
    with (tmp_path / "x" / "said.jsonl").open("a") as handle:
        handle.write('"tw')
    for _ in range(2):
        exchange.relay(callbacks)
    assert heard == ["training", "one"]
    with (tmp_path / "x" / "said.jsonl").open("a") as handle:
        handle.write('o"\n')
    exchange.relay(callbacks)
    assert heard == ["training", "one", "two"]
    rank.fail(EnvironmentFailure("later"), 1)
    rank.fail(DivergedError("the loss is not finite"), 0)
    error = exchange.error()
    assert isinstance(error, DivergedError) and str(error) == "the loss is not finite"
    exchange.open(request)
    assert exchange.error() is None and not rank.stop_asked(), "a new start knows nothing of the last"


@pytest.mark.slow
def test_a_stop_reaches_every_process(tmp_path: Path) -> None:
    process = launched(tmp_path)
    assert len(processes_of(tmp_path)) == 4, "the command, torchrun, and two that train"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 75, said
    assert "go on with --resume" in said and "Traceback" not in said
    assert processes_of(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "run", "tmp"]
    assert list((tmp_path / "tmp").glob("torchelastic*")) == []


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_nothing_but_the_run(tmp_path: Path) -> None:
    """What the processes exchange stayed beside it."""
    process = launched(tmp_path)
    process.send_signal(signal.SIGINT)
    time.sleep(2 * SAME_PRESS)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    wait_for(lambda: processes_of(tmp_path) == [], 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "run", "tmp"]


def launched(folder: Path) -> "subprocess.Popen[str]":
    """A long run in `folder/run` that has written two resume points."""
    colours(folder / "images")
    (folder / "tmp").mkdir()
    options = {**TINY, "epochs": 200, "checkpoint_steps": 1}
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
    process = subprocess.Popen(
        [
            sys.executable, "-m", "tcnn", "finetune", "test_resnet", "--no-pretrained", "--data", "images", "--preset",
            "quick", "--nproc", "2", "--out", "run",
            *(w for key, value in options.items() for w in ("--set", f"{key}={'null' if value is None else value}")),
        ],
        cwd=folder, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 200
    while len(points(folder / "run" / "resume")) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("who", ["the command", "tcnn.training.launch.agent"])
def test_a_kill_leaves_nobody(tmp_path: Path, who: str) -> None:
    process = launched(tmp_path)
    there = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in processes_of(tmp_path)}
    assert len(there) == 4
    victim = process.pid if who == "the command" else next(pid for pid, words in there.items() if who in words)
    os.kill(victim, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    wait_for(lambda: not processes_of(tmp_path), 10)
    if who != "the command":
        assert process.returncode == 4
        assert "ended without a word" in said and "go on with --resume" in said and "log.txt" in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGINT, 130)], ids=str)
def test_each_asks_for_a_stop(number: signal.Signals, code: int) -> None:
    assert number in SIGNALS
    before = signal.signal(number, signal.default_int_handler)  # a hangup may be ignored where the tests run
    try:
        with stop_on_signal() as stop:
            assert not stop
            signal.raise_signal(number)
            assert stop
        assert stop.stopped("saved").exit_code == code
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_under_nohup_a_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)
