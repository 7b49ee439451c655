"""API keys as rows: made once, found by their digest while they are valid, never deleted."""

import time

import pytest
from pydantic import ValidationError
from sampled import ON_SQLITE
from sqlalchemy import select, update

from tcnn_jobs.database import schema
from tcnn_jobs.errors import KeyNotFound
from tcnn_jobs.model.accounts import NewKey, Scope, digest
from tcnn_jobs.store import Store
from tcnn_jobs.store.accounts import api_keys


def test_of_a_secret_only_its_digest_is_kept(store: Store) -> None:
    assert not store.has_keys()
    key, secret = store.create_key(NewKey(tenant="ann", name="laptop"))
    assert secret.startswith("tcnn_") and len(secret) >= 5 + 43, "256 random bits in base64"
    assert (key.tenant, key.name, key.scopes, key.valid) == ("ann", "laptop", {Scope.READ, Scope.SUBMIT}, True)
    with store.reading() as connection:
        (row,) = connection.execute(select(schema.api_keys))
    assert digest(secret) in row
    assert not any(secret in str(value) for value in row)
    assert store.find_key(digest(secret)) == key
    assert store.find_key(digest(secret + "x")) is None
    assert store.find_key(secret) is None
    assert store.has_keys()


@ON_SQLITE
def test_keys_are_listed_with_those_that_are_worth_nothing(store: Store) -> None:
    made = [store.create_key(NewKey(tenant=tenant)) for tenant in ("ann", "bob", "ann")]
    assert len({secret for _, secret in made}) == 3
    worthless = made[0][0].id
    revoked = store.revoke_key(worthless)
    assert (revoked.id, revoked.valid) == (worthless, False)
    # The database's clock may count milliseconds: of keys that are equally old the ids decide.
    keys = sorted((key for key, _ in made), key=lambda key: (key.created_at, key.id))
    assert [(key.id, key.valid) for key in store.api_keys()] == [(key.id, key.id != worthless) for key in keys]
    assert [key.id for key in store.api_keys("ann")] == [key.id for key in keys if key.tenant == "ann"]
    assert store.api_keys("nobody") == []


@ON_SQLITE
def test_a_revoked_key_is_found_as_one_and_stays_revoked_since_then(store: Store) -> None:
    key, secret = store.create_key(NewKey(tenant="ann"))
    first = store.revoke_key(key.id)
    assert (first.revoked_at is not None, first.valid) == (True, False)
    assert store.find_key(digest(secret)) == first
    assert store.revoke_key(key.id) == first
    assert store.has_keys(), "a server that had a key does not open again"
    for unknown in ("key_0", "", "key_\0", "é"):
        with pytest.raises(KeyNotFound, match="no such key"):
            store.revoke_key(unknown)


def test_a_key_expires_by_the_databases_clock(store: Store) -> None:
    long, long_secret = store.create_key(NewKey(tenant="ann", lasts=3600))
    short, short_secret = store.create_key(NewKey(tenant="ann", lasts=1e-6))
    assert long.expires_at == pytest.approx(long.created_at + 3600, abs=5)
    time.sleep(0.01)
    assert store.find_key(digest(long_secret)) == long
    found = store.find_key(digest(short_secret))
    assert found is not None and (found.id, found.valid) == (short.id, False)
    assert {key.id: key.valid for key in store.api_keys()} == {long.id: True, short.id: False}
    assert short.expires_at is not None


@ON_SQLITE
def test_use_is_written_down_once_a_minute(store: Store) -> None:
    key, secret = store.create_key(NewKey(tenant="ann"))
    assert key.used_at is None
    store.note_use(key.id, 1.0)
    first = store.find_key(digest(secret))
    assert first is not None and first.used_at is not None and first.used_at >= key.created_at
    store.note_use(key.id, 1.0)
    assert store.find_key(digest(secret)) == first
    with store.writing() as connection:
        connection.execute(update(schema.api_keys).values(used_at=first.used_at - api_keys.MINUTE - 1))
    store.note_use(key.id, 1.0)
    later = store.find_key(digest(secret))
    assert later is not None and later.used_at is not None and later.used_at >= first.used_at


@pytest.mark.parametrize(
    "wrong",
    [{"tenant": ""}, {"tenant": "a b"}, {"tenant": "a:b"}, {"tenant": "é"}, {"tenant": "x" * 101}, {"scopes": []},
     {"scopes": ["write"]}, {"lasts": 0}, {"lasts": 1e17}, {"name": "a\nb"}],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_a_key(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        NewKey.model_validate({"tenant": "ann", **wrong})
