"""The queue's index knows when jobs are due, so that places are counted in it alone."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_ORDER = ("status", sa.text("priority DESC"), "number")


def upgrade() -> None:
    """One column more."""
    op.drop_index("jobs_queue", "jobs")
    op.create_index("jobs_queue", "jobs", [*_ORDER, "not_before"])


def downgrade() -> None:
    """As before."""
    op.drop_index("jobs_queue", "jobs")
    op.create_index("jobs_queue", "jobs", [*_ORDER])
