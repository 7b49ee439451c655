"""docker-compose.hosts.yml: a profile for each part of a deployment on several hosts."""

import re
import shlex

import pytest
import yaml
from deployed import ROOT, compose, parse_command, seconds

from tcnn_api.serve import DRAIN, REQUESTS
from tcnn_api.settings import ApiSettings

NAME = "docker-compose.hosts.yml"
TEXT = (ROOT / NAME).read_text()
FILE = compose(NAME)
SERVICES = FILE["services"]
ONE_HOST = compose("docker-compose.yml")["services"]
PAGE = (ROOT / "docs/scaling.md").read_text()
GPUS = ("worker", "ray-head", "ray-node")


def test_nothing_starts_unasked() -> None:
    assert {name: service["profiles"] for name, service in SERVICES.items()} == {name: [name] for name in SERVICES}


def test_nothing_is_asked_of_a_host_that_it_does_not_run() -> None:
    """Compose wants every variable of the file, whichever profile is chosen."""
    assert set(re.findall(r"\$\{\w+(.)", TEXT)) == {":"}
    assert ":?" not in TEXT


@pytest.mark.parametrize("name", ["api", "worker"])
def test_services_are_those_of_one_host(name: str) -> None:
    ours, theirs = SERVICES[name], ONE_HOST[name]
    for key in ("command", "image", "read_only", "tmpfs", "cap_drop", "security_opt", "stop_grace_period"):
        assert ours[key] == theirs[key], key
    assert parse_command(ours["command"]) == parse_command(theirs["command"])


@pytest.mark.slow
def test_commands_of_ray_are_taken_by_ray() -> None:
    scripts = pytest.importorskip("ray.scripts.scripts", reason="NOT TESTED: Ray's commands; install tcnn[ray]")
    joined, worker = SERVICES["ray-head"]["command"][0].split(" && exec ")
    for words in (shlex.split(joined)[1:], SERVICES["ray-node"]["command"]):
        assert words[0] == "start"
        plain = [re.sub(r"\$\{.*\}", "10.0.0.1", word) for word in words[1:]]
        scripts.start.make_context("start", plain)
    assert shlex.split(worker)[0] == "tcnn"
    assert parse_command(shlex.split(worker)[1:]) == {}


def test_ray_asks_for_a_token_and_the_worker_for_ray() -> None:
    for name in ("ray-head", "ray-node"):
        assert SERVICES[name]["environment"]["RAY_AUTH_MODE"] == "token"
        assert SERVICES[name]["network_mode"] == "host"
    head = SERVICES["ray-head"]["environment"]
    settings = ApiSettings(engine=head["TCNN_ENGINE"], ray_address=head["TCNN_RAY_ADDRESS"])
    assert settings.engine == "ray"
    assert settings.ray_address == ApiSettings.model_fields["ray_address"].default
    assert "--port=6379" in SERVICES["ray-head"]["command"][0]


def test_whoever_trains_has_gpus_and_time_to_stop() -> None:
    for name in GPUS:
        (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        (stop,) = re.findall(r":-(\w+)\}", SERVICES[name]["stop_grace_period"])
        assert seconds(stop) > ApiSettings.model_fields["grace"].default + DRAIN + REQUESTS
    assert "deploy" not in SERVICES["api"]


def test_the_page_shows_every_profile() -> None:
    shown = set(re.findall(rf"--file {re.escape(NAME)} --profile (\S+) up", PAGE))
    assert shown == set(SERVICES)


def test_every_variable_is_explained() -> None:
    explained = PAGE + (ROOT / "docs/operations.md").read_text()
    assert [name for name in set(re.findall(r"\bTCNN_[A-Z_]+\b", TEXT)) if f"`{name}`" not in explained] == []


def test_the_image_has_what_the_profiles_run() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for extra in ("serve", "s3", "ray"):
        assert f"--extra {extra}" in dockerfile


def test_the_ray_cluster_of_kubernetes_is_of_one_mind_with_it() -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    cluster, *secrets = yaml.safe_load_all(block)
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    head, (node,) = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]
    pods = [head["template"]["spec"], node["template"]["spec"]]
    images = {container["image"] for pod in pods for container in pod["containers"]}
    volumes = [volume for pod in pods for volume in pod["volumes"]]
    claims = [found["persistentVolumeClaim"]["claimName"] for found in volumes if "persistentVolumeClaim" in found]
    assert len(images) == len(set(claims)) == 1
    assert len(claims) == len(pods)
    assert node["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert [container["name"] for container in head["template"]["spec"]["containers"]] == ["ray-head", "tcnn"]
    known = {secret["metadata"]["name"]: set(secret["stringData"]) for secret in secrets}
    assert known["tcnn-ray"] == {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}
    for pod in pods:
        for container in pod["containers"]:
            given = [source["secretRef"]["name"] for source in container["envFrom"]]
            assert given == (["tcnn-ray", "tcnn"] if container["name"] == "tcnn" else ["tcnn-ray"])
