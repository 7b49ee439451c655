"""Interface of an engine, which runs the processes of jobs for a worker."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tcnn.config.placement import Placement


class Process(Protocol):
    """A job's process. None of these waits."""

    def poll(self) -> int | None:
        """The exit code, −N if signal N ended it, or None while it runs."""
        ...

    def terminate(self) -> None:
        """Ask it to save what it has and leave."""
        ...

    def memory(self, most: int) -> int:
        """Bytes that it and its descendants take on this host, exact if more than `most`; 0 if that is not known."""
        ...

    def kill(self) -> None:
        """End it and every process that it has started."""
        ...


class Engine(Protocol):
    """Starts processes."""

    def start(self, directory: Path, gpus: Sequence[str]) -> Process:
        """Start the process of the attempt that was written to `directory`; none but these GPUs are its own."""
        ...

    def placement(self, num_workers: int) -> Placement:
        """Where the training of a job goes that asks for so many processes."""
        ...
