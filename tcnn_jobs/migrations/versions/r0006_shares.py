"""Tenants as rows, with their last start; the queue's index knows whose jobs are whose."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_STATUS = ("status", sa.text("priority DESC"))
_OWNER = sa.column("owner", sa.Text) + sa.literal_column("''", sa.Text)
_NUMBER = sa.column("number", sa.Integer) + sa.literal_column("0", sa.Integer)


def upgrade() -> None:
    """Whoever has submitted or uploaded something is a tenant."""
    tenants = op.create_table(
        "tenants",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double),
    )
    op.drop_index("jobs_queue", "jobs")
    op.create_index("jobs_share", "jobs", [*_STATUS, _OWNER, _NUMBER, "not_before"])
    connection = op.get_bind()
    known: dict[str, tuple[float, float | None]] = {}
    for name, last in (("jobs", "max(started_at)"), ("uploads", "NULL")):
        for row in connection.execute(
            sa.text(f"SELECT owner, min(created_at), {last} FROM {name} GROUP BY owner")  # noqa: S608 - our own words
        ):
            created, started = known.get(row[0], (row[1], None))
            known[row[0]] = min(created, row[1]), started or row[2]
    if known:
        connection.execute(
            tenants.insert(),
            [{"name": name, "created_at": created, "started_at": last} for name, (created, last) in known.items()],
        )


def downgrade() -> None:
    """As before."""
    op.drop_index("jobs_share", "jobs")
    op.create_index("jobs_queue", "jobs", [*_STATUS, "number", "not_before"])
    op.drop_table("tenants")
