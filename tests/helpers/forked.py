"""Processes of their own that start at once: forked from one that has torch loaded, which takes others six seconds."""

import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

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
