"""Nested measurements as rows of CSV."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """CSV of all rows; a column for every value that any of them has, in the order of appearance.

    `{"val": {"top1": 0.5}}` has the column `val.top1`; the members of a list are numbered from 0.
    """
    flat = [dict(_leaves(row, "")) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
