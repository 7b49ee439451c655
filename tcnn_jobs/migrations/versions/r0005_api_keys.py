"""API keys as rows."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """A table more."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("revoked_at", sa.Double),
        sa.Column("used_at", sa.Double),
        sa.UniqueConstraint("digest", name="api_keys_digest"),
    )
    op.create_index("api_keys_tenant", "api_keys", ["tenant", "created_at"])


def downgrade() -> None:
    """As before; the keys are lost."""
    op.drop_table("api_keys")
