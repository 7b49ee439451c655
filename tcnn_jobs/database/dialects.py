"""What SQLite and PostgreSQL express differently: current time, JSON documents, numbers in them, searches, upserts."""

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Dialect,
    Double,
    Integer,
    Text,
    and_,
    case,
    cast,
    false,
    func,
    literal,
    or_,
    type_coerce,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from tcnn_jobs.model.naming import storable

_DIGITS = 40
"""Characters of a number that is compared: one of a request may be larger than a database's."""
# SQLite counts rows only in a column that is called INTEGER.
Number = BigInteger().with_variant(Integer(), "sqlite")


class now(FunctionElement[float]):  # noqa: N801 - reads like SQL's own now()
    """Seconds since 1970 by the database's clock, the only one that all hosts share.

    Stays the same within a statement, as an index and a RETURNING expect.
    """

    inherit_cache = True
    type = Double()


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: Any, **options: Any) -> str:
    # 2440587.5 is 1970 as a Julian day; a float holds it to 40 µs. unixepoch('subsec') would need SQLite 3.42.
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _now_postgresql(element: now, compiler: Any, **options: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION)"


class Document(TypeDecorator[Any]):
    """A JSON document as plain ASCII text: whatever a request holds, NUL and lone surrogates too, comes back the same.

    Numbers that JSON lacks become null; PostgreSQL's own types would refuse them.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Encode as JSON text."""
        return None if value is None else json.dumps(finite(value), separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Decode JSON text."""
        return None if value is None else json.loads(value)


def finite(value: Any) -> Any:
    """A document without the numbers that JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def upsert(dialect: str, table: Any) -> Any:
    """An INSERT that knows `on_conflict_…`, in SQLite's or PostgreSQL's dialect."""
    return (sqlite if dialect == "sqlite" else postgresql).insert(table)


def is_text(column: ColumnElement[str], text: str) -> ColumnElement[bool]:
    """Whether a column is a text from outside, as it is an identifier: never what no database can store."""
    return column == text if storable(text) else false()


def occurs(dialect: str, text: ColumnElement[str], part: str) -> ColumnElement[bool]:
    """Whether a text has this part, as it is written."""
    found = func.instr if dialect == "sqlite" else func.strpos  # of LIKE the one of SQLite knows no case
    return found(text, literal(part, Text)) > 0


def number_at(dialect: str, document: Any, path: Sequence[str]) -> ColumnElement[Any]:
    """The number in a JSON document at a path; null where there is none."""
    return (_number_sqlite if dialect == "sqlite" else _number_postgresql)(document, path)


def _number_sqlite(document: Any, path: Sequence[str]) -> ColumnElement[Any]:
    place = "$" + "".join(f"[{part}]" if part.isdigit() else f'."{part}"' for part in path)
    number: ColumnElement[float] = cast(func.json_extract(document, place), Double())
    is_one = func.json_type(document, place).in_(("integer", "real"))
    return case((and_(is_one, func.abs(number) <= sys.float_info.max), number))


def _number_postgresql(document: Any, path: Sequence[str]) -> ColumnElement[Any]:
    whole = cast(_readable(type_coerce(document, Text)), JSON)
    text = func.json_extract_path_text(whole, *path)
    kind = func.json_typeof(func.json_extract_path(whole, *path))
    return case((and_(kind == "number", func.length(text) < _DIGITS), cast(text, Double())))


def _readable(document: ColumnElement[str]) -> ColumnElement[str]:
    """A JSON text of which PostgreSQL can take a part: NUL and surrogates, of which it refuses to, become blanks."""
    has = [func.strpos(document, escape) > 0 for escape in ("\\u0000", "\\ud")]
    return case(
        (or_(*has), func.regexp_replace(document, r"\\u(0000|d[89a-f][0-9a-f]{2})", r"\\u0020", "g")), else_=document
    )
