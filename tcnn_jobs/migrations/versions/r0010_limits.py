"""How long a job may run and be silent, and how long it has run."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Jobs that are there already have no such limits."""
    op.add_column("jobs", sa.Column("max_runtime", sa.Double))
    op.add_column("jobs", sa.Column("stall_minutes", sa.Double))
    op.add_column("jobs", sa.Column("ran", sa.Double, nullable=False, server_default="0"))


def downgrade() -> None:
    """As before."""
    for column in ("ran", "stall_minutes", "max_runtime"):
        op.drop_column("jobs", column)
