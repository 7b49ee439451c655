"""What Alembic runs: the revisions, in the transaction that `Store.migrate` has begun."""

from alembic import context

from tcnn_jobs.database.schema import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    # SQLite cannot alter most of a table; Alembic then copies it.
    render_as_batch=connection.dialect.name == "sqlite",
)
context.run_migrations()
