"""Which claim has not started yet since it waits for slots, and how many slots a worker can give to one job."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """What an older release claims has started, as before; its workers give a job as many slots as they have."""
    op.add_column("jobs", sa.Column("waiting_claim", sa.Integer))
    op.add_column("workers", sa.Column("widest", sa.Integer))


def downgrade() -> None:
    """As before; what waits for slots counts as running."""
    op.drop_column("workers", "widest")
    op.drop_column("jobs", "waiting_claim")
