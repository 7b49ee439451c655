"""Settings that cannot be meant are refused in one line that names the variable; those that are ignored, or work badly,
are warned of when a process starts.
"""

import json
import os
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from tcnn.errors import RequestError
from tcnn_api.settings import ApiSettings, load
from tcnn_jobs.settings import LONGEST_LEASE, OF_SERVER, QueueSettings, doubts, load_settings


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the environment."""
    for name in os.environ:
        if name.startswith("TCNN_"):
            monkeypatch.delenv(name)


NUMBERS = [
    name
    for name, field in ApiSettings.model_fields.items()
    if {float, int} & {field.annotation, *typing.get_args(field.annotation)}
]


@pytest.mark.parametrize("value", ["inf", "nan", "1e300"])
def test_no_number_is_without_bounds(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert {"lease", "max_body_mb", "max_upload_gb", "retention_days", "port"} <= set(NUMBERS)
    for name in NUMBERS:
        monkeypatch.setenv(f"TCNN_{name.upper()}", value)
        with pytest.raises(RequestError, match=rf"^TCNN_{name.upper()}: .*") as caught:
            load()
        assert "\n" not in str(caught.value)
        monkeypatch.delenv(f"TCNN_{name.upper()}")


def test_the_largest_numbers_can_be_reckoned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    found = load(max_body_mb=1000, max_upload_gb=1e9, lease=LONGEST_LEASE)
    assert (found.max_body, found.max_upload) == (10**9, 10**18)


@pytest.mark.parametrize("address", ["foo", "foo:", ":6379", "foo:0", "foo:65536", "http://foo:6379", "a b:1"])
def test_an_address_of_ray_has_a_port(address: str) -> None:
    with pytest.raises(RequestError, match=r"^TCNN_RAY_ADDRESS: .*expected host:port"):
        load_settings(QueueSettings, ray_address=address)


@pytest.mark.parametrize("address", ["head:6379", "127.0.0.1:1", "[::1]:6379"])
def test_addresses_of_ray(address: str) -> None:
    assert QueueSettings(ray_address=address).ray_address == address


def test_a_home_of_nobody() -> None:
    with pytest.raises(RequestError, match=r"^TCNN_HOME=~nosuchuser/x: expected a directory"):
        load_settings(QueueSettings, home="~nosuchuser/x").database  # noqa: B018


def test_names_that_are_no_settings() -> None:
    """With the one that may be meant; those of the server, of clients and of Compose are known to workers, too."""
    given = {f"TCNN_{name.upper()}": "1" for name in ApiSettings.model_fields} | {"TCNN_SERVER": "x", "HOME": "/"}
    assert list(doubts(QueueSettings(), given)) == []
    assert {f"{name.lower()}" for name in OF_SERVER} == set(ApiSettings.model_fields) - set(QueueSettings.model_fields)
    (said,) = doubts(QueueSettings(), given | {"TCNN_RETENSION_DAYS": "3", "TCNN_QQ": "1", "tcnn_lease": "70"})
    assert said.endswith("ignored: TCNN_QQ, TCNN_RETENSION_DAYS (did you mean TCNN_RETENTION_DAYS?)")


def test_a_short_lease_is_none_for_a_file() -> None:
    (said,) = doubts(QueueSettings(lease=5), {})
    assert said.startswith("TCNN_LEASE: expected at least 60 with SQLite, found 5")
    assert list(doubts(QueueSettings(lease=5, database_url="postgresql://db/tcnn"), {})) == []


def test_a_worker_tells_once(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "tcnn", "worker", "--burst", "--home", str(tmp_path / "home")]
    given = os.environ | {"TCNN_RETENSION_DAYS": "3", "TCNN_LOG_FORMAT": "json"}
    done = subprocess.run(call, env=given, capture_output=True, text=True, check=True)
    logged = [json.loads(line) for line in done.stderr.splitlines()]
    (warned,) = [line for line in logged if line["level"] == "warning"]
    assert "TCNN_RETENSION_DAYS (did you mean TCNN_RETENTION_DAYS?)" in warned["event"]
