"""Console output of the commands: tables on stdout, progress bars on stderr, or one JSON object."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `tcnn --help` answers before any of these is needed
    from pydantic import BaseModel
    from rich.console import Console

    from tcnn.training.runs.progress import Progress as TrainingProgress
    from tcnn.training.runs.progress import Report

Steps = Callable[[str], None]
"""Called with the name of every step."""

Epochs = Callable[[int], None]
"""Called with the number of epochs done."""


def stdout() -> "Console":
    """Console for results; tables keep their width when they are piped into a file."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


@contextmanager
def steps(total: int, quiet: bool = False) -> Iterator[Steps]:
    """Progress bar on stderr that advances with every named step; silent when stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("starting", total=total)
        yield lambda step: progress.update(task, advance=1, description=step)


@contextmanager
def training(quiet: bool = False) -> Iterator[tuple["Report", Callable[[str], None]]]:
    """Progress bar of training on stderr: loss, rate, τ, speed, time left; one line per epoch without a terminal.

    Yields the `report` and `say` callbacks for `finetune`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True, highlight=False)
    live = console.is_terminal and not quiet
    columns = TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[facts]}")
    shown = ""
    with Progress(*columns, console=console, transient=True, disable=not live) as bar:
        task = bar.add_task("starting", total=100.0, facts="")

        def report(now: "TrainingProgress") -> None:
            nonlocal shown
            bar.update(task, completed=now.percent, description=headline(now), facts=facts(now))
            epoch = f"epoch {now.epoch} of {now.epochs}"
            if not live and not quiet and now.phase == "validating" and epoch != shown:
                shown = epoch
                console.print(f"{epoch} trained, validating", markup=False)

        yield report, lambda message: None if quiet else console.print(message, markup=False)


def headline(now: "TrainingProgress") -> str:
    """Phase, epoch and step of a run as text; a phase without epochs or steps has 0 of them."""
    epoch = f"epoch {now.epoch}/{now.epochs}" if now.epochs else ""
    step = f"step {now.step}/{now.steps}" if now.steps else ""
    return " ".join(filter(None, (now.phase, epoch, step)))


def facts(now: "TrainingProgress") -> str:
    """Loss, learning rate, temperature and speed as text."""
    parts = [
        f"{now.percent:.0f}%",
        "" if now.loss is None else f"loss {now.loss:.3f}",
        "" if now.top1 is None else f"top-1 {now.top1:.1%}",
        "" if now.lr is None else f"lr {now.lr:.1e}",
        "" if now.temperature is None else f"τ {now.temperature:.3f}",
        "" if now.images_per_second is None else f"{now.images_per_second:.0f} img/s",
        "" if now.eta_seconds is None else f"{duration(now.eta_seconds)} left",
    ]
    return "  ".join(filter(None, parts))


def duration(seconds: float) -> str:
    """Format seconds: 3725 → 1:02:05."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def print_json(result: "BaseModel") -> None:
    """Print one JSON object on stdout and nothing else."""
    print(result.model_dump_json(indent=2))  # noqa: T201


def scale(count: float) -> str:
    """Format a large count: 1234567 → 1.2 M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:g}"
