"""How many slots a job needs at once: those of one worker, all or none."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Jobs that are there already need one."""
    op.add_column("jobs", sa.Column("slots", sa.Integer, nullable=False, server_default="1"))


def downgrade() -> None:
    """As before."""
    op.drop_column("jobs", "slots")
