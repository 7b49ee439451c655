"""Worker processes of the data loader: load, transform and collate samples."""

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import NamedTuple

import numpy
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import get_worker_info

from tcnn.data.decode import UnreadableImage, ignore_warnings
from tcnn.data.image_set import ImageSet
from tcnn.data.order import sample_seed
from tcnn.data.transforms import Transform
from tcnn.errors import EnvironmentFailure, TcnnError, readable
from tcnn.formatting import some
from tcnn.processes import die_with_parent

Item = tuple[int, int, int]
"""Epoch, position in it, index in the data set."""

MAX_UNREADABLE = 100
"""Number of unreadable images in a row that ends loading: the disk is gone, or these are no images."""
_GROUP = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))
"""Signals that go to a whole process group: from a terminal, when it closes, from a scheduler."""
_HELD = (*_GROUP, *((signal.SIGCHLD,) if hasattr(signal, "SIGCHLD") else ()))
"""Those that wait until workers are started, and SIGCHLD, for which torch raises an error: not in half a loader."""


class Batch(NamedTuple):
    """Images (B, C, H, W), float32, their classes (B,), int64, and the unreadable files."""

    images: Tensor
    targets: Tensor
    unreadable: tuple[str, ...]


class Samples:
    """Data set for a `DataLoader`: whole batches of `Item`s."""

    def __init__(self, data: ImageSet, transform: Transform, seed: int, replace: bool) -> None:
        self.data = data
        self.transform = transform
        self.seed = seed
        self.replace = replace

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, items: Sequence[Item]) -> Batch | TcnnError:
        """Load a batch; a `TcnnError` is returned, because DataLoader would wrap it into a page of traceback."""
        try:
            with contextlib.nullcontext() if get_worker_info() else preserve_generators():
                return self._batch(items)
        except TcnnError as error:
            return error

    def _batch(self, items: Sequence[Item]) -> Batch:
        images: list[Tensor] = []
        targets: list[int] = []
        unreadable: list[str] = []
        for epoch, position, index in items:
            loaded = self._load(index, unreadable)
            if loaded is not None:
                seed_everything(sample_seed(self.seed, epoch, position))
                images.append(self.transform(loaded[0]))
                targets.append(loaded[1])
        stacked = torch.stack(images) if images else self._none()
        return Batch(stacked, torch.tensor(targets, dtype=torch.int64), tuple(unreadable))

    def _load(self, index: int, unreadable: list[str]) -> tuple[Image.Image, int] | None:
        """Load an image, or, when unreadable images are replaced, the next readable one; adds to `unreadable`."""
        for further in range(min(len(self.data), MAX_UNREADABLE)):
            try:
                return self.data.load((index + further) % len(self.data))
            except UnreadableImage as error:
                unreadable.append(readable(error.filename))
                if not self.replace:
                    return None
                last = error
        raise EnvironmentFailure(
            f"{some(min(len(self.data), MAX_UNREADABLE), 'image')} in a row cannot be read, the last one {last}; "
            "is the data set still there?"
        )

    def _none(self) -> Tensor:
        """An empty batch (0, C, H, W), as a model may read the other sizes."""
        seed_everything(0)
        return self.transform(Image.new(self.data.mode, (8, 8)))[None, ...][:0]


def seed_everything(seed: int) -> None:
    """Seed the three random generators that transforms use (`random`, NumPy, torch), on this process's CPU only.

    `torch.manual_seed` would also queue a call for a GPU that a worker must never touch. torch's CPU generator uses the
    seed's lower 32 bits.
    """
    random.seed(seed)
    numpy.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def preserve_generators() -> Iterator[None]:
    """Context that restores the state of the three random generators."""
    states = random.getstate(), numpy.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.default_generator.set_state(states[2])


@contextlib.contextmanager
def starting_workers() -> Iterator[None]:
    """Context in which workers are started: none gets a signal for the process group before it ignores it.

    The signals are blocked in this thread and in what it forks, until `start_worker`. None is lost: what came meanwhile
    is handled at the end of the block.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows, where no process group gets signals
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def deaths_after() -> Iterator[None]:
    """Context, or decorator, of what a worker's death must not interrupt: the error for it comes at the end.

    torch raises it from a handler of SIGCHLD, wherever the main thread is, as in half an update.
    """
    torchs = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    if not callable(torchs) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGCHLD, lambda *death: came.append(death))
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, torchs)
    if came:
        torchs(*came[-1])


def start_worker(worker: int) -> None:
    """Initialise a worker process: ignore signals for the process group, still blocked, and end with the parent.

    Signals that go to a whole process group (Ctrl-C, a scheduler's SIGTERM) are the parent's: it still needs batches
    while it writes its checkpoint. If the parent is killed, on Linux the kernel ends the worker.
    """
    ignore_warnings()
    sys.excepthook = _ignore_broken_pipe
    for number in _GROUP:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    die_with_parent()
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)


def _ignore_broken_pipe(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Exception hook of the thread that hands batches to the parent: errors of samples reach the parent by themselves.

    If the parent is interrupted while it receives a batch, the broken pipe is not reported.
    """
    if not issubclass(kind, (EOFError, ConnectionError)):
        sys.__excepthook__(kind, error, trace)
