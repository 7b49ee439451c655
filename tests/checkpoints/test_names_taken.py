"""What gets its name while something is written is not replaced without force, and of several writers one wins."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from torch import nn

import tcnn
from tcnn.errors import OutputError, StorageError
from tcnn.files import replacing, write_atomically


def a_file(path: Path) -> None:
    path.write_bytes(b"mine")


def a_link(path: Path) -> None:
    path.symlink_to("nowhere")


def a_directory(path: Path) -> None:
    path.mkdir()
    (path / "mine").write_bytes(b"mine")


MEANWHILE = (a_file, a_link, a_directory, Path.mkdir)


def made(path: Path, directory: bool) -> None:
    """What a command writes, at its temporary name."""
    if directory:
        path.mkdir()
    (path / "ours" if directory else path).write_bytes(b"ours")


def tree(folder: Path) -> dict[str, object]:
    """Everything in a folder, and what it is."""
    return {
        str(place.relative_to(folder)): place.readlink()
        if place.is_symlink()
        else place.is_file() and place.read_bytes()
        for place in folder.rglob("*")
    }


@pytest.fixture(params=["links", "no links"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one, and one as FAT is."""

    def refused(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(source), None, str(target))

    if request.param == "no links":
        monkeypatch.setattr(os, "link", refused)


@pytest.mark.usefixtures("file_system")
class TestANameThatIsTakenMeanwhile:
    @pytest.mark.parametrize("directory", [False, True], ids=["a file", "a directory"])
    @pytest.mark.parametrize("meanwhile", MEANWHILE, ids=lambda make: make.__name__)
    def test_stays_as_it_is(self, tmp_path: Path, directory: bool, meanwhile: Callable[[Path], None]) -> None:
        path = tmp_path / "out"
        with (
            pytest.raises(OutputError, match="out: exists already; replace it with --force, or choose another name"),
            replacing(path) as temporary,
        ):
            made(temporary, directory)
            meanwhile(path)
            before = {name: what for name, what in tree(tmp_path).items() if not name.startswith(".")}
        assert tree(tmp_path) == before
        assert set(before) <= {"out", "out/mine"}

    @pytest.mark.parametrize("directory", [False, True], ids=["a file", "a directory"])
    def test_is_replaced_by_force(self, tmp_path: Path, directory: bool) -> None:
        with replacing(tmp_path / "out", force=True) as temporary:
            made(temporary, directory)
            (a_directory if directory else a_file)(tmp_path / "out")
        whole = {"out": False, "out/mine": b"mine", "out/ours": b"ours"} if directory else {"out": b"ours"}
        assert tree(tmp_path) == whole

    @pytest.mark.parametrize("directory", [False, True], ids=["a file", "a directory"])
    def test_of_a_free_name_nothing_else_remains(self, tmp_path: Path, directory: bool) -> None:
        with replacing(tmp_path / "out") as temporary:
            made(temporary, directory)
        assert tree(tmp_path) == ({"out": False, "out/ours": b"ours"} if directory else {"out": b"ours"})


@pytest.mark.parametrize("directory", [False, True], ids=["files", "directories"])
def test_of_writers_at_once_one_wins_and_the_others_hear_of_it(tmp_path: Path, directory: bool) -> None:
    ready = Barrier(8)

    def write(number: int) -> int | None:
        try:
            with replacing(tmp_path / "out") as temporary:
                if directory:
                    temporary.mkdir()
                (temporary / "model" if directory else temporary).write_text(str(number))
                ready.wait(10)
        except OutputError as error:
            assert "exists already" in str(error)
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [number for number in pool.map(write, range(8)) if number is not None]
    assert len(winners) == 1
    assert (tmp_path / "out/model" if directory else tmp_path / "out").read_text() == str(winners[0])
    assert [place.name for place in tmp_path.iterdir()] == ["out"]


def test_a_directory_that_cannot_get_its_name_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is taken an instant before it is there."""

    def fails(source: Path, target: Path) -> Path:
        raise OSError(5, "Input/output error")

    with pytest.raises(StorageError, match="out: input/output error"), replacing(tmp_path / "out") as temporary:
        made(temporary, directory=True)
        monkeypatch.setattr(Path, "rename", fails)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [tcnn.save, tcnn.save_directory, lambda _, path: write_atomically(path, "ours")])
def test_whoever_writes_asks_at_the_end(
    converted: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[nn.Module, Path], object]
) -> None:
    """Something appears while the new one is flushed to the disk."""
    path, real = tmp_path / "out.safetensors", os.fsync

    def slow(number: int) -> None:
        real(number)
        if not path.exists():
            a_file(path)

    monkeypatch.setattr(os, "fsync", slow)
    with pytest.raises(OutputError, match="exists already"):
        write(converted, path)
    assert tree(tmp_path) == {"out.safetensors": b"mine"}
