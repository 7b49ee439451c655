"""A webhook secret for each tenant; a call knows whose job it tells of."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Calls that are due get their jobs' tenants; of a deleted job it is not known any more."""
    op.add_column("tenants", sa.Column("webhook_secret", sa.Text))
    op.add_column("deliveries", sa.Column("tenant", sa.Text))
    op.execute("UPDATE deliveries SET tenant = (SELECT owner FROM jobs WHERE jobs.id = deliveries.job)")


def downgrade() -> None:
    """As before; the secrets are lost."""
    op.drop_column("deliveries", "tenant")
    op.drop_column("tenants", "webhook_secret")
