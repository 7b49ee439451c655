"""Which of many cases every run of the tests takes: some, on one of two databases, and `make test-slow` the others."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def sampled(cases: Iterable[Any], always: Collection[Any]) -> list[Any]:
    """All cases as parameters, a tuple being several; those that are not among `always` are slow."""
    found = list(cases)
    unknown = [case for case in always if case not in found]
    assert not unknown, unknown
    return [case if case in always else _slow(case) for case in found]


def crossed(rows: Sequence[Any], columns: Sequence[Any], every: int) -> list[Any]:
    """All pairs as parameters, of which every third, say, is not slow: each row and each column has some of those."""
    return [
        (row, column) if (i + j) % every == 0 else _slow((row, column))
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]


def smallest_of_every_family() -> list[str]:
    """The convertible model with the fewest parameters of every family that has one."""
    from tcnn.zoo import catalogue

    families: dict[str, catalogue.Entry] = {}
    for entry in catalogue.entries().values():
        before = families.get(entry.family)
        if entry.convertible and (before is None or entry.parameters < before.parameters):
            families[entry.family] = entry
    return [entry.name for entry in families.values()]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)


def quick_on(database: str, fixture: str = "url") -> pytest.MarkDecorator:
    """Both databases as parameters of a fixture; all but this one are slow."""
    both = [name if name == database else pytest.param(name, marks=pytest.mark.slow) for name in ("sqlite", "postgres")]
    return pytest.mark.parametrize(fixture, both, indirect=True)


ON_SQLITE = quick_on("sqlite")
"""For rules of the queue: both databases are asked by the same statements."""
ON_POSTGRES = quick_on("postgres")
"""For races: many write at once in PostgreSQL, and one after the other in SQLite."""
