"""Quotas of tenants, and what they use: seconds of slots by day, and bytes by what is stored."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_QUOTAS = {"max_queued": sa.Integer, "max_running": sa.Integer, "gpu_hours": sa.Double, "max_bytes": sa.BigInteger}


def upgrade() -> None:
    """What is stored already counts; what has run already does not."""
    for name, kind in _QUOTAS.items():
        op.add_column("tenants", sa.Column(name, kind))
    op.create_table(
        "usage",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seconds", sa.Double, nullable=False),
    )
    stored = op.create_table(
        "stored",
        sa.Column("resource", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("stored_tenant", "stored", ["tenant", "bytes"])
    connection = op.get_bind()
    rows = [
        {"resource": row.id, "tenant": row.owner, "bytes": row.size}
        for row in connection.execute(sa.text("SELECT id, owner, size FROM uploads"))
    ]
    results = sa.text("SELECT id, owner, result FROM jobs WHERE status = 'succeeded' AND result IS NOT NULL")
    for row in connection.execute(results):
        size = sum(file["size"] for file in json.loads(row.result).get("files") or ())
        if size:
            rows.append({"resource": row.id, "tenant": row.owner, "bytes": size})
    if rows:
        connection.execute(stored.insert(), rows)


def downgrade() -> None:
    """As before."""
    op.drop_index("stored_tenant", "stored")
    op.drop_table("stored")
    op.drop_table("usage")
    for name in reversed(_QUOTAS):
        op.drop_column("tenants", name)
