"""Engines whose jobs are child processes on this host, each in a session and process group of its own."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tcnn.training.launch.exchange import Placement
from tcnn_jobs.engines.base import environment
from tcnn_jobs.engines.memory import go_first, taken

RUNNER = (sys.executable, "-m", "tcnn_jobs.child.runner")


class LocalProcess:
    """A child, and all that it starts."""

    def __init__(
        self, command: Sequence[str], directory: Path, gpus: Sequence[str], passed: Sequence[str] = ()
    ) -> None:
        # It reads what strangers uploaded, so it is told nothing that it does not need.
        given = environment(passed) | {"PYTHONUNBUFFERED": "1"}
        if gpus:
            given["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        with (directory / "log.txt").open("ab") as log:
            # The child asks the kernel to end it with the thread that starts it, so that must be the main one.
            self._child = subprocess.Popen(  # noqa: S603 - no word of it comes from a request
                [*command, str(directory), str(os.getpid())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=given, start_new_session=True,
            )  # fmt: skip
        self.pid = self._child.pid
        go_first(self.pid)

    def poll(self) -> int | None:
        """As `Process.poll`; when the child is gone, what it has left running goes too."""
        if self._child.returncode is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            self._end_group()  # before it is reaped: until then nobody else can get its number
        return self._child.wait()

    def terminate(self) -> None:
        """SIGTERM for the child alone: the processes that load its images leave when it tells them."""
        if self._child.returncode is None:
            os.kill(self.pid, signal.SIGTERM)
            os.kill(self.pid, signal.SIGCONT)  # a stopped process would hear it only when it is continued

    def memory(self, most: int) -> int:
        """As `Process.memory`."""
        return taken(self.pid, most) if self._child.returncode is None else 0

    def kill(self) -> None:
        """SIGKILL for the whole group."""
        if self._child.returncode is None:
            self._end_group()

    def _end_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class LocalEngine:
    """Jobs as children of the worker: `command DIRECTORY PARENT`.

    Args:
        passed: patterns of names of environment variables that jobs may have beside the usual ones.
    """

    def __init__(self, command: Sequence[str] = RUNNER, passed: Sequence[str] = ()) -> None:
        self._command, self._passed = command, tuple(passed)

    def start(self, directory: Path, gpus: Sequence[str]) -> LocalProcess:
        """As `Engine.start`."""
        return LocalProcess(self._command, directory, gpus, self._passed)

    def placement(self, num_workers: int) -> Placement:
        """On this host; several processes under torchrun."""
        return Placement(num_workers=num_workers)


class RayEngine(LocalEngine):
    """Training on a Ray cluster: a job's process is a driver here, and takes one slot however wide the job.

    The driver converts, publishes and tells; `launch.on_ray`, which only it loads, places the training.

    Args:
        address: HOST:PORT of a cluster that this host belongs to. grace: as the worker's, in seconds.
    """

    def __init__(self, address: str, grace: float, passed: Sequence[str] = ()) -> None:
        super().__init__(passed=("RAY_AUTH_TOKEN*", *passed))
        self._address, self._grace = address, grace

    def placement(self, num_workers: int) -> Placement:
        """On the cluster, be it one process or many."""
        return Placement(engine="ray", num_workers=num_workers, address=self._address, grace=self._grace)
