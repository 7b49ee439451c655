"""`tcnn keys`, `tcnn tenants` and `tcnn audit` on a service's database: what they print, and what they refuse."""

import base64
import getpass
import io
from pathlib import Path

import pytest
from command_and_worker import Run, runner

from tcnn_jobs.cli.options import when
from tcnn_jobs.model.accounts import digest
from tcnn_jobs.store import Store


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TCNN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def keys(home: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`tcnn keys …` on a service of which there is nothing yet."""
    return runner(capsys, "keys")


def test_the_secret_is_shown_once(keys: Run, home: Path) -> None:
    made = keys("create", "team", "--name", "laptop", "--days", 90)
    secret = made.out.strip()
    assert made.code == 0 and secret.startswith("tcnn_") and made.out.count("\n") == 1
    assert "of team (read, submit) until 20" in made.err and secret not in made.err
    store = Store(f"sqlite:///{home / 'tcnn.db'}")
    found = store.find_key(digest(secret))
    store.close()
    assert found is not None and (found.tenant, found.name) == ("team", "laptop")
    for listed in (keys("list"), keys("list", "--json")):
        assert listed.code == 0 and found.id in listed.out and secret not in listed.out


def test_json(keys: Run) -> None:
    made = keys("create", "team", "--scopes", "read", "--json").json
    assert made["scopes"] == ["read"] and made["valid"] and made["expires_at"] is None
    secret = made.pop("secret")
    assert secret.startswith("tcnn_")
    assert keys("list", "--json").json == {"object": "list", "data": [made]}
    revoked = keys("revoke", made["id"], "--json").json
    assert revoked["revoked_at"] and not revoked["valid"]
    assert revoked.keys() == made.keys()


def test_a_list_has_what_is_valid_unless_all_is_asked_for(keys: Run) -> None:
    ids = [keys("create", tenant, "--json").json["id"] for tenant in ("ann", "bob", "ann")]
    assert "revoked" in keys("revoke", ids[0]).out
    listed = {options: [key for key in ids if key in keys("list", *options).out] for options in OPTIONS}
    assert listed == {(): ids[1:], ("--all",): ids, ("--tenant", "ann"): ids[2:], ("--tenant", "none"): []}


def test_brackets_in_a_name_are_shown(keys: Run) -> None:
    assert keys("create", "ann", "--name", "[/x] [red]laptop").code == 0
    listed = keys("list")
    assert listed.code == 0 and "[/x]" in listed.out and "[red]" in listed.out


OPTIONS: tuple[tuple[str, ...], ...] = ((), ("--all",), ("--tenant", "ann"), ("--tenant", "none"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "a b"), "TENANT: expected ASCII without spaces and colons, as in TCNN_API_KEYS, found 'a b'"),
        (("create", "team", "--scopes", "write"), "--scopes: expected one or more of read, submit"),
        (("create", "team", "--scopes", ","), "--scopes: expected one or more of read, submit"),
        (("create", "team", "--days", 0), "--days: expected a number above 0, at most 36500, found 0"),
        (("create", "team", "--days", 1e12), "--days: expected a number above 0, at most 36500, found 1e+12"),
        (("list",), "no database of a service"),
        (
            ("create", "team", "--name", "a\nb"),
            "--name: expected one line of text without a control character (U+000A), found 'a\\nb'",
        ),
        (("revoke", "key_0"), "no database of a service; name its TCNN_HOME"),
        (("list", "--database-url", "mysql://x"), "expected sqlite:///FILE or postgresql://USER@HOST/NAME"),
    ],
)
def test_bad_input_to_keys(keys: Run, arguments: tuple[object, ...], said: str) -> None:
    assert said in keys(*arguments).error(2)


def test_a_database_is_made_with_a_word_and_for_a_key_alone(keys: Run, home: Path) -> None:
    keys("list").error(2)
    assert not home.exists()
    assert f"{home / 'tcnn.db'}: a new database" in keys("create", "team").err
    assert "new database" not in keys("create", "team").err
    assert "key_0: no such key; `tcnn keys list` shows those that there are" in keys("revoke", "key_0").error(2)


def test_a_time_that_no_calendar_has_is_listed() -> None:
    assert when(1e17) == "9999-12-31T23:59:59Z"


@pytest.fixture
def tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("TCNN_HOME", str(tmp_path / "home"))
    return runner(capsys, "tenants")


def test_set_and_list(tenants: Run) -> None:
    made = tenants("set", "team", "--queued", 200, "--running", 4, "--gpu-hours", 1.5, "--stored-gb", 0.1, "--json")
    expected = {"queued": 200, "running": 4, "gpu_hours": 1.5, "stored": 100_000_000}
    assert made.json["quotas"] == expected
    assert made.json["use"] == {"queued": 0, "running": 0, "gpu_hours": 0.0, "stored": 0}
    assert "0 of 200" in tenants("list").out
    changed = tenants("set", "team", "--running", "none", "--json").json
    assert changed["quotas"] == expected | {"running": None}
    tenants("set", "other", "--queued", 1)
    assert [one["name"] for one in tenants("list", "--json").json["data"]] == ["other", "team"]
    assert tenants("list", "--tenant", "team", "--json").json["data"] == [changed]


def test_zero_has_no_sign(tenants: Run) -> None:
    assert "0.0 of 0 " in tenants("set", "team", "--gpu-hours", "-0.0").out
    assert "-0" not in tenants("list").out + tenants("list", "--json").out


def test_webhook_secret(tenants: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made and shown once, or read where nobody else can, and never shown again."""
    made = tenants("set", "team", "--queued", 7, "--webhook-secret", "new", "--json").json
    secret = made.pop("webhook_secret")
    assert made["own_webhook_secret"] and made["quotas"]["queued"] == 7
    assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    listed = tenants("list", "--json")
    assert listed.json["data"] == [made] and secret not in listed.out
    assert "own secret" in tenants("list").out
    assert not tenants("set", "team", "--webhook-secret", "none", "--json").json["own_webhook_secret"]
    assert "shown once: whsec_" in tenants("set", "team", "--webhook-secret", "new").out
    for given, code in (("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", 0), ("whsec_?\n", 2), ("", 2)):
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        assert tenants("set", "team", "--webhook-secret", "-").code == code
    assert "found another text" in tenants("set", "team", "--webhook-secret", "in-everybodys-ps").error(2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("set", "a b"), "TENANT: expected ASCII without spaces and colons, found 'a b'"),
        (("set", "team", "--queued", "1.5"), "--queued: expected a whole number of 0 or more, or none, found '1.5'"),
        (("set", "team", "--running", "-1"), "--running: expected a whole number"),
        (("set", "team", "--gpu-hours", "nan"), "--gpu-hours: expected a number of 0 or more, or none, found 'nan'"),
        (("set", "team", "--stored-gb", "much"), "--stored-gb: expected a number of 0 or more, or none, found 'much'"),
    ],
)
def test_bad_input_to_tenants(tenants: Run, arguments: tuple[object, ...], said: str) -> None:
    assert said in tenants(*arguments).error(2)


def test_what_the_command_line_changed_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TCNN_HOME", str(tmp_path / "home"))
    keys, tenants, audit = (runner(capsys, group) for group in ("keys", "tenants", "audit"))
    assert audit("--json").json["error"]["message"].endswith("name its TCNN_HOME (--home) or its TCNN_DATABASE_URL")
    key = keys("create", "team", "--scopes", "admin", "--json").json["id"]
    tenants("set", "other", "--queued", 1)
    keys("revoke", key)
    entries = audit("--json").json["data"]
    assert [one["action"] for one in entries] == ["key.revoke", "tenant.set", "key.create"]
    assert {(one["by"], one["key"]) for one in entries} == {(getpass.getuser(), "command line")}
    assert [one["resource"] for one in audit("--tenant", "team", "--json").json["data"]] == [key, key]
    assert audit("--key", "key_0", "--json").json == {"object": "list", "data": [], "has_more": False}
    page = audit("--limit", 1)
    assert key in page.out and "more: --after 3" in page.out
    assert "tenant.set" in audit("--after", 3, "--limit", 1).out
    assert audit("--limit", 0).code == 2
    assert audit("--after", 2**63).code == 2 and audit("--limit", 2**63).code == 2


@pytest.mark.parametrize("asked", ["audit --tenant", "audit --key", "keys list --tenant", "tenants list --tenant"])
def test_a_name_that_no_database_can_hold_is_nobodys(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an argument that is no UTF-8 arrives."""
    monkeypatch.setenv("TCNN_HOME", str(tmp_path / "home"))
    runner(capsys, "keys")("create", "team")
    group, *words = asked.split()
    assert runner(capsys, group)(*words, "\udcff", "--json").json["data"] == []
