"""The schema: made once whoever asks, up and down, equal to the tables in the code."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from deeds import RESULT, Child, hold, new
from sampled import ON_SQLITE, quick_on
from sqlalchemy import Connection, MetaData, Table, inspect, text

from tcnn_jobs.database import upgrade
from tcnn_jobs.database.schema import metadata
from tcnn_jobs.database.upgrade import _LOCK, alembic_config, head
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.store import Store

EMPTY_ON_SQLITE, EMPTY_ON_POSTGRES = quick_on("sqlite", "empty_url"), quick_on("postgres", "empty_url")


def _tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names()) - {"alembic_version"}


@EMPTY_ON_SQLITE
def test_several_processes_at_once(empty_url: str) -> None:
    """One makes the tables, the others wait; all find them."""
    children = [Child("migrate", empty_url) for _ in range(3)]
    assert [child.hear() for child in children] == ["ready"] * 3
    for child in children:
        child.go()
    assert [child.rest() for child in children] == [["done"]] * 3
    store = Store(empty_url)
    store.check()
    store.migrate()
    job = store.enqueue(new())
    store.migrate()  # nothing to do, and nothing is done
    assert store.get(job.id) == job
    store.close()


def test_the_schema_is_the_code(empty_url: str) -> None:
    """Alembic finds no difference, and neither do indexes, orders and rules that it does not compare."""
    migrated = Store(empty_url)
    migrated.migrate()
    with migrated.writing() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        found = _described(connection)
        with connection.begin_nested() as looked:
            assert compare_metadata(context, _readable(connection)) == []
            looked.rollback()
    with migrated.writing() as connection:
        command.downgrade(alembic_config(connection), "base")
        assert _tables(connection) == set()
        metadata.create_all(connection)
        assert _described(connection) == found
    migrated.close()


def _readable(connection: Connection) -> MetaData:
    """The tables without what Alembic cannot read: of SQLite, indexes of expressions, which `_described` compares."""
    if connection.dialect.name != "sqlite":
        return metadata
    tables = MetaData()
    for table in metadata.sorted_tables:
        copy = table.to_metadata(tables)
        for index in list(copy.indexes):
            if index.name == "jobs_share":
                index.drop(connection)
                copy.indexes.remove(index)
    return tables


def _described(connection: Connection) -> object:
    """Everything that the database itself says of its tables."""
    if connection.dialect.name == "sqlite":
        rows = connection.execute(
            text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'alembic%' ORDER BY name")
        )
        # Alembic puts the constraints of a column elsewhere in the statement; the words are the same.
        return [
            (name, sorted(sql.replace("(", " ( ").replace(")", " ) ").replace(",", " ").split())) for name, sql in rows
        ]
    look = inspect(connection)
    tables: list[Table] = metadata.sorted_tables
    indexes = connection.execute(
        text(
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version' ORDER BY 1"
        )
    )
    return [
        [
            [{**column, "type": str(column["type"])} for column in look.get_columns(table.name)],
            look.get_pk_constraint(table.name),
            look.get_foreign_keys(table.name),
            look.get_unique_constraints(table.name),
        ]
        for table in tables
    ] + [list(indexes.scalars())]


@ON_SQLITE
def test_down_and_up(store: Store) -> None:
    """Down to nothing, noticed by `check`, and up to a queue that works."""
    store.enqueue(new())
    with store.writing() as connection:
        command.downgrade(alembic_config(connection), "base")
        assert _tables(connection) == set()
    with pytest.raises(StoreUnavailable, match=f"the schema is empty, expected {head()}; start tcnn serve"):
        store.check()
    with pytest.raises(StoreUnavailable, match="the database has no queue yet"):
        store.enqueue(new())
    store.migrate()
    store.check()
    assert store.list() == ([], None)
    store.enqueue(new())
    assert store.finish(hold(store.claim("w1")), RESULT).number == 1


def test_a_migration_that_fails_changes_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tables or none: it is one transaction."""
    store = Store(empty_url)
    with store.writing() as connection:
        connection.execute(text("CREATE TABLE tallies (something INTEGER)"))  # the last one that would be made
    with pytest.raises(
        StoreUnavailable, match=r"cannot be brought up to date \(.*tallies.*already exists.*\)"
    ) as caught:
        store.migrate()
    assert "\n" not in str(caught.value) and "CREATE TABLE" not in str(caught.value)
    with store.reading() as connection:
        assert _tables(connection) == {"tallies"}
    store.close()


def test_odd_folders(tmp_path: Path) -> None:
    """Percent signs, spaces and letters of a path are the path's own."""
    path = tmp_path / "100%25 söme: place?x=1#y" / "q.db"
    path.parent.mkdir()
    store = Store(f"sqlite:///{path}")
    store.migrate()
    store.check()
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["q.db"]


def test_settings_of_a_connection(sqlite_url: str) -> None:
    """What SQLite must be told every time, and what its file keeps."""
    store = Store(sqlite_url)
    with store.reading() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    store.close()


@EMPTY_ON_POSTGRES
def test_a_long_migration_of_another_process_is_waited_for(empty_url: str) -> None:
    """Longer than anything else would be."""
    store, other = Store(empty_url, wait=0.2), Store(empty_url)
    with ThreadPoolExecutor(1) as pool, other.writing() as connection:
        if not other.is_sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        call = pool.submit(store.migrate)
        time.sleep(0.5)
        assert not call.done()
        connection.commit()
        call.result(60)
    store.check()
    store.close()
    other.close()


def test_a_migration_that_never_ends_is_told(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "LONGEST", 0.1)
    store, other = Store(empty_url, wait=0.1), Store(empty_url)
    said = "database is locked" if other.is_sqlite else r"another process has been changing the schema for 0\.1 s"
    with other.writing() as connection:
        if not other.is_sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        with pytest.raises(StoreUnavailable, match=said):
            store.migrate()
    store.close()
    other.close()


def test_where_nothing_is_to_be_done_nobody_is_waited_for(store: Store, url: str) -> None:
    """A server starts beside a transaction that somebody else is in."""
    other = Store(url)
    with other.writing() as connection:
        connection.execute(text("UPDATE jobs SET owner = 'a'"))
        store.migrate()
        assert connection.in_transaction()
    other.close()
