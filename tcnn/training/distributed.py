"""One process or several: who am I, and what do we all agree on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist

from tcnn.errors import EnvironmentFailure, one_line


class Processes(NamedTuple):
    """This process among those that share the training."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def total(self, values: list[float], device: torch.device) -> list[float]:
        """The sum of every value over all processes, in float64."""
        if self.world == 1:
            return values
        # Gloo adds on the CPU; NCCL only on the GPU, where MPS has no float64 but cannot be distributed either.
        tensor = torch.tensor(values, dtype=torch.float64, device=device if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(tensor)
        return [float(value) for value in tensor]

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """Join the processes that `torchrun` started, if it did; NCCL on GPUs, Gloo on CPUs. Leaves them at the end."""
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


def place(device: str, processes: Processes) -> torch.device:
    """The device of this process; raises `EnvironmentFailure` for one that is not usable."""
    from tcnn.workflows.pipeline import usable_device

    if device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{processes.local_rank}"
    return usable_device(device)
