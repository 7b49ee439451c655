"""An upload is published whole or not at all, on both databases: its row, its idempotency key and its files."""

import io
import os
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from sampled import ON_POSTGRES, ON_SQLITE
from serving import Server, hosted, look_here

from tcnn_api.routes.uploads import datasets
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.artifacts.local import LocalArtifacts
from tcnn_jobs.errors import BytesExceeded, IdempotencyMismatch
from tcnn_jobs.housekeeping import janitor
from tcnn_jobs.model.jobs import IdempotencyKey, Upload
from tcnn_jobs.model.naming import new_id
from tcnn_jobs.store import Store

KEY = IdempotencyKey("alice", "once", "digest-1")


def upload(size: int = 1, owner: str = "alice") -> Upload:
    return Upload(id=new_id("ds"), owner=owner, kind="dataset", name="a.zip", path="a", size=size, sha256="0" * 64)


@pytest.fixture
def server(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """On the test's database; what it takes is looked at by its threads."""
    look_here(monkeypatch, datasets)
    url = store.url.render_as_string(hide_password=False).replace("+psycopg", "").replace("+pysqlite", "")
    with hosted(tmp_path / "home", database_url=url, api_keys="alice:key-of-alice") as running:
        yield running


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from data_pictures import draw_classes

    folder, packed = draw_classes(tmp_path_factory.mktemp("data") / "pets", ["cat", "dog"]), io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(folder.rglob("*.jpg")):
            archive.write(path, path.relative_to(folder))
    return packed.getvalue()


def send(server: Server, content: bytes, key: str | None = "once") -> httpx.Response:
    with server.client() as client:
        headers = {"Idempotency-Key": key} if key else {}
        return client.post("/datasets", files={"file": ("pets.zip", content)}, headers=headers)


def listed(server: Server) -> list[str]:
    with server.client() as client:
        return [row["id"] for row in client.get("/datasets").json()["data"]]


def kept(server: Server) -> list[str]:
    """The data sets that have files."""
    return sorted(path.name for path in (server.home / "datasets").iterdir())


@contextmanager
def triggers(store: Store, *deeds: tuple[str, str], fails: str, deferred: bool = False) -> Iterator[None]:
    """These statements (INSERT, DELETE) on these tables fail in the database itself, or if deferred its commits."""
    made, gone = [], []
    if not store.is_sqlite:
        made += [f"CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {fails}; RETURN NULL; END $$"]
        gone += ["DROP FUNCTION fails CASCADE"]
    for number, (deed, table) in enumerate(deeds):
        if store.is_sqlite:
            body = "BEGIN SELECT RAISE(ABORT, 'no'); END"
            made += [f"CREATE TRIGGER fails_{number} BEFORE {deed} ON {table} {body}"]
            gone += [f"DROP TRIGGER fails_{number}"]
        else:
            when = "DEFERRABLE INITIALLY DEFERRED" if deferred else ""
            constraint, name = ("CONSTRAINT" if deferred else ""), f"fails_{number}"
            what = f"AFTER {deed} ON {table} {when} FOR EACH ROW EXECUTE FUNCTION fails()"
            made += [f"CREATE {constraint} TRIGGER {name} {what}"]

    def run(statements: list[str]) -> None:
        with store.writing() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    run(made)
    try:
        yield
    finally:
        run(gone)


BUSY = "RAISE EXCEPTION 'busy' USING ERRCODE = 'lock_not_available'"
LOST = "PERFORM pg_terminate_backend(pg_backend_pid())"


def test_a_key_that_cannot_be_kept_keeps_no_row(store: Store, server: Server, pets: bytes) -> None:
    """Nor could the row be deleted again just then. The same request later makes one data set, which has its files."""
    with triggers(store, ("INSERT", "keys"), ("DELETE", "uploads"), fails=BUSY):
        assert send(server, pets).status_code in (500, 503)
        assert listed(server) == kept(server) == []
    answer = send(server, pets)
    assert answer.status_code == 201
    assert listed(server) == kept(server) == [answer.json()["id"]]
    assert send(server, pets).json() == answer.json()


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_files_stay_while_nobody_knows_whether_they_have_a_row(store: Store, server: Server, pets: bytes) -> None:
    """The connection ends at the commit, whose answer is lost. The sweep removes what has no row after an hour."""
    with triggers(store, ("INSERT", "uploads"), fails=LOST, deferred=True):
        assert send(server, pets).status_code == 503
    (stray,) = kept(server)
    answer = send(server, pets)
    assert answer.status_code == 201 and listed(server) == [answer.json()["id"]]
    for name in kept(server):
        os.utime(server.home / "datasets" / name, (0, 0))
    home = Home(server.home)
    janitor.sweep_home(home, store, LocalArtifacts(home))
    assert kept(server) == listed(server) == [answer.json()["id"]] != [stray]


@ON_SQLITE
def test_the_same_request_at_once_gets_the_same_answer_however_tight_the_quota(
    store: Store, server: Server, pets: bytes
) -> None:
    """It fits once, and whoever comes second needs no room."""
    first = send(server, pets, None).json()["id"]
    (alice,) = store.tenants("alice")
    with server.client() as client:
        assert client.delete(f"/datasets/{first}").status_code == 204
    store.set_quotas("alice", stored=alice.use.stored)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: send(server, pets), range(4)))
    assert [answer.status_code for answer in answers] == [201] * 4, [answer.text for answer in answers]
    assert [answer.json()["id"] for answer in answers] == listed(server) * 4 == kept(server) * 4
    assert send(server, pets).json() == answers[0].json()
    assert send(server, pets, "twice").status_code == 403
    assert listed(server) == kept(server)


@ON_SQLITE
def test_a_key_is_of_one_upload(store: Store) -> None:
    """Another request, a quota that is too small, and the upload's deletion leave the key as they should."""
    store.set_quotas("alice", stored=10)
    with pytest.raises(BytesExceeded):
        store.add_upload(upload(11), KEY)
    assert store.replay(KEY) is None
    made = store.add_upload(upload(10), KEY)
    assert store.add_upload(upload(10), KEY) == made and store.replay(KEY) == made.id
    with pytest.raises(IdempotencyMismatch, match="use a new key"):
        store.add_upload(upload(10), KEY._replace(digest="digest-2"))
    assert store.uploads("alice", "dataset") == ([made], None)
    store.remove_upload(made.id)
    assert store.add_upload(upload(10), KEY).id != made.id


@ON_POSTGRES
def test_a_race_has_one_winner(store: Store) -> None:
    """Eight threads with one key at once, under a quota for one: all hear of the same upload."""
    store.set_quotas("alice", stored=10)
    for attempt in range(3):
        key = KEY._replace(key=f"race-{attempt}")
        with ThreadPoolExecutor(8) as pool:
            made = set(pool.map(lambda _, key=key: store.add_upload(upload(10), key).id, range(8)))
        assert {one.id for one in store.uploads("alice", "dataset")[0]} == made
        store.remove_upload(made.pop())
