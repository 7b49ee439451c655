"""Keys in the database: they count without a restart, for what they are for, and beside those of the settings."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text
from starlette.testclient import TestClient

from tcnn_api.access import credentials
from tcnn_api.access.authenticate import MOST_WRONG
from tcnn_api.app import create_app
from tcnn_api.settings import load
from tcnn_jobs.model.accounts import NewKey, Scope
from tcnn_jobs.model.jobs import Kind, NewJob
from tcnn_jobs.store import Store

Refusal = Callable[..., dict[str, Any]]
Ask = Callable[..., Any]
Listens = Callable[[FastAPI], AbstractContextManager[str]]
MODEL = {"model": "resnet18", "pretrained": False}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """The service's database, as another process sees it."""
    store = Store(f"sqlite:///{tmp_path / 'tcnn.db'}")
    store.migrate()
    yield store
    store.close()


@pytest.fixture
def ask(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """A request with a secret to a server that believes nothing for longer than it takes to ask again."""
    monkeypatch.setattr(credentials, "LIFE", 0.0)
    with TestClient(create_app(load(home=tmp_path)), base_url="http://localhost") as client:

        def ask(secret: str | None, path: str = "/jobs", method: str = "GET", **more: Any) -> Any:
            headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
            return client.request(method, path, headers=headers, **more)

        yield ask


def test_the_first_key_closes_the_server_and_nothing_opens_it_again(
    ask: Ask, store: Store, tmp_path: Path, refusal: Refusal
) -> None:
    assert ask(None).status_code == 200
    key, secret = store.create_key(NewKey(tenant="ann"))
    refusal(ask(None), 401, "Authorization")
    assert ask(secret).status_code == 200
    store.revoke_key(key.id)
    refusal(ask(secret), 401, "Authorization")
    refusal(ask(None), 401, "Authorization")
    assert ask(None, "/healthz").status_code == 200
    with TestClient(create_app(load(home=tmp_path)), base_url="http://localhost") as restarted:
        refusal(restarted.get("/jobs"), 401, "Authorization")


def test_a_key_is_of_its_tenant_alone(ask: Ask, store: Store, refusal: Refusal) -> None:
    (_, ann), (_, second), (_, bob) = (store.create_key(NewKey(tenant=tenant)) for tenant in ("ann", "ann", "bob"))
    made = ask(ann, "/transform", "POST", json=MODEL)
    assert made.status_code == 202
    job = made.json()["id"]
    assert store.get(job).owner == "ann"
    assert ask(second, f"/jobs/{job}").status_code == 200
    refusal(ask(bob, f"/jobs/{job}"), 404, "id")


def test_scopes(ask: Ask, store: Store, refusal: Refusal) -> None:
    """`read` is for what changes nothing, `submit` for what does; neither is for the other."""
    _, reads = store.create_key(NewKey(tenant="ann", scopes=frozenset({Scope.READ})))
    _, submits = store.create_key(NewKey(tenant="ann", scopes=frozenset({Scope.SUBMIT})))
    job = ask(submits, "/transform", "POST", json=MODEL).json()["id"]
    assert ask(reads, f"/jobs/{job}").json()["id"] == job
    assert ask(reads, "/metrics").status_code == 200
    for method, path in (
        ("POST", "/transform"), ("POST", f"/jobs/{job}/cancel"), ("POST", "/datasets"), ("DELETE", f"/jobs/{job}"),
    ):  # fmt: skip
        told = refusal(ask(reads, path, method), 403, "Authorization")
        assert told["detail"] == "expected a key with the scope submit, found one with read; use another key"
    assert store.get(job).status == "queued"
    for path in ("/jobs", f"/jobs/{job}", f"/jobs/{job}/events", "/models", "/metrics"):
        assert "scope read" in refusal(ask(submits, path), 403, "Authorization")["detail"]
    assert ask(submits, f"/jobs/{job}/cancel", "POST").status_code == 200


def test_rotated_without_a_restart(ask: Ask, store: Store) -> None:
    """Both keys work between the two commands."""
    old, before = store.create_key(NewKey(tenant="ann"))
    assert ask(before).status_code == 200
    _, after = store.create_key(NewKey(tenant="ann"))
    assert (ask(before).status_code, ask(after).status_code) == (200, 200)
    store.revoke_key(old.id)
    assert (ask(before).status_code, ask(after).status_code) == (401, 200)


def test_an_expired_key(ask: Ask, store: Store) -> None:
    _, secret = store.create_key(NewKey(tenant="ann", lasts=1e-6))
    time.sleep(0.01)
    assert ask(secret).status_code == 401


def test_what_is_remembered_is_believed_for_seconds(ask: Ask, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key, secret = store.create_key(NewKey(tenant="ann"))
    monkeypatch.setattr(credentials, "LIFE", 3600.0)
    assert ask(secret).status_code == 200
    store.revoke_key(key.id)
    assert ask(secret).status_code == 200
    assert ask(secret + "x").status_code == 401
    now = time.monotonic()
    monkeypatch.setattr(credentials.time, "monotonic", lambda: now + 3601)
    assert ask(secret).status_code == 401


def test_the_last_use_is_known(ask: Ask, store: Store) -> None:
    key, secret = store.create_key(NewKey(tenant="ann"))
    assert ask(secret).status_code == 200
    (found,) = store.api_keys()
    assert found.id == key.id and found.used_at is not None and found.used_at >= key.created_at


def test_a_writer_who_takes_his_time_holds_no_reader_up(
    ask: Ask, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The use of the key is written down another time."""
    monkeypatch.setattr(credentials, "PATIENCE", 0.05)
    _, secret = store.create_key(NewKey(tenant="ann"))
    with store.writing():
        assert ask(secret).status_code == 200
    assert store.api_keys()[0].used_at is None


def test_without_a_database_no_stored_key_is_believed(ask: Ask, store: Store, refusal: Refusal) -> None:
    """It is not wrong, either: try again later. What nobody needs a key for goes on."""
    _, secret = store.create_key(NewKey(tenant="ann"))
    assert ask(secret).status_code == 200
    with store.writing() as connection:
        connection.execute(text("ALTER TABLE api_keys RENAME TO gone"))
    refusal(ask(secret, "/models"), 503)
    assert ask(None, "/healthz").status_code == 200


def test_of_a_key_that_has_ended_no_attempts_are_counted(ask: Ask, store: Store, refusal: Refusal) -> None:
    (ended, old), (_, used), (_, unused), (_, late) = (store.create_key(NewKey(tenant="ann")) for _ in range(4))
    assert ask(used).status_code == 200
    store.revoke_key(ended.id)
    for _ in range(MOST_WRONG + 5):
        told = refusal(ask(old), 401, "Authorization")["detail"]
        assert told == "expected a key that is valid, found one that was revoked or has expired; ask for another"
    assert ask(unused).status_code == 200
    for number in range(MOST_WRONG):
        refusal(ask(f"tcnn_{number}"), 401, "Authorization")
    refusal(ask(late), 429)
    assert [ask(secret).status_code for secret in (used, unused, old)] == [200, 200, 401]


def test_keys_sent_at_once_are_checked_as_if_one_came_after_another(tmp_path: Path, store: Store) -> None:
    """Too many of them are no way to guess more, and right ones are right however many are sent."""
    rights = [store.create_key(NewKey(tenant="ann"))[1] for _ in range(2 * MOST_WRONG)]
    late = store.create_key(NewKey(tenant="ann"))[1]
    app = create_app(load(home=tmp_path))

    async def ask(*keys: str) -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:
            asked = (web.get("/me", headers={"Authorization": f"Bearer {key}"}) for key in keys)
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    with TestClient(app, base_url="http://localhost"):
        assert asyncio.run(ask(*[rights[0]] * 2 * MOST_WRONG, *rights)) == [200] * 4 * MOST_WRONG
        guesses = [f"tcnn_{number}" for number in range(3 * MOST_WRONG)]
        statuses = asyncio.run(ask(*guesses, late, rights[0]))
        assert statuses[-2:] == [429, 200], "one was never used before"
        assert sorted(statuses[:-2]) == [401] * MOST_WRONG + [429] * 2 * MOST_WRONG


def test_a_key_in_use_is_in_use_when_the_database_is_back(ask: Ask, store: Store, refusal: Refusal) -> None:
    """Somebody guesses from its address; the key is not among those that must wait."""
    _, secret = store.create_key(NewKey(tenant="ann"))
    assert ask(secret).status_code == 200
    for number in range(MOST_WRONG):
        refusal(ask(f"tcnn_{number}"), 401, "Authorization")
    with store.writing() as connection:
        connection.execute(text("ALTER TABLE api_keys RENAME TO gone"))
    refusal(ask(secret), 503)
    with store.writing() as connection:
        connection.execute(text("ALTER TABLE gone RENAME TO api_keys"))
    assert ask(secret).status_code == 200


def test_without_keys_and_without_a_database_models_are_still_told(ask: Ask, store: Store) -> None:
    with store.writing() as connection:
        connection.execute(text("ALTER TABLE api_keys RENAME TO gone"))
    assert ask(None, "/models").status_code == 200


def test_keys_of_the_settings_go_on_beside_them(tmp_path: Path, store: Store) -> None:
    _, secret = store.create_key(NewKey(tenant="ann"))
    app = create_app(load(home=tmp_path, api_keys="bob:key-of-bob"))
    with TestClient(app, base_url="http://localhost") as client:
        for key, status in ((secret, 200), ("key-of-bob", 200), ("another", 401)):
            assert client.get("/jobs", headers={"Authorization": f"Bearer {key}"}).status_code == status
        with store.writing() as connection:
            connection.execute(text("ALTER TABLE api_keys RENAME TO gone"))
        assert client.get("/jobs", headers={"Authorization": "Bearer key-of-bob"}).status_code == 200


@pytest.mark.usefixtures("quick_streams")
@pytest.mark.parametrize("path", ["/jobs", "/jobs/{}/events"])
def test_a_stream_ends_with_its_key(
    store: Store, tmp_path: Path, path: str, listens: Listens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Revoked, it is over; those of another key, and of the settings', go on."""
    monkeypatch.setattr(credentials, "LIFE", 0.2)
    job = store.enqueue(NewJob(owner="ann", kind=Kind.TRANSFORM, request=MODEL)).id
    key, secret = store.create_key(NewKey(tenant="ann"))
    app = create_app(load(home=tmp_path, api_keys="ann:key-of-ann"))
    with listens(app) as url, ExitStack() as stack:
        streams = {}
        for name, given in (("stored", secret), ("settings", "key-of-ann")):
            headers = {"Authorization": f"Bearer {given}", "Accept": "text/event-stream"}
            asked = httpx.stream("GET", url + path.format(job), headers=headers, timeout=60, trust_env=False)
            streams[name] = stack.enter_context(asked).iter_lines()
            assert next(streams[name]).startswith(("id: 1", "event: jobs"))
        store.revoke_key(key.id)
        assert not any(line.startswith(": ping") for line in streams["stored"]), (
            "it ends before anybody asks for a sign"
        )
        store.cancel(job)
        assert any("cancelled" in line for line in streams["settings"])


@pytest.mark.usefixtures("quick_streams")
def test_a_stream_without_a_key_ends_with_the_first_key(
    store: Store, tmp_path: Path, listens: Listens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "LIFE", 0.2)
    with (
        listens(create_app(load(home=tmp_path))) as url,
        httpx.stream("GET", f"{url}/jobs", headers={"Accept": "text/event-stream"}, timeout=60, trust_env=False) as web,
    ):
        lines = web.iter_lines()
        assert next(lines) == "event: jobs"
        store.create_key(NewKey(tenant="ann"))
        assert not any(line.startswith(": ping") for line in lines)
