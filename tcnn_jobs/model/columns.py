"""Columns by which jobs are compared: settings of their requests and numbers of their results, by short names.

A setting has one name wherever a request has it: `settings.lr` is `config.lr` of `POST /finetune`, and
`finetune.config.lr` of `POST /transform`. A number of an evaluation is that of its first model: `metrics.top1` is
`rows.0.clean.top1`. `metrics.accuracy` is the top-1 accuracy of the model that a result is: training keeps the weights
of its best epoch, and `metrics.top1` is that of its last one.

Lists are sorted by them, too, and go on from one page to the next at a place in that order.
"""

import base64
import json
import math
import re
from typing import Any, NamedTuple

from tcnn.errors import RequestError
from tcnn_jobs.model.naming import shown

Path = tuple[str, ...]

PLAIN = ("created", "started", "finished", "duration", "name")
"""Orders of a list that every job has, or will have."""

SETTINGS, METRICS = "settings", "metrics"
_BEGINNINGS: dict[str, tuple[Path, ...]] = {
    SETTINGS: ((), ("config",), ("finetune",), ("finetune", "config")),
    METRICS: ((), ("rows", "0"), ("rows", "0", "clean")),
}
_ACCURACY = "accuracy"
_ACCURACIES: tuple[Path, ...] = (("best_top1",), ("rows", "0", "clean", "top1"))
_CLASSES = "per_class"
"""Under this name there is a number for each class, of which there may be thousands."""
DEEPEST = 4
"""Names that a column's may consist of."""
MOST = 60
"""Numbers that are told of one result."""
_COLUMN = re.compile(rf"({SETTINGS}|{METRICS})((?:\.[A-Za-z0-9_-]{{1,64}}){{1,{DEEPEST}}})")


class Column(NamedTuple):
    """Where a column's value is in a job's document: at the first of the paths at which there is a number."""

    document: str
    paths: tuple[Path, ...]


def column(name: str) -> Column | None:
    """The column of a name such as `metrics.top1` or `settings.lr`; None if it is no such name."""
    found = _COLUMN.fullmatch(name)
    if found is None:
        return None
    own = tuple(found[2][1:].split("."))
    if name == f"{METRICS}.{_ACCURACY}":
        return Column("result", tuple((METRICS, *path) for path in _ACCURACIES))
    document, inside = ("request", ()) if found[1] == SETTINGS else ("result", (METRICS,))
    return Column(document, tuple((*inside, *start, *own) for start in _BEGINNINGS[found[1]]))


def metrics_of(metrics: dict[str, Any] | None) -> dict[str, float]:
    """The numbers of a result by short names, those of lists and of single classes left out; of more than `MOST` those
    with the shortest."""
    accuracy = _first(metrics, _ACCURACIES)
    found = {} if accuracy is None else {_ACCURACY: accuracy}
    for start in _BEGINNINGS[METRICS]:
        for name, value in _numbers(_at(metrics, start), ""):
            found.setdefault(name, value)
    second = {f"clean.{name}" for name in found}  # of the same numbers
    own = (name for name in found if name not in second)
    return {name: found[name] for name in sorted(own, key=lambda name: name.count("."))[:MOST]}


def value_of(job: dict[str, Any], name: str) -> float | None:
    """What a job, as the service tells it, has in a column; None for nothing."""
    if name.startswith(f"{METRICS}."):
        found = job["metrics"].get(name.removeprefix(f"{METRICS}."))
        return None if found is None else float(found)
    return _first(job["request"], place.paths if (place := column(name)) else ())


def _first(document: Any, paths: tuple[Path, ...]) -> float | None:
    """The number at the first of the paths at which there is one."""
    values = (_at(document, path) for path in paths)
    return next((float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool)), None)


def _at(document: Any, path: Path) -> Any:
    for part in path:
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    return document


def _numbers(document: Any, prefix: str, depth: int = 1) -> list[tuple[str, float]]:
    if not isinstance(document, dict) or depth > DEEPEST:
        return []
    found: list[tuple[str, float]] = []
    for name, value in document.items():
        if name == _CLASSES or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", str(name)):
            continue
        if isinstance(value, dict):
            found += _numbers(value, f"{prefix}{name}.", depth + 1)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found.append((f"{prefix}{name}", value))
    return found


class Order(NamedTuple):
    """In what order jobs are listed; those without a value come last either way."""

    by: str = "created"
    descending: bool = True

    @classmethod
    def of(cls, text: str) -> "Order":
        """`name`, or `-metrics.top1` for the greatest first; raises `RequestError`."""
        by = text.removeprefix("-")
        if by not in PLAIN and column(by) is None:
            raise RequestError(
                f"expected one of {', '.join(PLAIN)}, {SETTINGS}.NAME or {METRICS}.NAME, with - before it for the "
                f"greatest first, found {text[:100]!a}"
            )
        return cls(by, text.startswith("-"))


_CURSOR = "next_"
_LARGEST = 2**63 - 1
"""The largest number that a row can have."""
_NOT_STORED = re.compile("[\0\ud800-\udfff]")
"""What no database takes in a text. All else may be in a name: joiners and wide spaces are."""


class WrongPlace(RequestError):
    """A list in this order has no such place."""


class Cursor(NamedTuple):
    """A place in an order: the row's number and what it is sorted by. It stays when the row is deleted or changed."""

    number: int
    by: str = "created"
    value: str | float | None = None

    def __str__(self) -> str:
        """As clients pass it on, who are to make nothing of it."""
        text = json.dumps(self, separators=(",", ":"))
        return _CURSOR + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def of(cls, text: str, by: str = "created") -> "Cursor | None":
        """The place that a text stands for; None for an id. Raises `WrongPlace` for one of another order, and for what
        no page has told."""
        if not text.startswith(_CURSOR):
            return None
        try:
            coded = text.removeprefix(_CURSOR)
            found = cls(*json.loads(base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True)))
        except (ValueError, TypeError, RecursionError):
            found = cls(-1)
        if type(found.number) is not int or not 0 <= found.number <= _LARGEST or found.by != by or not _sorts(found):
            raise WrongPlace(f"after: expected an id, or `next` of a page in the same order, found {shown(text)}")
        return found


def _sorts(found: Cursor) -> bool:
    """Whether this order has such values."""
    if found.value is None:
        return True
    if found.by == "name":
        return isinstance(found.value, str) and not _NOT_STORED.search(found.value)
    return isinstance(found.value, float) and math.isfinite(found.value)
