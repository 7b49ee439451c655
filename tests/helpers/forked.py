"""Processes of their own that start at once: forked from one that has torch loaded, which takes others six seconds; and
one in which Triton's kernels run in its interpreter, on the CPU.

Triton reads `TRITON_INTERPRET` when it is imported and when a kernel is defined, so kernels of other tests, and those
of PyTorch's compiler, would be interpreted in this process, too. Hence one of its own, in which Triton is imported
anew.
"""

import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import torch

from tcnn.cli.main import main

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    ["pytest", "psycopg", "tcnn_jobs.store", "tcnn.workflows.recheck", "tcnn.training.finetune"]
)


class Ended(NamedTuple):
    """What a `tcnn` process left behind."""

    code: int
    """Its exit status, −N if signal N ended it."""
    stderr: str
    left: list[str]
    """What its working directory holds, hidden files too."""
    seconds: float


def run_tcnn(cwd: Path, *arguments: object, disturb: Callable[[int], None] = lambda pid: None) -> Ended:
    """`tcnn …` in a process of its own; `disturb` is told its number once it is about to begin."""
    cwd.mkdir(exist_ok=True)
    ours, theirs = processes.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as aside:
        stderr = Path(aside) / "stderr.txt"
        words = [str(argument) for argument in arguments]
        process = processes.Process(target=_tcnn, args=(theirs, str(cwd), str(stderr), words))
        process.start()
        theirs.close()
        ours.recv()
        started = time.monotonic()
        assert process.pid is not None
        disturb(process.pid)
        process.join(300)
        seconds = time.monotonic() - started
        assert process.exitcode is not None, "it did not end"
        return Ended(process.exitcode, stderr.read_text(), sorted(path.name for path in cwd.iterdir()), seconds)


def _tcnn(pipe: Connection, cwd: str, stderr: str, arguments: list[str]) -> None:
    os.chdir(cwd)
    torch.set_num_threads(1)
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have told its children to ignore Ctrl-C
    pipe.send("ready")
    main(arguments)


def ranks(world: int, target: Callable[..., None], *arguments: object) -> list[int | None]:
    """The exit statuses of so many processes that do the same, each told its rank as torchrun tells it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = [processes.Process(target=_rank, args=(rank, world, port, target, arguments)) for rank in range(world)]
    for process in started:
        process.start()
    for process in started:
        process.join(300)
    return [process.exitcode for process in started]


def _rank(rank: int, world: int, port: int, target: Callable[..., None], arguments: tuple[object, ...]) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.set_num_threads(1)
    target(*arguments)


P = ParamSpec("P")
T = TypeVar("T")


class Interpreter:
    """Calls functions of a test's module in that process; what they raise is raised here.

    A process that was ended from outside fails the call that it was at, and no later one: these get another.
    """

    def __init__(self) -> None:
        self.process = _start()

    def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return self.process.submit(function, *args, **kwargs).result(timeout=300)
        except BrokenProcessPool:
            self.process.shutdown(wait=False)
            self.process = _start()
            raise

    def end(self) -> None:
        self.process.shutdown()


def _start() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, processes, _begin)


def _begin() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    for name in list(sys.modules):
        if name.partition(".")[0] == "triton" and not name.startswith("triton._C"):  # an extension loads once
            del sys.modules[name]
    torch.set_num_threads(1)
