"""PostgreSQL databases whose settings are not the usual ones: encodings and isolation levels."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from deeds import new, unavailable
from postgres import Server
from sqlalchemy import text

from tcnn_jobs.errors import QuotaExceeded
from tcnn_jobs.store import Store

Create = Callable[[str], str]
IN_C = "LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"


@pytest.fixture
def create(postgres_server: Server) -> Iterator[Create]:
    """Make a database with such options; returns its URL."""
    made: list[str] = []

    def call(options: str) -> str:
        made.append(f"other_{len(made)}")
        run(postgres_server, f'CREATE DATABASE "{made[-1]}" {options}')
        return postgres_server.address(made[-1])

    yield call
    for name in made:
        postgres_server.drop(name)


def run(server: Server, statement: str) -> None:
    with psycopg.connect(server.address("postgres"), autocommit=True) as admin:
        admin.execute(statement)  # type: ignore[call-overload]


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_another_encoding_is_refused(create: Create, encoding: str) -> None:
    """Before anything is made; most names could not be kept."""
    store = Store(create(f"ENCODING '{encoding}' {IN_C}"))
    with unavailable(rf"expected a database in UTF8.*found {encoding}; create it with ENCODING 'UTF8'", 30):
        store.migrate()
    with store.reading() as connection:
        assert connection.scalar(text("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")) == 0
    store.close()


def test_a_client_of_another_encoding(create: Create, postgres_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment and the database say of it."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    store = Store(create(f"ENCODING 'UTF8' {IN_C}"))
    run(postgres_server, f"ALTER DATABASE \"{store.url.database}\" SET client_encoding = 'SQL_ASCII'")
    store.migrate()
    assert store.get(store.enqueue(new(name="日本")).id).name == "日本"
    store.close()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_quotas_hold_at_another_isolation_level(own_postgres_url: str, postgres_server: Server, level: str) -> None:
    """Who has waited for a tenant's row sees the jobs of the one before."""
    stores = [Store(own_postgres_url) for _ in range(2)]
    run(postgres_server, f"ALTER DATABASE \"{stores[0].url.database}\" SET default_transaction_isolation = '{level}'")
    stores[0].set_quotas("ann", queued=3)
    for store in stores:
        store.close()
        with store.writing() as connection:
            assert connection.scalar(text("SHOW transaction_isolation")) == "read committed"

    def submit(number: int) -> bool:
        try:
            stores[number % 2].enqueue(new())
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(submit, range(24))) == 3
    for store in stores:
        store.close()


def test_parameters_of_the_address_are_heard(postgres_url: str) -> None:
    """Those that tcnn sets where none are given, and the server's settings that it adds to given ones."""
    given = "application_name=ours&keepalives_idle=77&connect_timeout=21&options=-c%20work_mem%3D7MB"
    store = Store(f"{postgres_url}{'&' if '?' in postgres_url else '?'}{given}")
    with store.reading() as connection:
        shown = [connection.scalar(text(f"SHOW {name}")) for name in ("application_name", "work_mem")]
        parameters = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
    assert shown == ["ours", "7MB"]
    assert (parameters["keepalives_idle"], parameters["connect_timeout"]) == ("77", "21")
    assert parameters["keepalives_count"] == "3"
    store.close()
