"""Workers that are being started: whatever comes in between, the process that starts them goes on, and comes to an end.

Before a worker ignores the signals of its process group it must not get one, and those that run already end with the
first that cannot be started: multiprocessing would wait for them for ever.
"""

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from data_pictures import draw_classes, plain_transform
from forked import processes

from tcnn.data.image_set import open_dataset
from tcnn.data.loader import EvaluationLoader
from tcnn.errors import EnvironmentFailure

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="signals of process groups, and workers that are forked"
)

GROUP = ("SIGTERM", "SIGINT", "SIGHUP")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return draw_classes(tmp_path / "data", ["a", "b"], 10)


def loader_of(root: str, workers: int = 3) -> EvaluationLoader:
    plain = plain_transform(size=(8, 8), crop_pct=1.0, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bilinear")
    return EvaluationLoader(open_dataset(root), plain, batch_size=2, workers=workers)


def ended(target: Callable[..., None], *arguments: str) -> int | None:
    """The exit status of a process that does this; None if it had to be killed after two minutes."""
    process = processes.Process(target=target, args=arguments)
    process.start()
    process.join(120)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    return process.exitcode


def assert_loads(loader: EvaluationLoader) -> None:
    assert sum(len(batch.targets) for batch in loader) == 20


def one_dies(root: str) -> None:
    """Killed, as when memory runs out, once all have been started and before the first batch is asked for."""

    class Dying(EvaluationLoader):
        def _planned(self):  # type: ignore[no-untyped-def]
            worker = multiprocessing.active_children()[0]
            worker.kill()
            os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
            yield from super()._planned()

    loader = loader_of(root)
    loader.__class__ = Dying
    with pytest.raises(EnvironmentFailure, match=r"^a process that loads images died .*; use fewer workers"):
        list(loader)
    assert multiprocessing.active_children() == []
    loader.__class__ = EvaluationLoader
    assert_loads(loader)


def too_many(root: str) -> None:
    """There is no room for the pipes of the last ones."""
    loader = loader_of(root, workers=100)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 60, before[1]))
    with pytest.raises(
        EnvironmentFailure, match=r"^cannot start 100 processes that load images .*; use fewer workers$"
    ):
        list(loader)
    assert multiprocessing.active_children() == []
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert_loads(loader_of(root))


@pytest.mark.parametrize("what", [one_dies, too_many])
def test_what_cannot_be_started_leaves_no_worker(root: Path, what: Callable[[str], None]) -> None:
    assert ended(what, str(root)) == 0


def told_once_forked(root: str, name: str) -> None:
    """Every worker gets the signal as its first experience, as from a scheduler that tells the group just then."""
    signal.signal(signal.Signals[name], signal.SIG_DFL)
    parent = os.getpid()
    os.register_at_fork(after_in_child=lambda: os.getppid() == parent and signal.raise_signal(signal.Signals[name]))
    assert_loads(loader_of(root))


@pytest.mark.parametrize("name", GROUP)
def test_a_signal_to_a_worker_that_has_only_been_forked_is_the_parents_to_answer(root: Path, name: str) -> None:
    assert ended(told_once_forked, str(root), name) == 0


def told_while_starting(root: str, name: str, raising: str) -> None:
    """The parent gets the signal after its first fork."""
    number, heard = signal.Signals[name], []

    def hear(number: int, frame: object) -> None:
        heard.append(number)
        if raising:
            raise SystemExit(128 + number)

    signal.signal(number, hear)
    os.register_at_fork(after_in_parent=lambda: heard or signal.raise_signal(number))
    loader = loader_of(root)
    try:
        assert_loads(loader)
    finally:
        assert heard[:1] == [number]
        assert not raising or multiprocessing.active_children() == []


@pytest.mark.parametrize("raising", ["", "raising"])
@pytest.mark.parametrize("name", GROUP)
def test_a_signal_to_the_parent_is_not_lost(root: Path, name: str, raising: str) -> None:
    """A handler that sets a flag, as in training, and one that unwinds, as in other commands."""
    assert ended(told_while_starting, str(root), name, raising) == (128 + signal.Signals[name] if raising else 0)
