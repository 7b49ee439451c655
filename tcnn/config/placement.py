"""Placement of a training run: number of processes, and torchrun on this host or a Ray cluster."""

from typing import Literal

from pydantic import Field, model_validator

from tcnn.config.base import Frozen
from tcnn.config.finetune import FinetuneConfig


class Placement(Frozen):
    """Number of processes of a run, and what starts them. Results depend on it by rounding only."""

    engine: Literal["local", "ray"] = Field(
        default="local", description="local: this host, under torchrun if there are several; ray: a Ray cluster."
    )
    num_workers: int = Field(default=1, ge=1, le=4096, description="Processes that share the training, a GPU each.")
    address: str | None = Field(default=None, description="HOST:PORT of the Ray cluster.")
    max_failures: int = Field(default=3, ge=0, description="Restarts from the last resume point that Ray makes itself.")
    grace: float = Field(
        default=30.0, ge=0, description="Seconds that processes have to save a resume point and leave."
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Placement":
        if (self.engine == "ray") != (self.address is not None):
            found = "no address" if self.address is None else f"{self.engine} and the address {self.address}"
            raise ValueError(f"engine: expected ray and the cluster's address, or neither, found {found}")
        return self


def uneven(config: FinetuneConfig, num_workers: int) -> str | None:
    """Why a batch cannot be divided equally among so many processes, in one line; None if it can."""
    pairs = num_workers > 1 and bool(config.mixup or config.cutmix)
    divisor = num_workers * 2 if pairs else num_workers
    if config.batch_size % divisor == 0:
        return None
    even = ", an even number for each as mixup takes pairs" if pairs else ""
    nearest = max(1, config.batch_size // divisor) * divisor
    return (
        f"batch_size {config.batch_size} cannot be shared equally among {num_workers} processes{even}; "
        f"give {nearest}, or another number of processes"
    )
