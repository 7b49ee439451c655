"""The wheel with its extras, in clean environments of every Python that is here: installed, imported, and at work."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcnn.version import __version__

ROOT = Path(__file__).parents[2]
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
