"""The tables.

jobs          one row a job; `number` is the order of submission, `event_count` the last event's `seq`
events        what happened to a job, counted from 1 without gaps
needs         jobs and uploads that a queued or running job names; nobody may delete them meanwhile
keys          idempotency keys: what a POST with this key has made
api_keys      API keys of tenants: the digest of the secret, and what it may be used for
shares        links that show one job: the digest of the secret, and when it ends
tenants       who has ever submitted something, when a job of theirs last started, their quotas and webhook secret
usage         seconds that slots worked for a tenant, by day since 1970, in shards as `tallies`
stored        bytes that uploads and results of jobs take
uploads       data sets and checkpoints
workers       who was heard of, and when
leases        what one process at a time does, who does, and until when
deliveries    webhook calls that are still to be made
audit         who did what with which key
tallies       finished jobs and their seconds, in shards, because every finish would wait for one row
compatibility the oldest revision of these tables whose code can use them as they are
identity      the id of this database, which marks the places of its files

`tcnn_jobs/migrations` makes these tables; a test holds the two to each other.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
    text,
)
from sqlalchemy.sql.elements import ColumnElement

from tcnn_jobs.database.dialects import Document, Number

SHARDS = 8
"""Rows that one kind's and outcome's tally is spread over."""

metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("request", Document, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("claim", Integer, nullable=False),
    Column("worker", Text),
    Column("created_at", Double, nullable=False),
    Column("not_before", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("heartbeat_at", Double),
    Column("cancel_requested", Boolean, nullable=False),
    Column("progress", Document),
    Column("result", Document),
    Column("error", Document),
    Column("webhook", Text),
    Column("event_count", Integer, nullable=False),
    Column("slots", Integer, nullable=False, server_default="1"),
    Column("max_runtime", Double),
    Column("stall_minutes", Double),
    Column("ran", Double, nullable=False, server_default="0"),
    Column("avoid", Text),
    Column("unmet", Integer, nullable=False, server_default="0"),
    Column("request_version", Integer, nullable=False, server_default="1"),
    Column("name", Text),
    Column("tags", Document, nullable=False, server_default="[]"),
    Column("note", Text),
    Column("words", Text),  # what a search looks through; NULL of what an older release submitted
    Column("waiting_claim", Integer),  # the claim whose process has not started, for it waits for slots
    UniqueConstraint("id", name="jobs_id"),
    sqlite_autoincrement=True,  # the number of a deleted job is never given again: lists are paged by it
)
share_owner = jobs.c.owner + literal_column("''", Text)
share_number = jobs.c.number + literal_column("0", Integer)
"""A job's owner and number as `jobs_share` has them, and no other index: see `shares`."""


def has_status(status: str) -> ColumnElement[bool]:
    """Whether a job has a status, a literal: a plan for any status would take all of them for equally frequent."""
    return jobs.c.status == literal_column(f"'{status}'", Text)


# The next job of every tenant is the first of its rows in this index, and places in the queue are counted in it;
# heartbeats change no column of it.
Index("jobs_share", jobs.c.status, jobs.c.priority.desc(), share_owner, share_number, jobs.c.not_before)
Index("jobs_owner", jobs.c.owner, jobs.c.number)
# Lists are paged by `number` within an owner, and of few jobs among many by one of these.
Index("jobs_owner_status", jobs.c.owner, jobs.c.status, jobs.c.number)
Index("jobs_owner_kind", jobs.c.owner, jobs.c.kind, jobs.c.number)
Index("jobs_finished", jobs.c.finished_at)
TAGGED = text("tags <> '[]'")
Index("jobs_tagged", jobs.c.owner, jobs.c.number, sqlite_where=TAGGED, postgresql_where=TAGGED)

needs = Table(
    "needs",
    metadata,
    Column(
        "job",
        Number,
        ForeignKey("jobs.number", ondelete="CASCADE", name="needs_job"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("resource", Text, primary_key=True),
)
Index("needs_resource", needs.c.resource)

events = Table(
    "events",
    metadata,
    Column("job", Number, ForeignKey("jobs.number", ondelete="CASCADE", name="events_job"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("data", Document, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)
Index("keys_resource", keys.c.resource)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("scopes", Document, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    Column("used_at", Double),
    UniqueConstraint("digest", name="api_keys_digest"),
)
Index("api_keys_tenant", api_keys.c.tenant, api_keys.c.created_at)

shares = Table(
    "shares",
    metadata,
    Column("id", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("revoked_at", Double),
    UniqueConstraint("digest", name="shares_digest"),
)
Index("shares_job", shares.c.job, shares.c.created_at)

tenants = Table(
    "tenants",
    metadata,
    Column("name", Text, primary_key=True),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("max_queued", Integer),
    Column("max_running", Integer),
    Column("gpu_hours", Double),
    Column("max_bytes", BigInteger),
    Column("webhook_secret", Text),
)

usage = Table(
    "usage",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("seconds", Double, nullable=False),
)

stored = Table(
    "stored",
    metadata,
    Column("resource", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
Index("stored_tenant", stored.c.tenant, stored.c.bytes)

uploads = Table(
    "uploads",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("details", Document, nullable=False),
    UniqueConstraint("id", name="uploads_id"),
    sqlite_autoincrement=True,
)
Index("uploads_owner", uploads.c.owner, uploads.c.kind, uploads.c.number)

workers = Table(
    "workers",
    metadata,
    Column("name", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("gpus", Document, nullable=False),
    Column("heartbeat_at", Double, nullable=False),
    Column("lease", Double, nullable=False, server_default="60"),
    Column("started_at", Double),
    Column("request_version", Integer, nullable=False, server_default="1"),
    Column("widest", Integer),  # how many slots it can give to one job; NULL of an older release's: as many as it has
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("ends_at", Double, nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("body", Document, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("tenant", Text),
)
Index("deliveries_due", deliveries.c.due_at)

audit = Table(
    "audit",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("action", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("details", Document, nullable=False),
    sqlite_autoincrement=True,
)
Index("audit_tenant", audit.c.tenant, audit.c.number)
Index("audit_key", audit.c.key, audit.c.number)
Index("audit_at", audit.c.at)

tallies = Table(
    "tallies",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("outcome", Text, primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("jobs", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
)

compatibility = Table("compatibility", metadata, Column("oldest", Text, primary_key=True))

identity = Table("identity", metadata, Column("id", Text, primary_key=True))
