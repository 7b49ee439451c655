"""What the commands print with: tables on stdout, progress on stderr, and one JSON object instead when asked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `tcnn --help` answers before any of these is needed
    from pydantic import BaseModel
    from rich.console import Console

Steps = Callable[[str], None]
"""Reports that a named step begins."""

Epochs = Callable[[int], None]
"""Reports how many epochs are done."""


def stdout() -> "Console":
    """Where results go; tables keep their width when they are piped into a file."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


@contextmanager
def steps(total: int, quiet: bool = False) -> Iterator[Steps]:
    """A progress bar on stderr that moves with every named step; silent when stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("starting", total=total)
        yield lambda step: progress.update(task, advance=1, description=step)


def print_json(result: "BaseModel") -> None:
    """One JSON object on stdout and nothing else."""
    print(result.model_dump_json(indent=2))  # noqa: T201


def scale(count: float) -> str:
    """1234567 → 1.2 M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:g}"
