"""Which version of the service a request takes, and which one each worker has; who may use this schema."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Jobs that are there already are understood by the workers that are."""
    op.add_column("jobs", sa.Column("request_version", sa.Integer, nullable=False, server_default="1"))
    op.add_column("workers", sa.Column("request_version", sa.Integer, nullable=False, server_default="1"))
    compatibility = op.create_table("compatibility", sa.Column("oldest", sa.Text, primary_key=True))
    # A revision that takes away what the release before it uses must raise this; one that only adds leaves it.
    op.bulk_insert(compatibility, [{"oldest": "0014"}])


def downgrade() -> None:
    """As before; whoever claims next takes every job for one that it understands."""
    op.drop_table("compatibility")
    op.drop_column("workers", "request_version")
    op.drop_column("jobs", "request_version")
