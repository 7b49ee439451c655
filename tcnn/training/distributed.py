"""Distributed training: rank, world size, process group, device of this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist

from tcnn.errors import EnvironmentFailure, one_line
from tcnn.models.running import usable_device

T = TypeVar("T")


class Processes(NamedTuple):
    """This process among the processes of a run."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files (rank 0)."""
        return self.rank == 0

    def sum(self, values: list[float], device: torch.device) -> list[float]:
        """Sum of every value over all processes (all-reduce), in float64."""
        if self.world == 1:
            return values
        # Gloo adds on the CPU; NCCL only on the GPU, where MPS has no float64 but cannot be distributed either.
        tensor = torch.tensor(values, dtype=torch.float64, device=device if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(tensor)
        return [float(value) for value in tensor]

    def gather(self, value: T) -> list[T]:
        """What every process gives, by rank."""
        found = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(found, value)
        return found

    def barrier(self) -> None:
        """Barrier: wait until all processes are here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def join_processes(device: str) -> Iterator[Processes]:
    """Context that joins the process group of `torchrun`, if there is one: NCCL on GPUs, Gloo on CPUs."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or "RANK" not in os.environ:
        yield Processes()
        return
    processes = Processes(int(os.environ["RANK"]), world, int(os.environ.get("LOCAL_RANK", "0")))
    on_gpu = device != "cpu" and torch.cuda.is_available()
    mine = not dist.is_initialized()
    try:
        if on_gpu:
            torch.cuda.set_device(processes.local_rank)
        if mine:
            dist.init_process_group("nccl" if on_gpu else "gloo")
    except (RuntimeError, ValueError) as error:
        raise EnvironmentFailure(
            f"the {world} training processes cannot reach each other ({one_line(error)})"
        ) from error
    try:
        yield processes
    finally:
        if mine:
            dist.destroy_process_group()


def process_device(device: str, processes: Processes) -> torch.device:
    """The device of this process; raises `EnvironmentFailure` for an unusable one."""
    if device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{processes.local_rank}"
    return usable_device(device)
