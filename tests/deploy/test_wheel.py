"""The wheel: `make dist` names what is missing from it, or should not be there; what it has of onnxruntime-web is
what its makers published; and with its extras it is at work in clean environments of every Python that is here.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcnn.explorer.export import page_files
from tcnn.version import __version__

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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="NOT TESTED: where onnxruntime-web is from, for lack of npm")
def test_it_is_the_npm_package() -> None:
    ours = dict(page_files())
    version = re.search(rb"ONNX Runtime Web v([\d.]+)", ours["ort.js"][:200])
    assert version is not None
    script = f"""
import hashlib, sys
sys.path.insert(0, {str(ROOT / "deploy")!r})
import onnxruntime_web
for name, content in sorted(onnxruntime_web.fetch({version[1].decode()!r}).items()):
    print(name, hashlib.sha256(content).hexdigest())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED: where onnxruntime-web is from, npm does not serve it ({done.stderr[-200:]})")
    theirs = dict(line.split() for line in done.stdout.splitlines())
    assert theirs == {name: hashlib.sha256(ours[name]).hexdigest() for name in ("ort.js", "ort.wasm")}


UV = Path(sys.executable).with_name("uv")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = "data,demo,evaluate,export,plots,s3,serve"


def run(*words: object, cwd: Path = ROOT) -> str:
    """What a command prints; none of this process's environment leads it here."""
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=kept, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def interpreter(version: str) -> Path:
    """A Python of this version that is here; skips without one."""
    done = subprocess.run(
        [UV, "python", "find", "--no-project", "--system", "--no-python-downloads", version],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    homes = [Path(done.stdout.strip())] if done.returncode == 0 else []
    homes += sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"))
    if not homes:
        pytest.skip(f"NOT TESTED: the wheel on Python {version}, for lack of one")
    return homes[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("dist")
    run(UV, "build", "--quiet", "--wheel", "--out-dir", folder)
    yield folder / f"tcnn-{__version__}-py3-none-any.whl"


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel(version: str, wheel: Path, tmp_path: Path) -> None:
    """Versions are those of constraints.txt, which are pinned for every Python."""
    python = tmp_path / "env/bin/python"
    run(UV, "venv", "--quiet", "--python", interpreter(version), tmp_path / "env")
    run(
        UV,
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "--constraint",
        ROOT / "constraints.txt",
        f"{wheel}[{EXTRAS}]",
    )
    tcnn = python.with_name("tcnn")
    assert run(tcnn, "--version") == f"tcnn {__version__}\n"
    assert run(python, "-c", "import sys; print(*sys.version_info[:2], sep='.')") == f"{version}\n"
    names = "import tcnn, tcnn_jobs.client, tcnn_api.app; [getattr(tcnn, name) for name in tcnn.__all__]"
    assert run(python, "-c", f"{names}; print(tcnn.__file__)", cwd=tmp_path).startswith(str(tmp_path))
    run(tcnn, "convert", "test_resnet", "t.safetensors", "--no-pretrained", cwd=tmp_path)
    run(tcnn, "verify", "t.safetensors", cwd=tmp_path)
    run(tcnn, "export", "t.safetensors", "page", "--explorer", "--size", "64", cwd=tmp_path)
    assert (tmp_path / "page/ort.wasm").stat().st_size > 10**7
    run(tcnn, "inspect", "t.safetensors", "--out", "looks", cwd=tmp_path)
    assert "tcnn serve" in run(tcnn, "serve", "--help")
