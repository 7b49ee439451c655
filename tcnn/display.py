"""Where long work stands, on stderr: a bar in a terminal, one line that changes in a notebook, elsewhere nothing.

Lines that stay, such as notes, are shown everywhere.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from tcnn.formatting import duration, some

if TYPE_CHECKING:
    from rich.console import Console

Facts = Callable[[int], str]
"""What else to tell, in so many columns."""
Update = Callable[[float, str, Facts], None]
"""Called with per cent done, what is being done, and the facts."""
ImageCount = Callable[[int, int, str], None]
"""Called with images done, images in total, and what is being done."""

BAR = 12
"""Width of the progress bar; behind a spinner, with step and time left, it fits into 80 columns."""
SPINNER = 2
NOTEBOOK_WIDTH = 80
NOTEBOOK_SECONDS = 0.5
"""Between two changes of a notebook's line."""
PIPED = 1_000_000
"""Columns where there is no terminal: `grep` and a log file get one line a row, and every note on one line."""


class Display(NamedTuple):
    """What long work shows."""

    update: Update
    show: Callable[[str], None]
    """Shows a line that stays."""
    live: bool
    """Whether there is a bar."""


@contextmanager
def display(quiet: bool = False) -> Iterator[Display]:
    """A display that is gone in the end, but for the lines that stay; `quiet`: one that shows nothing."""
    from rich.console import Console

    notebook = Console().is_jupyter
    screen = Console(stderr=True, highlight=False, force_jupyter=False)
    live = screen.is_terminal and not notebook
    if not live:
        screen = Console(stderr=True, highlight=False, force_jupyter=False, force_terminal=False, width=PIPED)
    if quiet:
        yield Display(_nothing, lambda line: None, live=False)
        return
    with _line() if notebook else _bar(screen) if live else nullcontext(_nothing) as update:
        yield Display(update, lambda line: screen.print(line, markup=False), live)


@contextmanager
def counted_images(quiet: bool = False) -> Iterator[ImageCount]:
    """A display that counts images, with the time left."""
    started = time.monotonic()
    with display(quiet) as shown:

        def count(done: int, total: int, what: str) -> None:
            left = (time.monotonic() - started) * (total - done) / done if done else None
            facts = f"{done}/{some(total, 'image')}" + ("" if left is None else f", {duration(left)} left")
            shown.update(100 * done / max(1, total), what, lambda width: facts)

        yield count


@contextmanager
def counting(
    progress: Callable[[int], None] | None, total: int, what: str, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """What is called with the number of images of every batch: the caller's, or one that shows how many are done."""
    if progress is not None or quiet:
        yield progress or (lambda images: None)
        return
    done = 0
    with counted_images() as count:

        def batch(images: int) -> None:
            nonlocal done
            done += images
            count(done, total, what)

        yield batch


def _nothing(percent: float, head: str, facts: Facts) -> None:
    """Of an update nothing is shown."""


@contextmanager
def _bar(screen: "Console") -> Iterator[Update]:
    """A bar at the bottom of a terminal."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(bar_width=BAR), TextColumn("{task.fields[facts]}")
    with Progress(SpinnerColumn(), *columns, console=screen, transient=True) as bar:
        task = bar.add_task("starting", total=100.0, facts="")

        def update(percent: float, head: str, facts: Facts) -> None:
            told = facts(screen.width - SPINNER - len(head) - BAR - 2)
            bar.update(task, completed=percent, description=head, facts=told)

        yield update


@contextmanager
def _line() -> Iterator[Update]:
    """A line of a notebook's cell that changes; escape sequences of a terminal would stay in its file."""
    from IPython.display import display as show

    def text(line: str) -> dict[str, str]:
        return {"text/plain": line}

    shown = show(text("starting"), raw=True, display_id=True)
    last = time.monotonic()

    def update(percent: float, head: str, facts: Facts) -> None:
        nonlocal last
        if time.monotonic() - last >= NOTEBOOK_SECONDS:
            last = time.monotonic()
            shown.update(text(f"{head}  {facts(NOTEBOOK_WIDTH)}"), raw=True)

    try:
        yield update
    finally:
        shown.update(text(""), raw=True)
