"""Console output of the commands: tables on stdout, progress bars on stderr, or one JSON object."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

import typer

from tcnn import formatting
from tcnn.characters import visible
from tcnn.display import PIPED, ImageCount, counted_images, display
from tcnn.errors import readable

if TYPE_CHECKING:  # `tcnn --help` answers before any of these is needed
    from pathlib import Path

    from pydantic import BaseModel
    from rich.console import Console

    from tcnn.evaluation.comparing.report import Table
    from tcnn.training.runs.callbacks import Report, Say

some, scale, duration = formatting.some, formatting.scale, formatting.duration

Steps = Callable[[str], None]
"""Called with the name of every step."""

_results: ContextVar[TextIO | None] = ContextVar("results", default=None)
"""Where results go while `prints_on_stderr` lasts; else to stdout."""
silenced = False
"""Whether `--quiet` was given: no progress and no notes, results and errors alone."""


def results() -> TextIO:
    """The file that results are written to: stdout."""
    return _results.get() or sys.stdout


def stdout() -> "Console":
    """Console for results; rows and notes are never broken when they are piped into a file."""
    from rich.console import Console
    from rich.segment import Segment

    class Results(Console):
        def render(self, *what: Any, **options: Any) -> Iterator[Segment]:
            for part in super().render(*what, **options):  # a name in a stranger's file may steer the terminal
                lines = part.text.split("\n")
                yield part if part.control else Segment("\n".join(map(visible, lines)), part.style)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `main` knows what to do; rich would leave with 1

    console = Results(file=results(), highlight=False, emoji=False)  # of a name such as nets:end
    return console if console.is_terminal else Results(file=results(), highlight=False, emoji=False, width=PIPED)


@contextmanager
def prints_on_stderr() -> Iterator[None]:
    """Send to stderr what others print, a user's network as it runs or a library: stdout has the result alone."""
    token = _results.set(results())
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results.reset(token)


def note(text: str) -> None:
    """Print a note on stderr, unless `--quiet` was given."""
    if not silenced:
        typer.echo(f"note: {text}", err=True)


@contextmanager
def steps(total: int, quiet: bool = False) -> Iterator[Steps]:
    """Progress on stderr that advances with every named step; nothing after `--quiet`."""
    done = 0
    with display(quiet or silenced) as shown:

        def step(name: str) -> None:
            nonlocal done
            shown.update(100 * done / total, name, lambda width: "")
            done += 1

        yield step


def images(quiet: bool = False) -> AbstractContextManager[ImageCount]:
    """Progress on stderr that counts images; nothing after `--quiet`."""
    return counted_images(quiet or silenced)


def training(quiet: bool = False, run: "Path | None" = None) -> AbstractContextManager[tuple["Report", "Say"]]:
    """Show a run of training as `shown_progress` does, and nothing after `--quiet`."""
    from tcnn.training.runs.display import shown_progress

    return shown_progress(run, quiet or silenced)


def print_tables(tables: "Iterable[Table]", notes: Iterable[str]) -> None:
    """Print tables with their titles on stdout, a blank line between them, then the notes."""
    from rich.markup import escape
    from rich.table import Table as Grid

    out = stdout()
    for number, table in enumerate(tables):
        if number:
            out.print()
        out.print(table.title, markup=False, soft_wrap=True)
        grid = Grid(box=None, pad_edge=False)
        for place, name in enumerate(table.names):
            grid.add_column(escape(name), justify="right" if place else "left", overflow="fold")
        for row in table.rows:
            grid.add_row(*map(escape, row))
        out.print(grid)
    for note in notes:
        out.print(note, markup=False)


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
    out = results()
    try:
        text.encode(out.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text), indent=2)
    print(text, file=out)
