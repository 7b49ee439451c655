"""Where a job failed last, and for how long the silence of a worker means nothing."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Workers that are there already count as before."""
    op.add_column("jobs", sa.Column("avoid", sa.Text))
    op.add_column("workers", sa.Column("lease", sa.Double, nullable=False, server_default="60"))


def downgrade() -> None:
    """As before."""
    op.drop_column("workers", "lease")
    op.drop_column("jobs", "avoid")
