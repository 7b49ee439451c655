"""Since when a worker has been there."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Of workers that are there already it is not known."""
    op.add_column("workers", sa.Column("started_at", sa.Double))


def downgrade() -> None:
    """As before."""
    op.drop_column("workers", "started_at")
