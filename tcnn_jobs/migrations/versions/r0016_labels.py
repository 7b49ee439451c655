"""Names, tags and notes of jobs, and what a search looks through."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Jobs that are there already, and those that an older release submits, are called nothing; a search of those
    looks through their requests."""
    op.add_column("jobs", sa.Column("name", sa.Text))
    op.add_column("jobs", sa.Column("tags", sa.Text, nullable=False, server_default="[]"))
    op.add_column("jobs", sa.Column("note", sa.Text))
    op.add_column("jobs", sa.Column("words", sa.Text))
    tagged = sa.text("tags <> '[]'")
    op.create_index("jobs_tagged", "jobs", ["owner", "number"], sqlite_where=tagged, postgresql_where=tagged)


def downgrade() -> None:
    """As before; what jobs were called is lost."""
    op.drop_index("jobs_tagged", "jobs")
    for column in ("words", "note", "tags", "name"):
        op.drop_column("jobs", column)
