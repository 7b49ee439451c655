"""Counts and times as text, as commands, reports and results show them."""

from collections.abc import Container, Iterable, Sequence
from itertools import chain, count
from typing import Any


class Printed:
    """Base of results that IPython and notebooks show as `print` does."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def some(count: int, noun: str) -> str:
    """A number of things: 1 image, 2 images, 2 classes."""
    return f"{count} {plural(count, noun)}"


def plural(count: float, noun: str) -> str:
    """The noun as it stands behind a number that is written in a way of its own: 1,024 images, 0.5 minutes."""
    return noun if count == 1 else f"{noun}es" if noun.endswith("s") else f"{noun}s"


def are(count: int) -> str:
    """The verb of so many things: one is, two are."""
    return "is" if count == 1 else "are"


def unreadable(images: int) -> str:
    """What is said of so many files that are no images."""
    return f"{some(images, 'image')} cannot be read and {are(images)} left out"


def few(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def scale(number: float) -> str:
    """Format a large count: 1234567 → 1.2 M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return f"{number:g}"


def share(number: float) -> str:
    """A part of a whole in percent, which is not told to be nothing unless it is: 0.403 → 40.3%, 4.2e-5 → 0.0042%."""
    digits = f"{number:.1%}"
    return f"{100 * number:.2g}%" if number and not digits.strip("-0.%") else digits


def unused(name: str, known: Container[str]) -> str:
    """The name, or where it is known already, with the first number that makes it another: a, a 2, a 3."""
    return next(one for one in chain([name], (f"{name} {number}" for number in count(2))) if one not in known)


def distinct(names: Iterable[str]) -> list[str]:
    """The names, those that came before with a number: a, b, a 2."""
    found: list[str] = []
    for name in names:
        found.append(unused(name, found))
    return found


def duration(seconds: float) -> str:
    """Format seconds: 3725 → 1:02:05."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def columns(rows: Iterable[Sequence[str]], numbers: bool = False) -> str:
    """Rows of cells as text in columns, two spaces apart; `numbers`: all but the first column end alike."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if numbers and place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )
