"""What is there after a power cut: no file has its name before its content is on the disk, and names last, too."""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tcnn_jobs.artifacts import local
from tcnn_jobs.artifacts.bucket import Bucket
from tcnn_jobs.artifacts.cache import Cache
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.artifacts.local import LocalArtifacts, growing
from tcnn_jobs.model.jobs import Upload


class Disk:
    """What of a folder a power cut would leave: files whose content was flushed, and names in flushed folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._contents: dict[int, int] = {}
        self._names: set[tuple[Path, int]] = set()

    def flush(self, path: Path) -> None:
        """What `fsync` does for a file, and for a folder: its names, not what has them."""
        if path.is_dir():
            self._names |= {(one, one.stat().st_ino) for one in path.iterdir()}
        else:
            self._contents[path.stat().st_ino] = path.stat().st_size

    def flush_all(self) -> None:
        for path in (self.root, *self.root.rglob("*")):
            self.flush(path)

    def lost(self, place: Path) -> list[str]:
        """What would be missing of a file or folder: contents alone of what has yet to get its name."""
        return [
            str(path.relative_to(place))
            for path in (place, *place.rglob("*"))
            if (path.is_file() and self._contents.get(path.stat().st_ino) != path.stat().st_size)
            or (path != place and (path, path.stat().st_ino) not in self._names)
        ]

    def has(self, place: Path) -> bool:
        """Whether all of it would be found where it is."""
        names = [path for path in (place, *place.parents) if path.is_relative_to(self.root) and path != self.root]
        return not self.lost(place) and all((path, path.stat().st_ino) in self._names for path in names)


@pytest.fixture(params=[True, False], ids=["syncfs", "sync"])
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Disk]:
    """Nothing gets a name in it that would not be whole after a power cut."""
    disk, flush, rename = Disk(tmp_path), os.fsync, os.rename

    def fsync(number: int) -> None:
        flush(number)
        disk.flush(Path(f"/proc/self/fd/{number}").readlink())

    def named(source: Path, target: Path) -> None:
        assert disk.lost(Path(source)) == []
        moved = {path.relative_to(source) for path in Path(source).rglob("*")}
        rename(source, target)
        disk._names |= {(Path(target, path), Path(target, path).stat().st_ino) for path in moved}

    def syncfs(number: int) -> int:
        disk.flush_all()
        return 0

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", named)
    monkeypatch.setattr(os, "sync", disk.flush_all)
    monkeypatch.setattr(local, "_syncfs", syncfs if request.param else None)
    yield disk


def _file(path: Path) -> None:
    path.write_bytes(b"weights")


def _folder(path: Path) -> None:
    for name in ("cat", "dog"):
        (path / name).mkdir(parents=True)
        _file(path / name / "1.png")


MAKE = pytest.mark.parametrize("make", [_file, _folder])


@MAKE
def test_an_upload(disk: Disk, make: Callable[[Path], None]) -> None:
    home = Home(disk.root / "home").create()
    disk.flush_all()
    make(home.incoming / "found")
    kind, place = ("dataset", "datasets/ds_0123456789") if make is _folder else ("weights", "checkpoints/wts_01234567")
    upload = Upload(id=Path(place).name, owner="ann", kind=kind, name="x", path=place, size=7, sha256="0" * 64)
    LocalArtifacts(home).add(upload, home.incoming / "found")
    assert disk.has(home.root / place)


@MAKE
def test_an_entry_of_the_cache(disk: Disk, make: Callable[[Path], None]) -> None:
    """Fetched, or taken in."""
    cache = Cache(disk.root, limit=1e6)
    held = cache.hold("fetched", 7, make)
    held.release()
    make(disk.root / ".upload")
    cache.adopt("taken", disk.root / ".upload")
    assert disk.has(held.path) and disk.has(disk.root / "taken")


def test_an_object_in_a_folder(disk: Disk, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also in folders that it is the first in; written anew, it is the old one or the new one."""
    bucket, source = Bucket(f"file://{disk.root}/store"), tmp_path_factory.mktemp("else") / "a"
    _file(source)
    bucket.put(source, "jobs/one/1/a", hashlib.sha256(source.read_bytes()).hexdigest())
    for text in ("old", "anew"):
        bucket.put_text("jobs/one/1/manifest.json", text)
        assert bucket.text("jobs/one/1/manifest.json") == text
    assert all(disk.has(disk.root / "store/jobs/one/1" / name) for name in ("a", "manifest.json"))


@MAKE
def test_a_disk_that_fails_gives_no_name(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """And what was written goes."""

    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="Input/output"):
        patch.setattr(local, "_syncfs", fail)
        patch.setattr(os, "fsync", fail)
        with growing(tmp_path / "place") as path:
            make(path)
    assert list(tmp_path.iterdir()) == []


def test_the_system_says_why_a_folder_was_not_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = local._syncfs
    monkeypatch.setattr(local, "_syncfs", lambda number: flush(-1))
    with pytest.raises(OSError, match="Bad file descriptor"), growing(tmp_path / "place") as path:
        _folder(path)
