"""Data loaders for training and evaluation whose batches are a function of (seed, epoch, position), bit for bit.

Before an image is transformed, `random`, `numpy.random` and torch are seeded with `order.sample_seed`, in a worker
process or here. So the number of workers and of ranks, the size of micro-batches, and a run that is killed and resumed
at any step change nothing. Shapes: B images of a micro-batch, C channels, H × W pixels.
"""

import atexit
import contextlib
import copy
import math
import multiprocessing
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tcnn.data.image_set import ImageSet
from tcnn.data.order import epoch_order
from tcnn.data.transforms import Transform
from tcnn.data.worker import Batch, Item, Samples, start_worker, starting_workers
from tcnn.errors import EnvironmentFailure, RequestError, TcnnError, one_line
from tcnn.formatting import some
from tcnn.processes import MOST_WORKERS

__all__ = ["Batch", "EvaluationLoader", "TrainingLoader", "worker_death"]


_START = "fork" if sys.platform == "linux" else None
"""Start method of workers: on Linux as copies of this process, at once. Python's own choice there is, from 3.14 on, to
have each load torch anew, which takes seconds.
"""


class _Plan:
    """Batch sampler of the next pass of the `DataLoader`, set before every pass."""

    def __init__(self) -> None:
        self.batches: list[list[Item]] | Iterator[list[Item]] = []

    def __iter__(self) -> Iterator[list[Item]]:
        return iter(self.batches)


class _Loader:
    """A torch `DataLoader` whose worker processes live until `close`, and never longer than this process."""

    def __init__(self, samples: Samples, workers: int, pin_memory: bool) -> None:
        if not 0 <= workers <= MOST_WORKERS:
            raise RequestError(f"workers: expected 0 to {MOST_WORKERS} processes, found {workers}")
        self._plan = _Plan()
        self._passes = 0
        self._starting: list[BaseProcess] = []
        with _without_worker_warning():
            self._loader: DataLoader[Any] = DataLoader(
                samples,  # type: ignore[arg-type]
                batch_sampler=self._plan,
                num_workers=workers,
                collate_fn=_as_is,
                worker_init_fn=start_worker,
                multiprocessing_context=_noting(self._starting) if workers else None,
                persistent_workers=workers > 0,
                pin_memory=pin_memory and torch.cuda.is_available(),
                # Its own, as DataLoader draws from the global generator otherwise.
                generator=torch.Generator(),
            )
        # Also at the end of a process of multiprocessing, which knows no `atexit`; before its queues close, at 10.
        self._end = Finalize(self, _end_workers, (self._loader,), exitpriority=100)

    def _pass(self, batches: Iterator[list[Item]]) -> Iterator[Batch]:
        """One pass over planned batches. Raises what a worker raised, `EnvironmentFailure` if one died."""
        self._plan.batches = batches
        self._passes += 1
        this = self._passes
        try:
            loaded = self._started()
            while this == self._passes and (batch := next(loaded, None)) is not None:
                if isinstance(batch, TcnnError):
                    raise batch
                yield Batch(batch.images, batch.targets, tuple(batch.unreadable))
        except (RuntimeError, EOFError, ConnectionError) as error:  # the last two while a batch is handed over
            death = worker_death(error, "use fewer workers, or give the container more shared memory")
            if death is None:
                raise
            raise death from error
        if this != self._passes:
            raise RuntimeError("this pass ended when the loader's next one began")

    def _started(self) -> Iterator[Any]:
        """The DataLoader's iterator, whose workers end before Python does; where it cannot be made they have ended."""
        with _without_worker_warning():
            if self._loader._iterator is not None or not self._loader.num_workers:
                return iter(self._loader)
            try:
                with starting_workers():
                    iterator = iter(self._loader)
            except BaseException as error:
                # One has died, a signal came, or there is no room for another. torch has forgotten those that run; they
                # ignore the SIGTERM that Python sends at its end before it waits for them, without a limit.
                _end_workers(self._loader)
                _kill([worker for worker in self._starting if worker.pid is not None])
                traceback.clear_frames(error.__traceback__)  # or its unfinished iterator lives on, in new workers, too
                if isinstance(error, OSError) and not isinstance(error, ConnectionError):
                    raise EnvironmentFailure(
                        f"cannot start {some(self._loader.num_workers, 'process')} that load images "
                        f"({one_line(error)}); use fewer workers"
                    ) from error
                raise
            finally:
                self._starting.clear()
        # What is registered last is run first: torch would wait five seconds for workers that nobody has told to end.
        atexit.unregister(self._end)
        atexit.register(self._end)
        return iterator

    def close(self) -> None:
        """End the worker processes; the next pass would start new ones."""
        _end_workers(self._loader)


class TrainingLoader(_Loader):
    """Loader of augmented training batches, from any step of an epoch on.

    Args:
        batch_size: images of one optimizer step, over all ranks.
        micro_batch: largest number of images of one `Batch`, on one rank.
        repeats: augmentations of every image in a batch; see `order.epoch_order`.
        workers: processes that load; 0 loads in this one.
        rank, world: which of how many equal, contiguous parts of every batch this process gets.

    Raises `RequestError` if a batch is larger than the data set or cannot be divided equally among the ranks.
    """

    def __init__(
        self,
        data: ImageSet,
        transform: Transform,
        *,
        batch_size: int,
        micro_batch: int,
        seed: int,
        repeats: int = 1,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        pin_memory: bool = False,
    ) -> None:
        if batch_size > len(data):
            raise RequestError(
                f"a batch of {batch_size} is larger than the data set of {len(data)}; choose a smaller batch size"
            )
        if batch_size % world:
            raise RequestError(f"a batch of {batch_size} cannot be shared equally among {world} processes")
        self.share: int = batch_size // world
        self.micro_batch: int = min(micro_batch, self.share)
        self.micro_batches: int = math.ceil(self.share / self.micro_batch)
        self.steps: int = len(data) // batch_size
        self._count, self._batch_size, self._repeats = len(data), batch_size, repeats
        self._seed, self._first = seed, rank * self.share
        super().__init__(Samples(data, transform, seed, replace=True), workers, pin_memory)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from `start_step` on: (steps − start_step) · micro_batches of them."""
        if not 0 <= start_step <= self.steps:
            raise RequestError(f"an epoch has {some(self.steps, 'step')}; cannot start at step {start_step}")
        order = epoch_order(self._count, epoch, self._seed, self._batch_size, self._repeats)
        return self._pass(self._planned(order, epoch, start_step))

    def _planned(self, order: Tensor, epoch: int, start_step: int) -> Iterator[list[Item]]:
        for step in range(start_step, self.steps):
            first = step * self._batch_size + self._first
            for start in range(first, first + self.share, self.micro_batch):
                stop = min(start + self.micro_batch, first + self.share)
                indices = order[start:stop].tolist()
                yield [(epoch, position, index) for position, index in enumerate(indices, start)]


class EvaluationLoader(_Loader):
    """Loader of every image once over all ranks, in order: rank r of w has the images r, r + w, …

    Unreadable images are left out, so a batch may have fewer images, or none. Randomness in a transform depends on the
    image's index only.
    """

    def __init__(
        self,
        data: ImageSet,
        transform: Transform,
        *,
        batch_size: int,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        pin_memory: bool = False,
    ) -> None:
        if batch_size < 1:
            raise RequestError(f"batch_size: expected at least 1, found {batch_size}")
        self._indices = range(rank, len(data), world)
        self._batch_size = batch_size
        super().__init__(Samples(data, transform, seed=0, replace=False), workers, pin_memory)

    def __len__(self) -> int:
        return math.ceil(len(self._indices) / self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self._pass(self._planned())

    def _planned(self) -> Iterator[list[Item]]:
        for start in range(0, len(self._indices), self._batch_size):
            yield [(0, index, index) for index in self._indices[start : start + self._batch_size]]


def worker_death(error: BaseException | None, advice: str) -> EnvironmentFailure | None:
    """The error for a dead worker process, in one line, or None if `error` has another cause.

    Args:
        error: torch's `RuntimeError`, raised wherever the main thread is; or what breaks while a batch is handed over;
            or the error that a loader has made of either.
        advice: what to do, or the position of the run.
    """
    if type(error) is EnvironmentFailure:
        error = error.__cause__
    if isinstance(error, EOFError | ConnectionError) or (
        isinstance(error, RuntimeError) and "DataLoader worker" in str(error)
    ):
        return EnvironmentFailure(f"a process that loads images died ({one_line(error)}); {advice}")
    return None


@contextlib.contextmanager
def _without_worker_warning() -> Iterator[None]:
    """Context without torch's warning that there are more workers than cores: the number was requested."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        yield


def _as_is(batch: Any) -> Any:
    return batch


def _noting(started: list[BaseProcess]) -> BaseContext:
    """A context of multiprocessing that adds every process to a list before it is started."""
    context: Any = copy.copy(multiprocessing.get_context(_START))
    make = context.Process

    def noted(*args: Any, **kwargs: Any) -> BaseProcess:
        started.append(process := make(*args, **kwargs))
        return process

    context.Process = noted
    return context


def _end_workers(loader: "DataLoader[Any]") -> None:
    """End a DataLoader's persistent workers, for which torch has no function; returns when they have ended."""
    iterator: Any = loader._iterator
    loader._iterator = None
    if iterator is None:
        return
    with _ignore_worker_death():
        iterator._shutdown_workers()
    _kill(iterator._workers)


def _kill(workers: Iterable[BaseProcess]) -> None:
    """Kill processes, and wait until they have ended."""
    for worker in workers:
        # One that hangs, in a file system for instance, ignores SIGTERM as all our workers do.
        with _ignore_worker_death():
            worker.kill()
    for worker in workers:
        with _ignore_worker_death():
            worker.join(5)  # but for one whose file system does not even let it die


@contextlib.contextmanager
def _ignore_worker_death() -> Iterator[None]:
    """Context that ignores torch's error about a killed worker, which may be raised while the others are ended."""
    try:
        yield
    except RuntimeError as error:
        if worker_death(error, "") is None:
            raise
