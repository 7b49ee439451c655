"""One PostgreSQL database for a file, empty before each test: to copy and to drop one takes as long as most tests."""

from collections.abc import Iterator

import psycopg
import pytest
from postgres import Server

from tcnn_jobs.database.schema import metadata

_SETTLED = ("alembic_version", "compatibility")
"""What migrations write."""


@pytest.fixture(scope="module")
def shared_database(postgres_server: Server) -> Iterator[tuple[str, psycopg.Connection]]:
    """Its URL, and a connection that empties it."""
    url = postgres_server.create("shared", "migrated")
    with psycopg.connect(url, autocommit=True) as connection:
        yield url, connection
    postgres_server.drop("shared")


@pytest.fixture
def postgres_url(shared_database: tuple[str, psycopg.Connection]) -> str:
    """As it was migrated: without rows, and with numbers from 1 on."""
    url, connection = shared_database
    tables = [table.name for table in reversed(metadata.sorted_tables) if table.name not in _SETTLED]
    emptied = "".join(f"DELETE FROM {name};" for name in tables)
    connection.execute(f"{emptied} SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S'")
    return url
