"""Queue positions: how many queued jobs would start before a job, if no job ended meanwhile, and why a job waits.

Positions are exact in a queue of up to `HEAD` jobs, which is read for every answer. In a longer one they come from a
`Snapshot`, seconds old.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, and_, bindparam, func, select

from tcnn.formatting import some
from tcnn_jobs.database.dialects import now
from tcnn_jobs.database.schema import has_status, jobs, workers
from tcnn_jobs.model.jobs import Job, Status
from tcnn_jobs.store import needs
from tcnn_jobs.store.accounts import quotas
from tcnn_jobs.store.accounts.shares import QUEUED, Standing, rooms, standings
from tcnn_jobs.store.changes import as_job
from tcnn_jobs.store.fleet import PRESENT, WIDEST
from tcnn_jobs.store.reading.snapshot import Snapshot

HEAD = 250
"""Largest number of queued jobs that is read for every answer."""

_DUE = and_(jobs.c.not_before <= now(), jobs.c.unmet == 0)
_LINE = (
    select(jobs.c.number, jobs.c.priority, jobs.c.owner, jobs.c.not_before, _DUE.label("due"))
    .where(QUEUED)
    .limit(bindparam("most"))
)
_SLOTS = select(func.count(), func.coalesce(func.sum(workers.c.slots), 0)).where(PRESENT)
_TAKEN = select(func.coalesce(func.sum(jobs.c.slots), 0)).where(has_status(Status.RUNNING))
_LARGEST = select(func.max(WIDEST).label("job"), func.max(workers.c.slots).label("slots")).where(PRESENT)
_NEWEST = select(func.max(workers.c.request_version)).where(PRESENT)


_HELD = float("-inf")
"""When a job is due that a quota holds back: before all that are not yet."""


class _Part(NamedTuple):
    """One tenant's due jobs of one priority: ascending numbers, and the slots it holds when the first starts."""

    numbers: list[int]
    slots: int
    tie: tuple[int, float, int]
    """Order among tenants that hold as many slots: least recently served first, then the oldest job."""


class Line:
    """A snapshot of the queue in the order of claims: due jobs by priority and share, then those that a quota holds
    back, then delayed ones by due time.

    Fair share as in `shares`: a tenant's k-th next job starts when it holds k slots more than now. Every job counts as
    one slot, for it is not known which will fit where. `room`: how many jobs a tenant with a quota may start.
    """

    def __init__(
        self, rows: Iterable[Any], standing: Mapping[str, Standing], room: Mapping[str, int] | None = None
    ) -> None:
        due: dict[int, dict[str, list[int]]] = {}
        self._later: list[tuple[float, int, int]] = []
        self._room = room or {}
        bound: dict[str, list[tuple[int, int]]] = {owner: [] for owner in self._room}
        for number, priority, owner, not_before, is_due in rows:
            if not is_due:
                self._later.append((not_before, -priority, number))
            elif owner in bound:
                bound[owner].append((-priority, number))
            else:
                due.setdefault(priority, {}).setdefault(owner, []).append(number)
        self._starts: dict[str, list[tuple[int, int]]] = {}
        """Those that tenants with a quota may start, in order."""
        for owner, waiting in bound.items():
            waiting.sort()
            self._starts[owner] = waiting[: self._room[owner]]
            for above, number in self._starts[owner]:
                due.setdefault(-above, {}).setdefault(owner, []).append(number)
            self._later += [(_HELD, above, number) for above, number in waiting[self._room[owner] :]]
        self._later.sort()
        self._total = 0
        self._above: list[tuple[int, int]] = []
        """(−priority, due jobs of it and all higher ones), highest first."""
        self._due: dict[int, dict[str, _Part]] = {}
        before: dict[str, int] = {}
        for priority in sorted(due, reverse=True):
            self._due[priority] = {
                owner: _part(sorted(numbers), standing.get(owner, Standing()), before.get(owner, 0))
                for owner, numbers in due[priority].items()
            }
            for owner, numbers in due[priority].items():
                before[owner] = before.get(owner, 0) + len(numbers)
                self._total += len(numbers)
            self._above.append((-priority, self._total))

    def place(self, number: int, priority: int, owner: str, not_before: float) -> int:
        """The number of jobs before this one, in O(log n) for each tenant; the job need not be in the snapshot."""
        waits = not_before, -priority, number
        at = bisect_left(self._later, waits)
        if at < len(self._later) and self._later[at] == waits:
            return self._total + at
        starts = self._starts.get(owner)
        if starts is not None and bisect_left(starts, (-priority, number)) >= self._room[owner]:
            return self._total + bisect_left(self._later, (_HELD, -priority, number))
        higher = bisect_left(self._above, (-priority, 0))
        above = self._above[higher - 1][1] if higher else 0
        parts = self._due.get(priority, {})
        own = parts.get(owner, _Part([], 0, (0, 0.0, number)))
        turn = bisect_left(own.numbers, number)
        slots = own.slots + turn
        return above + turn + sum(_ahead(part, slots, own.tie) for name, part in parts.items() if name != owner)


def _part(numbers: list[int], standing: Standing, higher: int) -> _Part:
    slots = standing.slots + higher
    return _Part(numbers, slots, (-slots, standing.started_at, numbers[0]))


def _ahead(part: _Part, slots: int, tie: tuple[int, float, int]) -> int:
    """How many of one tenant's jobs start before another tenant's job that starts when it holds `slots`."""
    more = slots - part.slots
    if more < 0:
        return 0
    return min(more, len(part.numbers)) + (more < len(part.numbers) and part.tie < tie)


class Places:
    """Queue positions for one process, which keeps the last snapshot. Safe in several threads."""

    def __init__(self) -> None:
        self._snapshot = Snapshot[Line]()

    def placed(self, connection: Connection, rows: Sequence[Row[Any]]) -> list[Job]:
        """Rows as jobs with `queue_position` (0: next) and `waiting_for`, both None unless queued; read-only."""
        queued = [row for row in rows if row.status == Status.QUEUED]
        line = self._line(connection) if queued else Line((), {})
        wide = any(row.slots > 1 for row in queued)
        largest = connection.execute(_LARGEST).one() if wide else None
        new = any(row.request_version > 1 for row in queued)
        newest = (connection.scalar(_NEWEST) or 0) if new else 0
        full = _no_slot(connection) if queued else None
        held = quotas.reasons(connection, {row.owner for row in queued}) if queued else {}

        unmet = [row.number for row in queued if row.unmet]
        sources = needs.waited_for(connection, unmet) if unmet else {}

        def placed(row: Row[Any]) -> Job:
            if row.status != Status.QUEUED:
                return as_job(row)
            place = line.place(row.number, row.priority, row.owner, row.not_before)
            waits = f"waits for {' and '.join(sources[row.number])}" if row.number in sources else None
            held_up = held.get(row.owner) or _too_new(row.request_version, newest) or _too_wide(row.slots, largest)
            return as_job(row, place, waits or held_up or full)

        return [placed(row) for row in rows]

    def _line(self, connection: Connection) -> Line:
        head = connection.execute(_LINE, {"most": HEAD + 1}).all()
        if len(head) <= HEAD:
            return _as_line(connection, head)
        return self._snapshot.get(lambda: _as_line(connection, connection.execute(_LINE, {"most": 2**31 - 1}).all()))


def _as_line(connection: Connection, rows: Sequence[Row[Any]]) -> Line:
    return Line(rows, standings(connection), rooms(connection, {row.owner for row in rows}))


def _no_slot(connection: Connection) -> str | None:
    """Why no queued job of any tenant can start (no worker, or no free slot), None if one can."""
    count, slots = connection.execute(_SLOTS).one()
    if not count:
        return "no worker is there"
    if slots > connection.scalar(_TAKEN):
        return None
    return "waits for a free slot; " + (f"all {slots} are taken" if slots > 1 else "the only one is taken")


def _too_new(version: int, newest: int) -> str | None:
    """Why a job waits if its request needs a newer release than any live worker has (0: no worker is there)."""
    return "waits for a worker of a newer release" if 0 < newest < version else None


def _too_wide(slots: int, largest: Row[Any] | None) -> str | None:
    """Why a job waits if it needs more slots than any live worker can give to one job."""
    if largest is None or slots <= max(1, largest.job or 0):
        return None
    if not largest.job:
        return f"needs {some(slots, 'slot')} of one worker at once; no worker is there"
    different = ", on different GPUs" if slots <= largest.slots else ""
    return f"needs {slots} slots of one worker at once{different}; the largest worker has {largest.job}"
