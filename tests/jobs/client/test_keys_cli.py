"""`tcnn keys` on a service's database: what it prints, and what it refuses."""

from pathlib import Path

import pytest
from jobs_line import Run, runner

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
        (("list",), "no service's database"),
        (("create", "team", "--name", "a\nb"), "--name: expected at most 100 printable characters, found 'a\\nb'"),
        (("revoke", "key_0"), "no service's database; name its TCNN_HOME"),
        (("list", "--database-url", "mysql://x"), "expected sqlite:///FILE or postgresql://USER@HOST/NAME"),
    ],
)
def test_bad_input(keys: Run, arguments: tuple[object, ...], said: str) -> None:
    assert said in keys(*arguments).error(2)


def test_a_database_is_made_with_a_word_and_for_a_key_alone(keys: Run, home: Path) -> None:
    keys("list").error(2)
    assert not home.exists()
    assert f"{home / 'tcnn.db'}: a new database" in keys("create", "team").err
    assert "new database" not in keys("create", "team").err
    assert "key_0: no such key; `tcnn keys list` shows those that there are" in keys("revoke", "key_0").error(2)


def test_a_time_that_no_calendar_has_is_listed() -> None:
    assert when(1e17) == "9999-12-31T23:59:59Z"
