"""timm's own tests of its models and layers, as they come with its source distribution, on converted models.

A conversion must pass whatever its source passes: forward and backward passes, configurations, features in every form,
intermediates, pruning, FX graphs. Left out are TorchScript, which is not supported, pretrained weights, which need a
network, and pruning at every index (`contract`), which takes as long as all others; timm's own CI leaves it out, too.
"""

import os
import subprocess
import sys
import tarfile
from collections import Counter
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sampled import smallest_of_every_family

ROOT = Path(__file__).parents[2]
TOO_LARGE = {"mobilenetv5_base", "nasnetalarge", "pnasnet5large", "inception_resnet_v2"}
"""The smallest of their families, and yet they take minutes and gigabytes."""
REFUSED_FEATURES = {"selecsls42"}
"""timm's five levels end before the layer that is converted, and are refused (tests/zoo/test_register.py)."""
AT_A_TIME = 8
"""Families a process: its memory stays below 4 GiB."""


MODELS = [name for name in smallest_of_every_family() if name not in TOO_LARGE]
GROUPS = [MODELS[start : start + AT_A_TIME] for start in range(0, len(MODELS), AT_A_TIME)]


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """timm's source distribution of the version installed, unpacked."""
    folder = tmp_path_factory.mktemp("timm")
    version = metadata.version("timm")
    command = [sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps", f"timm=={version}"]
    done = subprocess.run([*command, "--dest", folder], capture_output=True, text=True, timeout=600, check=False)
    archive = folder / f"timm-{version}.tar.gz"
    if done.returncode or not archive.is_file():
        pytest.skip(f"NOT RUN: timm {version} cannot be downloaded as source: {done.stderr.strip()[-300:]}")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    tests = folder / f"timm-{version}" / "tests"
    if not (tests / "test_models.py").is_file():
        pytest.skip(f"NOT RUN: the source distribution of timm {version} has no tests")
    return tests


def outcomes(
    files: list[Path], report: Path, plugin: str, *options: str, **settings: str
) -> dict[str, tuple[str, str]]:
    """What became of every test of these files: `passed`, `failed` or `skipped`, and why."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "helpers")))
    command = [
        sys.executable, "-m", "pytest", "-p", plugin, "-p", "no:cacheprovider", "-q", f"--junitxml={report}",
        "-c", files[0].parents[1] / "pyproject.toml", "-o", "addopts=", "-W", "ignore", *options, *files,
    ]  # fmt: skip
    done = subprocess.run(
        command,
        env={**os.environ, **settings, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=report.parent,  # not where timm's sources lie: the timm that is installed is to be imported
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
    assert done.returncode in (0, 1), f"timm's tests did not run: {(done.stdout + done.stderr)[-3000:]}"
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        kind = "passed" if bad is None else "skipped" if bad.tag == "skipped" else "failed"
        found[case.attrib["name"]] = kind, "" if bad is None else str(bad.attrib.get("message", ""))[:300]
    return found


@pytest.mark.parametrize("names", GROUPS, ids=["+".join(group) for group in GROUPS])
def test_conversions_pass_what_their_sources_pass(names: list[str], suite: Path, tmp_path: Path) -> None:
    found = outcomes(
        [suite / "test_models.py"],
        tmp_path / "report.xml",
        "timm_suite",
        *("-k", "not torchscript and not pretrained and not contract"),
        TCNN_TIMM_MODELS=",".join(names),
    )
    passed = Counter[str]()
    worse = {}
    for name in names:
        for test, (source, _) in found.items():
            function, bracket, parameters = test.partition("[")
            if not _is_of(name, parameters):
                continue
            kind, why = found.get(function + bracket + parameters.replace(name, f"t_{name}", 1), ("", ""))
            if not kind:  # a test for a few models by name
                continue
            passed[name] += kind == "passed"
            if name in REFUSED_FEATURES and "these features end before the layers that would be converted" in why:
                continue
            if source == "passed" and kind != "passed":
                worse[f"t_{name}: {function}"] = f"{kind}: {why}"
    assert worse == {}
    assert min(passed[name] for name in names) >= 4, passed


def _is_of(name: str, parameters: str) -> bool:
    """Whether `1-resnet18.a1_in1k]` is a test of resnet18."""
    return any(part.partition(".")[0] == name for part in parameters.removesuffix("]").split("-"))


def test_layers_of_timm_are_what_they_are_without_tcnn(suite: Path, tmp_path: Path) -> None:
    found = outcomes(sorted(suite.glob("test_layers*.py")), tmp_path / "report.xml", "tcnn")
    assert {name: why for name, (kind, why) in found.items() if kind == "failed"} == {}
    assert len(found) > 1000


def test_there_are_sixty_families() -> None:
    assert len(MODELS) >= 60
