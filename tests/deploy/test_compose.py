"""docker-compose.yml against Compose's own schema, and what every service of it must have."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployed import ROOT, compose, parse_command, seconds

from tcnn.version import __version__
from tcnn_api.serve import DRAIN, REQUESTS
from tcnn_api.settings import ApiSettings
from tcnn_jobs.attempts.running import LONGEST

TEXT = (ROOT / "docker-compose.yml").read_text()
FILE = compose("docker-compose.yml")
SERVICES = FILE["services"]
OURS = ("api", "worker")
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def schema_check(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def without_gpu() -> dict[str, Any]:
    """As Compose merges the two files: `!reset null` takes a key away."""
    merged = compose("docker-compose.yml")
    for name, service in compose("docker-compose.cpu.yml")["services"].items():
        for key, value in service.items():
            assert value is None, "only resets are merged here"
            del merged["services"][name][key]
    return merged


def test_schema() -> None:
    done = schema_check(ROOT / "docker-compose.yml", ROOT / "docker-compose.hosts.yml")
    assert done.returncode == 0, done.stdout


def test_schema_without_a_gpu(tmp_path: Path) -> None:
    merged = without_gpu()
    assert "deploy" not in merged["services"]["worker"]
    (tmp_path / "merged.yml").write_text(yaml.safe_dump(merged))
    done = schema_check(tmp_path / "merged.yml")
    assert done.returncode == 0, done.stdout


def test_schema_refuses_what_compose_would(tmp_path: Path) -> None:
    broken = {**FILE, "services": {**SERVICES, "worker": {**SERVICES["worker"], "shm_sizes": "2gb"}}}
    (tmp_path / "broken.yml").write_text(yaml.safe_dump(broken))
    assert "shm_sizes" in schema_check(tmp_path / "broken.yml").stdout


def test_secrets_are_required_and_have_no_default() -> None:
    variables = [(name, operator) for name, operator, _ in VARIABLE.findall(TEXT)]
    assert {name for name, operator in variables if operator == "?"} == {"POSTGRES_PASSWORD", "TCNN_API_KEYS"}
    assert [name for name, operator in variables if operator != "?" and re.search("KEY|SECRET|PASSWORD", name)] == []
    assert all(operator for _, operator in variables)  # every other one has a default


def test_what_a_service_is_given_cannot_be_said_in_tcnn_env() -> None:
    """`environment` goes over `env_file`: a default here would silently undo what somebody wrote there."""
    assert set(SERVICES["worker"]["environment"]) == {"TCNN_DATABASE_URL"}
    assert set(SERVICES["api"]["environment"]) == {"TCNN_DATABASE_URL", "TCNN_API_KEYS"}


def test_image_has_the_version() -> None:
    for name in OURS:
        image = VARIABLE.fullmatch(SERVICES[name]["image"])
        assert image is not None
        assert image[3] == f"tcnn:{__version__}"
        assert SERVICES[name]["build"] == "."


@pytest.mark.parametrize(("name", "given"), [("api", {"worker": False}), ("worker", {})])
def test_commands(name: str, given: dict[str, object]) -> None:
    assert parse_command(SERVICES[name]["command"]) == given


def test_nobody_but_this_host_reaches_it() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["api"]
    (port,) = SERVICES["api"]["ports"]
    assert VARIABLE.sub("8000", port) == "127.0.0.1:8000:8000"


def test_services_wait_for_a_healthy_database() -> None:
    assert "pg_isready" in SERVICES["postgres"]["healthcheck"]["test"]
    for name in OURS:
        assert SERVICES[name]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert "healthcheck" not in SERVICES["api"]  # the image's own


def test_services_share_their_volume_and_keep_it() -> None:
    volumes = {name: {volume.split(":")[0] for volume in service["volumes"]} for name, service in SERVICES.items()}
    assert volumes["api"] == volumes["worker"] == {"data"}
    assert set().union(*volumes.values()) == set(FILE["volumes"])


def test_processes_have_no_more_rights_than_they_need() -> None:
    for name in OURS:
        assert SERVICES[name]["cap_drop"] == ["ALL"]
        assert SERVICES[name]["read_only"] is True
        assert "no-new-privileges:true" in SERVICES[name]["security_opt"]


def test_a_drain_has_time() -> None:
    stop = VARIABLE.fullmatch(SERVICES["worker"]["stop_grace_period"])
    assert stop is not None
    assert seconds(stop[3]) > ApiSettings.model_fields["grace"].default + LONGEST + DRAIN + REQUESTS
    assert seconds(SERVICES["api"]["stop_grace_period"]) > REQUESTS


def test_the_worker_has_gpus_and_shared_memory() -> None:
    (device,) = SERVICES["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert "shm_size" in SERVICES["worker"]
    assert "deploy" not in SERVICES["api"]
