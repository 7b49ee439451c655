"""The command line inside the test's own process: its exit code and what it printed."""

import json
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import huggingface_hub.constants
import pytest
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import nn

from tcnn.cli.main import main


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object that stdout must be."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value

    def error(self, code: int) -> str:
        """The one line of an error, and nothing beside it."""
        assert self.code == code, self
        assert self.out == ""
        assert self.err.startswith("error: "), self.err
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("error: ").strip()


@pytest.fixture
def tcnn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Result]]:
    """Runs `tcnn …` in an empty directory."""
    monkeypatch.chdir(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Result(code, out, err)

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def no_network(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub whose name never resolves (RFC 6761), and an empty cache, whatever this machine is connected to."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "https://tcnn.invalid")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, Callable[[], object]], Path]:
    """Makes a file once and copies it for every later test; files of one name are made in the same way."""
    directory = tmp_path_factory.mktemp("kept")

    def kept(path: Path, make: Callable[[], object]) -> Path:
        if (directory / path.name).exists():
            shutil.copy(directory / path.name, path)
        else:
            make()
            shutil.copy(path, directory / path.name)
        return path

    return kept


@pytest.fixture
def weights(tmp_path: Path, kept: Callable[..., Path], lively: Callable[..., nn.Module]) -> Path:
    """The weights of a `test_resnet` with ten classes."""
    path = tmp_path / "weights.safetensors"
    return kept(path, lambda: save_file(lively(num_classes=10).state_dict(), path))


@pytest.fixture(scope="session")
def source_directory(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> Path:
    """The same model as a directory of timm's."""
    path = tmp_path_factory.mktemp("source") / "source"
    save_for_hf(lively(num_classes=10), path, safe_serialization=True)
    return path


@pytest.fixture
def local_source(tmp_path: Path, source_directory: Path) -> str:
    """A copy of it."""
    return f"local-dir:{shutil.copytree(source_directory, tmp_path / 'source')}"


@pytest.fixture
def listing(tmp_path: Path) -> Callable[[], list[str]]:
    """Everything in the test's directory, hidden files too."""
    return lambda: sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
