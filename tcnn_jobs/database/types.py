"""What SQLite and PostgreSQL express differently: types of columns, JSON documents, and the current time."""

import json
import math
from typing import Any

from sqlalchemy import BigInteger, Dialect, Double, Integer, Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

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
