"""What a worker needs of whatever runs a job's process."""

from pathlib import Path
from typing import Protocol


class Process(Protocol):
    """A job's process. None of these waits."""

    def poll(self) -> int | None:
        """The exit code, −N if signal N ended it, or None while it runs."""
        ...

    def terminate(self) -> None:
        """Ask it to save what it has and leave."""
        ...

    def kill(self) -> None:
        """End it and every process that it has started."""
        ...


class Engine(Protocol):
    """Starts processes."""

    def start(self, directory: Path, gpu: str | None) -> Process:
        """Start the process of the attempt that was written to `directory`, on a GPU of its own if one is named."""
        ...
