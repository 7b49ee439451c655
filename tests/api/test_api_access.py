"""Who may ask: every route without a key, with a wrong one, and with another tenant's job."""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tcnn.errors import RequestError
from tcnn_api.access import authenticate
from tcnn_api.access.authenticate import MOST_WRONG, OPEN, Attempts
from tcnn_api.access.keys import keyring
from tcnn_api.app import create_app
from tcnn_api.settings import load
from tcnn_jobs.model.jobs import Status

Refusal = Callable[..., dict[str, Any]]
OPERATIONS = [
    (method.upper(), path)
    for path, methods in json.loads((Path(__file__).parents[2] / "docs/openapi.json").read_bytes())["paths"].items()
    for method in methods
]
CLOSED = [(method, path) for method, path in OPERATIONS if path not in OPEN]
OWNED = [(method, path) for method, path in OPERATIONS if path.startswith("/jobs/{id}")]


def test_all_routes_are_looked_at() -> None:
    assert len(CLOSED) >= 24
    assert len(OWNED) >= 9


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_every_route_needs_a_key(method: str, path: str, nobody: TestClient, refusal: Refusal) -> None:
    url = path.replace("{id}", "job_0123456789abcdef01234567").replace("{name}", "a")
    for given, found in (
        (None, "none"), ("Bearer wrong", "another key"), ("Basic a2V5LW9mLWFsaWNl", "Basic credentials"),
        ("key-of-alice", "key-of-alice credentials"), ("Bearer", "another key"), ("", "none"),
    ):  # fmt: skip
        answer = nobody.request(method, url, headers={} if given is None else {"Authorization": given})
        detail = refusal(answer, 401, "Authorization")["detail"]
        assert detail == f"expected `Authorization: Bearer KEY` with a key of this server, found {found}"
        assert answer.headers["www-authenticate"] == 'Bearer realm="tcnn"'


@pytest.mark.parametrize(("method", "path"), OWNED)
def test_another_tenants_job_is_not_there(
    method: str, path: str, bob: TestClient, alice: TestClient, make: Any, refusal: Refusal
) -> None:
    job = make(Status.SUCCEEDED).id
    url = path.replace("{name}", "converted.safetensors")
    body = {"json": {"name": "mine"}} if method == "PATCH" else {}
    theirs = bob.request(method, url.replace("{id}", job), **body)
    absent = bob.request(method, url.replace("{id}", "job_000000000000000000000000"), **body)
    strange = bob.request(method, url.replace("{id}", "..%2f..%2fetc"), **body)
    bodies = [refusal(answer, 404, "id") for answer in (theirs, absent)]
    assert strange.status_code == 404
    assert bodies[0]["detail"].replace(job, "job_000000000000000000000000") == bodies[1]["detail"]
    assert alice.get(f"/jobs/{job}").json()["status"] == "succeeded"


def test_a_list_holds_the_own_jobs_only(alice: TestClient, bob: TestClient, make: Any) -> None:
    mine, theirs = make(owner="alice").id, make(owner="bob").id
    assert mine in [job["id"] for job in alice.get("/jobs").json()["data"]]
    assert [job["id"] for job in bob.get("/jobs").json()["data"]] == [theirs]
    assert bob.get("/jobs", params={"after": mine}).status_code == 404


def test_open_pages_need_no_key(nobody: TestClient) -> None:
    for path in sorted(OPEN):
        assert nobody.get(path).status_code == 200, path


def test_a_body_is_not_read_before_the_key(nobody: TestClient, refusal: Refusal) -> None:
    def body() -> Any:
        raise AssertionError("read")
        yield b""

    refusal(nobody.post("/datasets", content=body(), headers={"content-type": "multipart/form-data"}), 401)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "localhost", "Origin": "http://localhost:3000"}, 200),
        ({"Host": "rebound.example"}, 403),
        ({"Host": "localhost.rebound.example"}, 403),
        ({"Host": "localhost", "Origin": "https://evil.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
        ({"X-Forwarded-For": "127.0.0.1"}, 403),
        ({"X-Forwarded-Proto": "https"}, 403),
        ({"X-Real-IP": "192.0.2.1"}, 403),
        ({"Forwarded": "for=192.0.2.1"}, 403),
        ({"Via": "1.1 proxy"}, 403),
    ],
)
def test_without_keys_only_this_machine_is_served(
    headers: dict[str, str], status: int, tmp_path: Path, refusal: Refusal
) -> None:
    """A browser on this machine may be led here by a page of somebody else, and a proxy asks for anybody."""
    with TestClient(create_app(load(home=tmp_path)), base_url="http://localhost") as client:
        answer = client.get("/jobs", headers=headers)
        assert answer.status_code == status
        if status == 403:
            refusal(answer, 403, "Host")


def test_without_keys_no_other_machine_is_served(tmp_path: Path) -> None:
    app = create_app(load(home=tmp_path))
    for address, status in (("127.0.0.1", 200), ("::1", 200), ("192.0.2.1", 403), ("2001:db8::1", 403)):
        with TestClient(app, base_url="http://localhost", client=(address, 1)) as client:
            assert client.get("/jobs").status_code == status, address


def test_without_keys_only_a_loopback_address_is_listened_on() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        load(host=host).check_host()
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", ""):
        with pytest.raises(RequestError, match="TCNN_API_KEYS"):
            load(host=host).check_host()
    load(host="0.0.0.0", api_keys="a:b").check_host()
    load(host="0.0.0.0").check_host(stored=True)


def test_keys_come_from_a_variable_and_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    digest = hashlib.sha256(b"of:carol").hexdigest()
    path.write_text(f"# who\n\nbob:key-of-bob\ncarol:sha256:{digest}\n")
    keys = keyring(load(api_keys="alice:key-of-alice, alice:second-key", api_keys_file=path))
    given = ("key-of-alice", "second-key", "key-of-bob", "of:carol", digest, "", "alice")
    found = {key: who and (who.tenant, who.key) for key in given for who in [keys.find(key)]}
    expected = {
        "key-of-alice": ("alice", "TCNN_API_KEYS:1"), "second-key": ("alice", "TCNN_API_KEYS:2"),
        "key-of-bob": ("bob", "TCNN_API_KEYS_FILE:3"), "of:carol": ("carol", "TCNN_API_KEYS_FILE:4"),
    }  # fmt: skip
    assert found == expected | {digest: None, "": None, "alice": None}


@pytest.mark.parametrize(
    "entries", ["alice", "alice:", "alice:seven77", ":key", "alice:k k", "a:same-key,b:same-key", "a:sha256:1234"]
)
def test_bad_keys_are_told_by_their_place_and_never_shown(entries: str) -> None:
    with pytest.raises(RequestError, match=r"TCNN_API_KEYS: entry \d: ") as error:
        keyring(load(api_keys=entries))
    assert "k k" not in str(error.value)


def test_a_keys_file_that_is_absent_or_empty_closes_nothing_in_silence(tmp_path: Path) -> None:
    for text in (None, "# none\n"):
        path = tmp_path / "keys"
        if text is not None:
            path.write_text(text)
        with pytest.raises(RequestError, match="TCNN_API_KEYS_FILE"):
            keyring(load(api_keys_file=path))


def test_whoever_guesses_keys_is_slowed_down_and_nobody_else(tmp_path: Path, refusal: Refusal) -> None:
    """Of many wrong keys few are looked at, and then no right one that was not used before; other addresses, keys in
    use and open pages go on."""
    app = create_app(load(home=tmp_path, api_keys="ann:key-of-ann,bob:key-of-bob"))

    def ask(key: str, address: str = "192.0.2.1", path: str = "/models?limit=1") -> Any:
        web = TestClient(app, base_url="http://localhost", client=(address, 1))
        return web.get(path, headers={"Authorization": f"Bearer {key}"})

    with TestClient(app, base_url="http://localhost"):
        assert ask("key-of-ann").status_code == 200
        statuses = [ask(f"wrong-{number}").status_code for number in range(MOST_WRONG + 5)]
        assert statuses == [401] * MOST_WRONG + [429] * 5
        refused = ask("key-of-bob")
        assert "wrong keys" in refusal(refused, 429)["detail"] and int(refused.headers["retry-after"]) > 0
        assert ask("key-of-ann").status_code == 200, "it was used from behind the same proxy before"
        assert ask("key-of-bob", "192.0.2.2").status_code == 200
        assert TestClient(app, client=("192.0.2.1", 1)).get("/healthz").status_code == 200


def test_attempts_are_forgotten_with_time_and_never_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts, now = Attempts(), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(authenticate, "ADDRESSES", 10)
    for _ in range(MOST_WRONG):
        attempts.note("a")
    assert attempts.too_many("a") and not attempts.too_many("b")
    for number in range(9):
        attempts.note(str(number))
    assert attempts.too_many("a")
    attempts.note("9")
    assert not attempts.too_many("a")
    for _ in range(MOST_WRONG):
        attempts.note("b")
    now += 61
    assert not attempts.too_many("b")
    attempts.note("b")
    assert not attempts.too_many("b")


def test_who_leaves_gives_the_turn_back() -> None:
    """Whether it was waiting for it or had it, and of addresses that ask for nothing any more nothing is kept."""

    async def use() -> None:
        attempts = Attempts()

        async def look() -> None:
            async with attempts.turn("a"):
                await asyncio.sleep(60)

        running = [asyncio.ensure_future(look()) for _ in range(MOST_WRONG + 2)]
        await asyncio.sleep(0)
        running[-1].cancel()
        running[0].cancel()
        await asyncio.sleep(0.01)
        waits = asyncio.ensure_future(look())
        await asyncio.sleep(0)
        attempts.note("a")
        for one in running[1:3]:
            one.cancel()
        await asyncio.sleep(0.01)
        assert attempts._looks["a"].running == MOST_WRONG - 1
        for one in (*running, waits):
            one.cancel()
        await asyncio.gather(*running, waits, return_exceptions=True)
        assert not attempts._looks

    asyncio.run(use())


def test_an_ipv6_network_is_one_address() -> None:
    """Whoever has one has 2⁶⁴ addresses; an IPv4 address in IPv6's clothes is that one address."""
    attempts = Attempts()
    for number in range(MOST_WRONG):
        attempts.note(f"2001:db8::{number:x}:1")
        attempts.note("::ffff:192.0.2.1")
    assert attempts.too_many("2001:db8:0:0:ffff::1") and not attempts.too_many("2001:db8:0:1::1")
    assert attempts.too_many("::ffff:192.0.2.1") and not attempts.too_many("::ffff:192.0.2.2")
    assert attempts.too_many("192.0.2.1") and not attempts.too_many("fe80::1%eth0")
