"""One suite, two real databases: a SQLite file and a PostgreSQL server that the tests start themselves."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from houses import migrated
from postgres import NoPostgres, Server, postgres

from tcnn_jobs.store import Store

_names = (f"test_{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A server with a database `migrated`, which others are copied from."""
    try:
        with postgres() as server:
            store = Store(server.create("migrated"))
            store.migrate()
            store.close()
            yield server
    except NoPostgres as error:
        pytest.skip(f"POSTGRESQL IS NOT TESTED: {error}")


@pytest.fixture
def own_postgres_url(postgres_server: Server) -> Iterator[str]:
    """A migrated database of this test alone."""
    name = next(_names)
    yield postgres_server.create(name, "migrated")
    postgres_server.drop(name)


@pytest.fixture
def postgres_url(own_postgres_url: str) -> str:
    """The same; the store's tests, which leave the tables as they are, have one for a file."""
    return own_postgres_url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A migrated file of this test alone."""
    path = tmp_path / "tcnn.db"
    path.write_bytes(migrated())
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Both in turn."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Both in turn, before anybody has made a table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'new.db'}"
        return
    server, name = request.getfixturevalue("postgres_server"), next(_names)
    yield server.create(name)
    server.drop(name)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """An empty queue on both in turn."""
    store = Store(url)
    yield store
    store.close()
