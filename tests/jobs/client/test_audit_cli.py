"""`tcnn audit` on a service's database."""

import getpass
from pathlib import Path

import pytest
from jobs_line import runner


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
