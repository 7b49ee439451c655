"""Links that show one job to whoever has them."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """A table of its own; an older release neither makes links nor lets anybody in by one."""
    op.create_table(
        "shares",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("revoked_at", sa.Double),
        sa.UniqueConstraint("digest", name="shares_digest"),
    )
    op.create_index("shares_job", "shares", ["job", "created_at"])


def downgrade() -> None:
    """As before; every link ends."""
    op.drop_table("shares")
