"""Who acts: what the audit log says of those who change something.

Whoever takes a request says so once (`acting`), and the store writes a row in the transaction of each change that is
made meanwhile, also in threads that are started for it. Workers act for nobody.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tcnn_jobs.model.jobs import Model


class Actor(Model):
    """The author of changes: tenant, id or place of the key, never its secret, and the request's id."""

    tenant: str
    key: str
    request: str = ""


class AuditEntry(Model):
    """A row of the audit log. `tenant` is whose thing was changed, `by` who did it, with which key and request."""

    number: int
    at: float
    action: str
    resource: str
    tenant: str
    by: str
    key: str
    request: str
    details: dict[str, Any]


_actor: ContextVar[Actor | None] = ContextVar("actor", default=None)


@contextmanager
def acting(actor: Actor) -> Iterator[None]:
    """Context in which the audit log names this actor as the author of every change."""
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)


def actor() -> Actor | None:
    """The current actor, or None."""
    return _actor.get()
