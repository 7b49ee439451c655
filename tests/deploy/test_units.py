"""The systemd unit, its settings, and what Prometheus is told."""

import re
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest
import yaml
from deployed import ROOT, parse_command, seconds

from tcnn.errors import EnvironmentFailure, RequestError
from tcnn_api.serve import DRAIN, REQUESTS
from tcnn_api.settings import ApiSettings
from tcnn_jobs.attempts.running import LONGEST

UNIT = (ROOT / "deploy/tcnn.service").read_text()
KNOWN = {f"TCNN_{name.upper()}" for name in ApiSettings.model_fields}


@pytest.fixture(scope="module")
def service() -> dict[str, str]:
    parser = RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(UNIT)
    return dict(parser["Service"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_it(tmp_path: Path) -> None:
    # The only thing that is not here is the program.
    unit = tmp_path / "tcnn.service"
    unit.write_text(UNIT.replace("/opt/tcnn/bin/tcnn", "/bin/true").replace("User=tcnn", "User=daemon"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    # It speaks of the machine's own units too.
    assert [line for line in done.stderr.splitlines() if "tcnn" in line] == []
    assert done.returncode == 0, done.stderr


def test_the_command(service: dict[str, str]) -> None:
    program, *arguments = service["ExecStart"].split()
    assert Path(program).name == "tcnn"
    assert parse_command(arguments) == {}


def test_a_drain_has_time_and_reaches_the_server_alone(service: dict[str, str]) -> None:
    grace = ApiSettings.model_fields["grace"].default
    assert seconds(service["TimeoutStopSec"]) > grace + LONGEST + DRAIN + REQUESTS
    assert service["KillMode"] == "mixed"


def test_a_job_that_is_killed_for_memory_does_not_take_the_service_along(service: dict[str, str]) -> None:
    assert service["OOMPolicy"] == "continue"


def test_restarts(service: dict[str, str]) -> None:
    """A wrong setting does not get better by itself; a database that is away does."""
    final = set(map(int, service["RestartPreventExitStatus"].split()))
    assert final == {RequestError.exit_code}
    assert EnvironmentFailure.exit_code not in final
    assert service["Restart"] == "on-failure"


def test_everything_is_kept_in_the_state_directory(service: dict[str, str]) -> None:
    given = dict(pair.split("=", 1) for pair in service["Environment"].split())
    state = f"/var/lib/{service['StateDirectory']}"
    assert given["TCNN_HOME"] == state
    assert given["HF_HOME"].startswith(f"{state}/")
    assert service["StateDirectoryMode"] == "0700"
    assert {name for name in given if name.startswith("TCNN_")} <= KNOWN


def test_gpus_can_be_used(service: dict[str, str]) -> None:
    assert not {"PrivateDevices", "MemoryDenyWriteExecute", "DevicePolicy"} & set(service)


def test_example_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of the example is a setting that the program accepts."""
    lines = (ROOT / "deploy/tcnn.env.example").read_text().splitlines()
    found = [line.lstrip("# ").partition("=") for line in lines if re.match(r"#? ?[A-Z_]+=", line)]
    given = {name: value for name, _, value in found if name.startswith("TCNN_")}
    assert len(given) >= 10
    assert set(given) <= KNOWN
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = ApiSettings()
    assert settings.slots == int(given["TCNN_SLOTS"])
    assert settings.dataset_roots == (Path(given["TCNN_DATASET_ROOTS"]),)


def test_alerts_are_rules_of_prometheus() -> None:
    scrape = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())
    assert scrape["rule_files"] == ["alerts.yml"]
    (job,) = scrape["scrape_configs"]
    assert "credentials_file" in job["authorization"]  # /metrics needs a key
    (group,) = yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in ("page", "ticket")
        of_one_server = rule["alert"] in ("TcnnDown", "TcnnDatabaseAway")
        assert of_one_server or re.match(r"(sum|max|histogram_quantile)\b", rule["expr"]), "fires for every server"
    lease = ApiSettings.model_fields["lease"].default
    limits = re.findall(r"tcnn_worker_heartbeat_age_seconds\)? [<>] (\d+)", str(group))
    assert limits == [f"{lease:g}"] * 2
    assert {f'job="{job["job_name"]}"'} == set(re.findall(r'job="\w+"', str(group)))
