"""Worker processes: they end with their parent and never before, whoever is killed and however."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch.utils.data
from data_pictures import draw_classes, plain_transform
from forked import processes

from tcnn.data.image_set import open_dataset
from tcnn.data.loader import TrainingLoader

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc; only Linux tells workers of a kill")


def load_until_told(announce: Callable[[list[int]], None], root: str) -> None:
    """Load with two workers, whose numbers are announced, until a signal comes."""
    os.setsid()
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 60.0
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell lets children ignore it
    loader = loader_of(Path(root))
    announce([worker.pid for worker in iter(loader._loader)._workers])
    try:
        for number in range(10_000):
            for _ in loader.epoch(number):
                pass
            if asked:
                more = sum(len(batch.targets) for epoch in range(20) for batch in loader.epoch(epoch))
                print("more", more, flush=True)
                break
    except KeyboardInterrupt:
        sys.exit(130)


def forked_parent(pipe: Connection, root: str, out: str) -> None:
    """The same; what it says is in the file `out`."""
    for number in (1, 2):
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    load_until_told(pipe.send, root)


PROGRAM = """
import os, sys
sys.path[:0] = [sys.argv[2], os.path.dirname(sys.argv[2]) + "/helpers"]
from test_loader_processes import load_until_told
load_until_told(lambda workers: print(*workers, flush=True), sys.argv[1])
"""


Parent = tuple[BaseProcess, list[int], Path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return draw_classes(tmp_path / "data", ["a", "b"], 10)


@pytest.fixture
def parent(root: Path, tmp_path: Path) -> Iterator[Parent]:
    """A process in a group of its own, in the middle of loading with two workers, their numbers, and what it says."""
    ours, theirs = processes.Pipe(duplex=False)
    said = tmp_path / "said.txt"
    process = processes.Process(target=forked_parent, args=(theirs, str(root), str(said)))
    process.start()
    theirs.close()
    workers = ours.recv()
    assert len(workers) == 2
    time.sleep(0.3)
    yield process, workers, said
    for number in (process.pid, *workers):
        if alive(number):
            os.kill(number, signal.SIGKILL)
    process.join()


def alive(number: int) -> bool:
    """Whether a process runs; one that is dead but not yet collected does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def within(seconds: float, true: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def test_a_killed_parent_leaves_no_worker(parent: Parent) -> None:
    """At once: torch's own watch takes a minute here."""
    process, workers, _ = parent
    assert all(map(alive, workers))
    process.kill()
    process.join()
    assert within(30, lambda: not any(map(alive, workers)))


@pytest.mark.slow
def test_a_signal_to_the_group_is_the_parents_to_answer(parent: Parent) -> None:
    """A scheduler's SIGTERM reaches every process; the workers go on while the parent finishes, and end with it."""
    process, workers, said = parent
    assert process.pid is not None
    os.killpg(process.pid, signal.SIGTERM)
    process.join(120)
    assert (process.exitcode, said.read_text()) == (0, "more 400\n")
    assert not any(map(alive, workers))


@pytest.mark.slow
def test_ctrl_c_shows_nothing_of_the_workers(root: Path) -> None:
    """Nor does the end of a program wait for them: torch would wait a minute here."""
    command = [sys.executable, "-c", PROGRAM, str(root), str(Path(__file__).parent)]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    workers = [int(number) for number in process.stdout.readline().split()]
    assert len(workers) == 2
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "")
    assert not any(map(alive, workers))


def loader_of(root: Path) -> TrainingLoader:
    plain = plain_transform(size=(8, 8), crop_pct=1.0, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bilinear")
    return TrainingLoader(open_dataset(str(root)), plain, batch_size=2, micro_batch=2, seed=0, workers=2)


DYING = """
import os, signal, sys
sys.path[:0] = [sys.argv[2], os.path.dirname(sys.argv[2]) + "/helpers"]
from test_loader_processes import alive, loader_of
from tcnn.errors import EnvironmentFailure
from pathlib import Path


def attempt():
    loader = loader_of(Path(sys.argv[1]))
    try:
        passing = loader.epoch(0)
        next(passing)
        workers = [worker.pid for worker in loader._loader._iterator._workers]
        os.kill(workers[0], signal.SIGKILL)
        for number in range(1, 100):
            list(passing)
            passing = loader.epoch(number)
    except EnvironmentFailure as error:
        loader.close()
        assert not any(map(alive, workers))
        assert len(list(loader.epoch(0))) == 10, "the next pass has new workers"
        loader.close()
        return str(error)
    except RuntimeError as error:
        assert "DataLoader worker" in str(error)
        return None


print(next(message for message in iter(attempt, "") if message))
"""


@pytest.mark.slow
def test_a_worker_that_dies_is_one_line(root: Path) -> None:
    """As when the kernel kills it for want of memory.

    In a process of its own: PyTorch raises its error wherever the main thread happens to be, which may be outside the
    loader (then the trainer catches it, and this is tried again) or inside the test runner.
    """
    command = [sys.executable, "-c", DYING, str(root), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.fullmatch(r"a process that loads images died .*fewer workers.*\n", done.stdout), done.stdout


def test_close_ends_workers_that_hang(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, a worker hears nothing; close waits for it a while, and then it is gone."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    loader = loader_of(root)
    passing = loader.epoch(0)
    next(passing)
    workers = [worker.pid for worker in loader._loader._iterator._workers]
    os.kill(workers[1], signal.SIGSTOP)
    loader.close()
    assert within(30, lambda: not any(map(alive, workers)))
    loader.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Python decides")
def test_workers_are_copies_whatever_python_prefers(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.14 on it would have each of them load torch."""
    monkeypatch.setattr(multiprocessing.get_context("spawn").Process, "start", None)
    monkeypatch.setattr(
        multiprocessing.context._default_context, "_actual_context", multiprocessing.get_context("spawn")
    )
    assert len(list(loader_of(root).epoch(0))) == 10


def test_workers_stay_from_epoch_to_epoch_and_go_with_their_loader(root: Path) -> None:
    loader = loader_of(root)
    list(loader.epoch(0))
    workers = [worker.pid for worker in loader._loader._iterator._workers]
    list(loader.epoch(1))
    assert [worker.pid for worker in loader._loader._iterator._workers] == workers
    assert all(map(alive, workers))
    del loader
    assert within(30, lambda: not any(map(alive, workers)))
