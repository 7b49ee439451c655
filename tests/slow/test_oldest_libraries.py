"""The oldest libraries that pyproject.toml allows, beside this torch, pass the quick tests of what depends on them.

They are installed in an environment that sees this one, so that torch and the tools of the tests are as they are.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
EXTRAS = ("serve", "export", "demo")
AS_THEY_ARE = re.compile(r"(torch|torchvision|triton|cuda|nvidia)(-[\w-]+)?==")
"""Gigabytes, for a torch that `tests/slow/test_oldest_torch.py` sees to."""
PUBLISHED = "tests/api/test_api_openapi.py::test_the_published_document_is_this_one"
"""Which is written by today's FastAPI."""
WAITING = 3600
"""Seconds for a folder: a test that hangs ends by its own limits, of a minute or more."""


def uv(*words: object) -> str:
    """What `uv` prints; the test is skipped where it cannot, for want of a network or of a build for this Python."""
    done = subprocess.run([UV, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED: the oldest libraries, which could not be installed: {done.stderr.strip()[-300:]}")
    return done.stdout


def is_installed(pin: str) -> bool:
    name, _, wanted = pin.partition("==")
    try:
        return version(name) == wanted
    except PackageNotFoundError:
        return False


def oldest(folder: Path) -> list[str]:
    """The oldest of what pyproject.toml names, which the tests can do with, and the newest of what these need."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    bounds = [f"torch=={torch.__version__.partition('+')[0]}", *(line for line in tools if "tcnn[" not in line)]
    (folder / "bounds.txt").write_text("\n".join(re.sub(r"\[\w+\]", "", line) for line in bounds))
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    found = uv(
        "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--resolution", "lowest-direct", "--python",
        sys.executable, "--constraint", folder / "bounds.txt", *extras, "pyproject.toml",
    ).splitlines()  # fmt: skip
    pins = [re.split(r"\s*[;#]", line)[0].strip() for line in found]
    return [pin for pin in pins if "==" in pin and not AS_THEY_ARE.match(pin) and not is_installed(pin)]


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """Of an environment with the oldest libraries, which is deleted afterwards."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        folder = Path(name)
        pins = oldest(folder)
        assert any(pin.startswith("uvicorn==") for pin in pins)
        python = folder / "venv/bin/python"
        uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
        uv("pip", "install", "--quiet", "--no-deps", "--python", python, *pins)
        (site,) = folder.glob("venv/lib/python3*/site-packages")
        here = [path for path in sys.path if path.endswith("site-packages")]
        (site / "zz_this_one.pth").write_text("\n".join([*here, str(ROOT)]))  # last: what is there as well is not taken
        yield python


@pytest.mark.parametrize("folder", ["exporting", "api", "jobs", "cli"])
def test_the_oldest_libraries_pass_the_quick_tests(folder: str, python: Path) -> None:
    words = ("-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--deselect", PUBLISHED, f"tests/{folder}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    done = subprocess.run(
        [python, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=WAITING
    )
    assert done.returncode == 0, "\n".join(
        re.findall(r"^(?:FAILED|ERROR|E  ).*|.* (?:passed|failed).*", done.stdout, re.M)
    )
