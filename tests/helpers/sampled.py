"""Which of many cases every run of the tests takes: some, and `make test-slow` the others."""

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


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
