"""Console output of the commands: tables on stdout, progress bars on stderr, or one JSON object."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import typer

from tcnn.errors import readable

if TYPE_CHECKING:  # `tcnn --help` answers before any of these is needed
    from pydantic import BaseModel
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

    from tcnn.training.runs.callbacks import Progress as TrainingProgress
    from tcnn.training.runs.callbacks import Report

Steps = Callable[[str], None]
"""Called with the name of every step."""

ImageCount = Callable[[int, int, str], None]
"""Called with images done, images in total, and a description."""

silenced = False
"""Whether `--quiet` was given: no progress and no notes, results and errors alone."""

PIPED = 1_000_000
"""Columns where there is no terminal: what `grep` and a log file get has one line a row, and notes of one line."""

BAR = 14
"""Width of training's progress bar; with step and time left it fits into 80 columns."""


class Watcher(Protocol):
    """What looks at the reports of a run beside its progress bar."""

    def look(self, now: "TrainingProgress") -> None:
        """At a report."""

    def finish(self) -> None:
        """When the run has ended, however it did, and before every note: what has ended stands above it."""


def stdout() -> "Console":
    """Console for results; rows and notes are never broken when they are piped into a file."""
    from rich.console import Console

    class Results(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `main` knows what to do; rich would leave with 1

    console = Results(highlight=False)
    return console if console.is_terminal else Results(highlight=False, width=PIPED)


def note(text: str) -> None:
    """Print a note on stderr, unless `--quiet` was given."""
    if not silenced:
        typer.echo(f"note: {text}", err=True)


@contextmanager
def steps(total: int, quiet: bool = False) -> Iterator[Steps]:
    """Progress bar on stderr that advances with every named step; silent when stderr is no terminal."""
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

    with _bar(quiet, SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda step: bar.update(task, advance=1, description=step)


@contextmanager
def images(quiet: bool = False) -> Iterator[ImageCount]:
    """Progress bar on stderr that counts images; silent when stderr is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with _bar(quiet, *columns) as bar:
        task = bar.add_task("opening the data set", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _bar(quiet: bool, *columns: "ProgressColumn") -> "Progress":
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=quiet or silenced or not console.is_terminal)


@contextmanager
def training(
    quiet: bool = False, watcher: "Callable[[Callable[[str], None]], Watcher] | None" = None
) -> Iterator[tuple["Report", Callable[[str], None]]]:
    """Progress bar of training on stderr: step, loss, speed, time left; without a terminal one line per epoch.

    Args:
        watcher: makes, of a function that shows a line, what looks at every report, before every note, and once more
            in the end (`EpochLog`).

    Yields the `report` and `say` callbacks for `finetune`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=True, highlight=False, width=PIPED)
    quiet = quiet or silenced
    live = console.is_terminal and not quiet
    columns = TextColumn("{task.description}"), BarColumn(bar_width=BAR), TextColumn("{task.fields[facts]}")
    shown = ""

    def say(message: str) -> None:
        if not quiet:
            console.print(message, markup=False)

    watch = None if watcher is None or quiet else watcher(say)
    with Progress(*columns, console=console, transient=True, disable=not live) as bar:
        task = bar.add_task("starting", total=100.0, facts="")

        def report(now: "TrainingProgress") -> None:
            nonlocal shown
            head = headline(now)
            room = console.width - len(head) - BAR - 2
            bar.update(task, completed=now.percent, description=head, facts=facts(now, room))
            if watch is not None:
                watch.look(now)
            epoch = f"epoch {now.epoch} of {now.epochs}"
            if watch is None and not live and not quiet and now.phase == "validating" and epoch != shown:
                shown = epoch
                console.print(f"{epoch} trained, validating", markup=False)

        def tell(message: str) -> None:
            if watch is not None:
                watch.finish()
            say(message)

        try:
            yield report, tell
        finally:
            if watch is not None:
                watch.finish()


def headline(now: "TrainingProgress") -> str:
    """Phase, epoch and step of a run as text; a phase without epochs or steps has 0 of them."""
    epoch = f"epoch {now.epoch}/{now.epochs}" if now.epochs else ""
    step = f"step {now.step}/{now.steps}" if now.steps else ""
    phase = "" if now.phase == "training" and epoch else now.phase
    return " ".join(filter(None, (phase, epoch, step)))


def facts(now: "TrainingProgress", width: int = 80) -> str:
    """What fits into a width: time left, then share done, loss, speed, accuracy, learning rate and temperature."""
    parts = [
        "" if now.eta_seconds is None else f"{duration(now.eta_seconds)} left",
        f"{now.percent:.0f}%",
        "" if now.loss is None else f"loss {now.loss:.3f}",
        "" if now.images_per_second is None else f"{now.images_per_second:.0f} img/s",
        "" if now.top1 is None else f"top-1 {now.top1:.1%}",
        "" if now.lr is None else f"lr {now.lr:.1e}",
        "" if now.temperature is None else f"τ {now.temperature:.3f}",
    ]
    fitting = ""
    for part in filter(None, parts):
        longer = f"{fitting}  {part}" if fitting else part
        if fitting and len(longer) > width:
            break
        fitting = longer
    return fitting


def duration(seconds: float) -> str:
    """Format seconds: 3725 → 1:02:05."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def print_json(result: "BaseModel") -> None:
    """Print one JSON object on stdout and nothing else."""
    from pydantic_core import PydanticSerializationError

    try:
        text = result.model_dump_json(indent=2)
    except PydanticSerializationError:
        text = json.dumps(_encodable(result.model_dump(mode="json")), ensure_ascii=False, indent=2)
    print_json_text(text)


def _encodable(value: object) -> object:
    """A result with paths that are no UTF-8 as `readable` tells them: JSON has no place for lone surrogates."""
    match value:
        case str():
            return readable(value)
        case dict():
            return {name: _encodable(each) for name, each in value.items()}
        case list():
            return [_encodable(each) for each in value]
        case float() if not math.isfinite(value):
            return None  # as Pydantic has it
    return value


def print_json_text(text: str) -> None:
    """Print JSON as it is, or with escapes where stdout's encoding lacks some of its characters."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text), indent=2)
    print(text)  # noqa: T201


def some(count: int, noun: str) -> str:
    """A number of things: 1 image, 2 images, 2 classes."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def scale(count: float) -> str:
    """Format a large count: 1234567 → 1.2 M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:g}"
