"""The audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """A table more, which begins empty."""
    op.create_table(
        "audit",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("resource", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_tenant", "audit", ["tenant", "number"])
    op.create_index("audit_key", "audit", ["key", "number"])
    op.create_index("audit_at", "audit", ["at"])


def downgrade() -> None:
    """As before; the log is lost."""
    op.drop_table("audit")
