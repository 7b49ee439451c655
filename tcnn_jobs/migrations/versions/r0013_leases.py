"""What one process at a time does."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """A table more."""
    op.create_table(
        "leases",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("ends_at", sa.Double, nullable=False),
    )


def downgrade() -> None:
    """As before."""
    op.drop_table("leases")
