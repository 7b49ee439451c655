"""Which database this is: files that another one's rows name are not swept by this one."""

import hashlib
import secrets

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """An id that no other database has. One in use gets the same whenever it is upgraded: its backup of an earlier
    release may be restored beside the files that it had since."""
    identity = op.create_table("identity", sa.Column("id", sa.Text, primary_key=True))
    first = op.get_bind().execute(sa.text("SELECT name, created_at FROM tenants ORDER BY created_at, name")).first()
    known = secrets.token_hex(16) if first is None else f"{first.name} {float(first.created_at)!r}"  # is never removed
    op.bulk_insert(identity, [{"id": hashlib.sha256(known.encode()).hexdigest()[:32]}])


def downgrade() -> None:
    """As before."""
    op.drop_table("identity")
