"""What queued and running jobs need, and indexes for lists of one status or kind."""

import json

import sqlalchemy as sa
from alembic import op

from tcnn_jobs.store.needs import named

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """A table more, filled from the requests of the jobs that have not ended."""
    needs = op.create_table(
        "needs",
        sa.Column(
            "job",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            sa.ForeignKey("jobs.number", ondelete="CASCADE", name="needs_job"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("resource", sa.Text, primary_key=True),
    )
    op.create_index("needs_resource", "needs", ["resource"])
    op.create_index("jobs_owner_status", "jobs", ["owner", "status", "number"])
    op.create_index("jobs_owner_kind", "jobs", ["owner", "kind", "number"])
    jobs = sa.table("jobs", sa.column("number"), sa.column("status"), sa.column("request"))
    waiting = sa.select(jobs.c.number, jobs.c.request).where(jobs.c.status.in_(("queued", "running")))
    connection = op.get_bind()
    rows = [
        {"job": row.number, "resource": resource}
        for row in connection.execute(waiting)
        for resource in named(json.loads(row.request))
    ]
    if rows:
        connection.execute(needs.insert(), rows)


def downgrade() -> None:
    """As before."""
    op.drop_index("jobs_owner_kind", "jobs")
    op.drop_index("jobs_owner_status", "jobs")
    op.drop_table("needs")
