"""Jobs, their events, uploads, workers, webhook calls and tallies."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "jobs",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("max_attempts", sa.Integer, nullable=False),
        sa.Column("claim", sa.Integer, nullable=False),
        sa.Column("worker", sa.Text),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("not_before", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double),
        sa.Column("finished_at", sa.Double),
        sa.Column("heartbeat_at", sa.Double),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("progress", sa.Text),
        sa.Column("result", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("webhook", sa.Text),
        sa.Column("event_count", sa.Integer, nullable=False),
        sa.UniqueConstraint("id", name="jobs_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("jobs_queue", "jobs", ["status", sa.text("priority DESC"), "number"])
    op.create_index("jobs_owner", "jobs", ["owner", "number"])
    op.create_index("jobs_finished", "jobs", ["finished_at"])
    op.create_table(
        "events",
        sa.Column(
            "job", _NUMBER, sa.ForeignKey("jobs.number", ondelete="CASCADE", name="events_job"), primary_key=True
        ),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
    )
    op.create_table(
        "keys",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("resource", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_index("keys_resource", "keys", ["resource"])
    op.create_table(
        "uploads",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sa.UniqueConstraint("id", name="uploads_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("uploads_owner", "uploads", ["owner", "kind", "number"])
    op.create_table(
        "workers",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("gpus", sa.Text, nullable=False),
        sa.Column("heartbeat_at", sa.Double, nullable=False),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("due_at", sa.Double, nullable=False),
    )
    op.create_index("deliveries_due", "deliveries", ["due_at"])
    op.create_table(
        "tallies",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("outcome", sa.Text, primary_key=True),
        sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
    )


def downgrade() -> None:
    """Remove every table and all that is in them."""
    for table in ("tallies", "deliveries", "workers", "uploads", "keys", "events", "jobs"):
        op.drop_table(table)
