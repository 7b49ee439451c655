"""How many jobs a job waits for."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Jobs that are there already name none that had not succeeded."""
    op.add_column("jobs", sa.Column("unmet", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    """As before; what waits for a job that has not ended fails when it starts."""
    op.drop_column("jobs", "unmet")
