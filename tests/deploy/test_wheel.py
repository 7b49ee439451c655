"""`make dist`: a file that is missing from the wheel, or should not be there, is named."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A wheel and an sdist with all that they should hold."""
    files = subprocess.run(
        ["git", "ls-files", "tcnn", "tcnn_jobs", "tcnn_api"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    with zipfile.ZipFile(tmp_path / "tcnn-1-py3-none-any.whl", "w") as wheel:
        for name in [*files, "tcnn-1.dist-info/METADATA"]:
            wheel.writestr(name, "")
    with tarfile.open(tmp_path / "tcnn-1.tar.gz", "w:gz") as archive:
        for name in [*files, "LICENSE", "README.md"]:
            archive.addfile(tarfile.TarInfo(f"tcnn-1/{name}"))
    return tmp_path


def look(folder: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "deploy" / "wheel_contents.py"
    return subprocess.run([sys.executable, script, folder], capture_output=True, text=True, check=False)


def test_a_whole_one(packed: Path) -> None:
    done = look(packed)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_missing_and_what_is_too_much(packed: Path) -> None:
    wheel = packed / "tcnn-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as whole:
        names = whole.namelist()
    with zipfile.ZipFile(wheel, "w") as other:
        for name in {*names, "tests/test_it.py"} - {"tcnn/zoo/catalogue.json"}:
            other.writestr(name, "")
    done = look(packed)
    assert done.returncode == 1
    lines = ["tcnn/zoo/catalogue.json is missing", "tests/test_it.py should not be there"]
    assert done.stderr.splitlines() == [f"{wheel.name}: {line}" for line in lines]
    wheel.unlink()
    assert "expected one wheel and one sdist, found 0 and 1" in look(packed).stderr
