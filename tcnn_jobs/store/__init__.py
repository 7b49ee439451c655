"""The durable queue: the only user of SQL.

    store = Store("sqlite:////home/me/.tcnn/tcnn.db")
    store.migrate()
    job = store.enqueue(NewJob(owner="me", kind=Kind.TRANSFORM, request={"model": "resnet18"}))

What a call has returned is on disk. Every call is one transaction, safe from any thread, and raises `StoreUnavailable`
when the database accepts no change (`database.health`); then it may be made again.

A status changes along `tcnn_jobs.model.jobs.TRANSITIONS` only. What a worker writes is fenced by (worker, claim
number). All times are the database's.
"""

from tcnn_jobs.database.health import Health
from tcnn_jobs.store.accounts.api_keys import ApiKeys
from tcnn_jobs.store.accounts.ledger import Audits
from tcnn_jobs.store.accounts.quotas import Tenants
from tcnn_jobs.store.changes import Deliveries
from tcnn_jobs.store.fleet import Fleet, Leases
from tcnn_jobs.store.queue import Queue
from tcnn_jobs.store.reading.overview import Overview
from tcnn_jobs.store.reading.statistics import Figures
from tcnn_jobs.store.reaping import Reaping
from tcnn_jobs.store.shares import Shares
from tcnn_jobs.store.submission import Submission
from tcnn_jobs.store.uploads import Uploads

__all__ = ["Store"]


class Store(
    Submission,
    Queue,
    Reaping,
    Uploads,
    Deliveries,
    ApiKeys,
    Tenants,
    Audits,
    Fleet,
    Leases,
    Figures,
    Overview,
    Shares,
    Health,
):
    """Jobs, uploads, workers, webhook calls, tenants and their API keys in one database."""
