"""The Dockerfile: linted, small, without secrets, as a user who is not root, and of one mind with pyproject.toml;
and its steps without Docker.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from deployed import ROOT, parse_command

from deploy.dockerfile import Instruction, environment, stages, words
from tcnn_api.settings import ApiSettings

BUILD, RUNTIME = stages(ROOT / "Dockerfile")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def texts(stage: list[Instruction], name: str) -> list[str]:
    return [text for found, text in stage if found == name]


def test_linter_has_nothing_to_say() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_python_is_the_oldest_that_is_supported() -> None:
    version = re.findall(r"^ARG PYTHON_VERSION=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert [f">={found}" for found in version] == [PROJECT["project"]["requires-python"]]
    for stage in (BUILD, RUNTIME):
        assert re.fullmatch(r"python:\$\{PYTHON_VERSION\}-slim( AS build)?", stage[0].text)


def test_the_context_holds_what_is_copied_and_nothing_else() -> None:
    copied = {word for text in texts(BUILD, "COPY") for word in text.split()[:-1]}
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == copied
    assert all((ROOT / source).exists() for source in copied)
    patterns = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {path.parent.name for pattern in patterns for path in ROOT.glob(f"{pattern}/__init__.py")}
    assert {"tcnn", "tcnn_jobs", "tcnn_api"} <= packages <= copied


def test_what_is_installed_is_pinned() -> None:
    commands = " && ".join(texts(BUILD, "RUN"))
    installs = re.findall(r"(?:uv )?pip install .*?(?= && |$)", commands)
    assert len(installs) == 3
    assert all("--constraint constraints.txt" in line or "--no-deps" in line for line in installs)
    assert "--build-constraints constraints.txt" in commands
    assert re.search(r"--extra serve\b", commands)
    pinned = (ROOT / "constraints.txt").read_text()
    assert all(re.search(rf"^{name}==", pinned, re.MULTILINE) for name in ("uv", "setuptools", "torch", "fastapi"))


def test_no_secret_is_in_a_layer() -> None:
    for stage in (BUILD, RUNTIME):
        names = [*environment(stage), *texts(stage, "ARG")]
        assert [name for name in names if re.search("KEY|SECRET|PASSWORD|TOKEN|_URL", name)] == []


def test_it_runs_as_a_fixed_user_who_is_not_root() -> None:
    (user,) = texts(RUNTIME, "USER")
    uid, gid = map(int, user.split(":"))
    assert min(uid, gid) >= 1000
    (account,) = [text for text in texts(RUNTIME, "RUN") if "useradd" in text]
    assert f"groupadd --gid {gid} " in account
    assert f"useradd --uid {uid} " in account
    assert [name for name, _ in RUNTIME].index("USER") > [name for name, _ in RUNTIME].index("RUN")


def test_its_settings_exist() -> None:
    given = environment(RUNTIME)
    settings = {name for name in given if name.startswith("TCNN_")}
    assert settings <= {f"TCNN_{name.upper()}" for name in ApiSettings.model_fields}
    (home,) = texts(RUNTIME, "VOLUME")
    assert given["TCNN_HOME"] == home
    assert given["HF_HOME"].startswith(f"{home}/")  # or weights would be downloaded for every container anew
    assert texts(RUNTIME, "EXPOSE") == [given["TCNN_PORT"]]


def test_commands_are_those_of_the_command_line() -> None:
    entry = words(RUNTIME, "ENTRYPOINT")
    assert entry == ["tini", "--", "tcnn"]
    assert "tini" in " ".join(texts(RUNTIME, "RUN"))
    assert parse_command(words(RUNTIME, "CMD")) == {}
    assert texts(RUNTIME, "STOPSIGNAL") == ["SIGTERM"]


def test_health_check_asks_for_nothing_that_the_image_lacks() -> None:
    python, flag, code = words(RUNTIME, "HEALTHCHECK")
    assert (python, flag) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    assert "'/healthz'" in code
    assert environment(RUNTIME)["PATH"].startswith("/opt/tcnn/bin:")


@pytest.mark.slow  # a new environment with everything in it: 36 s
def test_install() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "deploy/install_test.py"], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hash compared" in done.stdout
