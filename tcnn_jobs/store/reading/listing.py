"""Lists of jobs: filtered, searched, in any order, a page at a time.

Newest first, a page is read from an index, however many jobs there are. A search, and an order by a column, look at the
newest jobs that the other filters leave, up to a bound: what they take does not grow with the store.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Double,
    Row,
    Select,
    Text,
    and_,
    func,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.sql.elements import ColumnElement

from tcnn.characters import folded, spellings
from tcnn_jobs.database.dialects import is_text, number_at, occurs
from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import TAGGED, has_status, jobs
from tcnn_jobs.model.columns import Cursor, Order, column
from tcnn_jobs.model.jobs import Job, Kind, Making, Status
from tcnn_jobs.store.changes import find
from tcnn_jobs.store.reading.places import Places

Jobs = list[Job]  # `list` is a method below
NEWEST = Order()
SEARCHED, ORDERED = 100_000, 10_000
"""Jobs that a search, or tags, are looked for in, and those that are put in an order: for each of the latter a database
reads a document or two, which takes PostgreSQL as long as some thirty words."""


class Listing(Database):
    """Pages of jobs. `owner=None` looks at everybody's."""

    def __init__(self, url: str, *, wait: float = 5.0) -> None:
        super().__init__(url, wait=wait)
        self._places = Places()

    def list(
        self,
        owner: str | None = None,
        *,
        after: str | None = None,
        limit: int = 20,
        status: Status | None = None,
        kind: Kind | None = None,
        model: Making | None = None,
        search: str = "",
        tags: Sequence[str] = (),
        order: Order = NEWEST,
    ) -> tuple[Jobs, str | None]:
        """Jobs in an order, `limit` of them, and if there are more what to give as `after` to get those.

        `after` may also be the id of a job. Raises `JobNotFound` and `WrongPlace` for it.

        `search`: words that all occur in what a job is called, in its note, in its request, or in what the uploads and
        jobs were called that this names; in any case and spelling of accents. `tags`: those that it has all of. With
        either it is of the newest `SEARCHED` jobs, in another order than that of submission of the newest `ORDERED`.
        `model`: those that have made one, or that will.
        """
        wanted: list[Any] = [
            is_text(column, value) for column, value in _plain(owner, status, kind) if value is not None
        ]
        if tags:
            wanted.append(TAGGED)
        if order.by != "created":
            wanted.append(_among_newest(wanted, ORDERED))
        elif search or tags:
            wanted.append(_among_newest(wanted, SEARCHED))
        with self.reading() as connection:
            dialect = connection.dialect.name
            wanted += _of_model(dialect, model)
            # Tags are kept as they were written, and so were the words of jobs by 0.2.0.
            wanted += [_has(dialect, _words(), spellings(word)) for word in folded(search).split()]
            spelt = ([json.dumps(each) for each in spellings(tag)] for tag in tags)
            wanted += [_has(dialect, type_coerce(jobs.c.tags, Text), each) for each in spelt]
            last = None if after is None else _place(connection, after, owner, order.by)
            if order.by == "created":
                rows = connection.execute(_by_number(wanted, order, last).limit(limit + 1)).all()
                places = [Cursor(row.number) for row in rows]
            else:
                places = _ordered(connection, wanted, order, last, limit + 1)
                rows = _rows(connection, places[:limit])
            told = str(places[limit - 1]) if len(places) > limit else None
            return self._places.placed(connection, rows[:limit]), told

    def begin(self, after: str, owner: str | None = None, order: Order = NEWEST) -> str:
        """What to give to `list` for the same pages, whatever happens to the job `after`; raises as that does."""
        with self.reading() as connection:
            return str(_place(connection, after, owner, order.by))


def _plain(owner: str | None, status: Status | None, kind: Kind | None) -> Sequence[tuple[Any, Any]]:
    return (jobs.c.owner, owner), (jobs.c.status, status), (jobs.c.kind, kind)


def _of_model(dialect: str, model: Making | None) -> Sequence[ColumnElement[bool]]:
    """Before a result is read the columns of the row have decided, but for jobs that nearly all have made one."""
    if model is None:
        return ()
    makes = jobs.c.kind != Kind.EVALUATE
    if model == Making.EXPECTED:
        return makes, jobs.c.status.in_((Status.QUEUED, Status.RUNNING))
    return makes, has_status(Status.SUCCEEDED), number_at(dialect, jobs.c.result, ("checkpoint", "size")).is_not(None)


def _among_newest(wanted: Sequence[ColumnElement[bool]], most: int) -> ColumnElement[bool]:
    newest = select(jobs.c.number).where(*wanted).order_by(jobs.c.number.desc()).limit(most).subquery()
    return jobs.c.number >= select(func.min(newest.c.number)).scalar_subquery()


def _has(dialect: str, text: ColumnElement[str], parts: Sequence[str]) -> ColumnElement[bool]:
    return or_(*(occurs(dialect, text, part) for part in parts))


def _words() -> ColumnElement[str]:
    """What is searched; of a job that an older release submitted, its request."""
    return func.coalesce(
        jobs.c.words, func.lower(jobs.c.id + " " + jobs.c.kind + " " + type_coerce(jobs.c.request, Text))
    )


def _place(connection: Connection, after: str, owner: str | None, by: str) -> Cursor:
    """Where a page begins after a place that was told, or after a job, as it stands now."""
    place = Cursor.of(after, by)
    if place is not None:
        return place
    number = find(connection, after, owner).number
    if by == "created":
        return Cursor(number)
    value = connection.scalar(select(_value(connection.dialect.name, by)).where(jobs.c.number == number))
    return Cursor(number, by, value)


def _by_number(wanted: Sequence[ColumnElement[bool]], order: Order, last: Cursor | None) -> Select[Any]:
    number = jobs.c.number
    query = select(jobs).where(*wanted)
    if last is not None:
        query = query.where(number < last.number if order.descending else number > last.number)
    return query.order_by(number.desc() if order.descending else number)


def _ordered(
    connection: Connection, wanted: Sequence[ColumnElement[bool]], order: Order, last: Cursor | None, limit: int
) -> list[Cursor]:
    """Places by a column's value, equal ones the newest first. Only numbers are sorted."""
    value = _value(connection.dialect.name, order.by)
    query = select(jobs.c.number, value.label("value")).where(*wanted)
    if last is not None:
        older = jobs.c.number < last.number
        if last.value is None:
            query = query.where(value.is_(None), older)
        else:
            beyond = value < last.value if order.descending else value > last.value
            query = query.where(or_(beyond, and_(value == last.value, older), value.is_(None)))
    direction = value.desc() if order.descending else value.asc()
    rows = connection.execute(query.order_by(direction.nulls_last(), jobs.c.number.desc()).limit(limit))
    return [Cursor(row.number, order.by, row.value) for row in rows]


def _rows(connection: Connection, places: Sequence[Cursor]) -> Sequence[Row[Any]]:
    numbers = [place.number for place in places]
    rows = {row.number: row for row in connection.execute(select(jobs).where(jobs.c.number.in_(numbers)))}
    return [rows[number] for number in numbers if number in rows]


@cache
def _value(dialect: str, by: str) -> ColumnElement[Any]:
    """What jobs are ordered by."""
    plain: dict[str, ColumnElement[Any]] = {
        "started": jobs.c.started_at,
        "finished": jobs.c.finished_at,
        "duration": jobs.c.finished_at - jobs.c.started_at,
        "name": func.lower(jobs.c.name),
    }
    if by in plain:
        return plain[by]
    found = column(by)
    assert found is not None  # noqa: S101 - `Order.of` has looked
    numbers = [number_at(dialect, jobs.c[found.document], path) for path in found.paths]
    return func.coalesce(*numbers, type_=Double())
