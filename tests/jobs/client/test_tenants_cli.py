"""`tcnn tenants` on a service's database."""

import base64
import io
from pathlib import Path

import pytest
from jobs_line import Run, runner


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
def test_bad_input(tenants: Run, arguments: tuple[object, ...], said: str) -> None:
    assert said in tenants(*arguments).error(2)
