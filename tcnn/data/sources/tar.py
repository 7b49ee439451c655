"""Read images in tar archives at their offset: any order, no unpacking, safe in forked workers.

timm keeps archives open; forked workers would then share one file position and read each other's bytes.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import numpy

from tcnn.data.sources.folder import class_labels
from tcnn.data.sources.names import canonical, choose_split, is_image, is_junk
from tcnn.data.sources.source import Found, number, pack_names
from tcnn.errors import RequestError, one_line


class Member(NamedTuple):
    """A file in an archive: where its `size` bytes begin."""

    name: str
    offset: int
    size: int
    folder: bool = False


class TarSource:
    """`Source` of members of archives."""

    def __init__(self, archives: Sequence[Path], where: Iterable[int], members: Sequence[Member]) -> None:
        self.archives = tuple(archives)
        self.where = numpy.array(list(where), dtype=numpy.int64)
        self.names = pack_names(member.name for member in members)
        self.offsets = numpy.array([(member.offset, member.size) for member in members], dtype=numpy.int64)

    def filename(self, index: int) -> str:
        return f"{self.archives[self.where[index]]}/{self.names[index].decode(errors='replace')}"

    def open(self, index: int) -> BinaryIO:
        offset, size = self.offsets[index].tolist()
        return io.BytesIO(read_at(self.archives[self.where[index]], offset, size))


def read_at(archive: Path, offset: int, size: int) -> bytes:
    """Read the bytes of a member."""
    with archive.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def members(archive: Path) -> Iterator[Member]:
    """Files and folders of an archive, hard links as the file they refer to. Raises `RequestError`."""
    try:
        with archive.open("rb") as handle:
            yield from members_of(handle, str(archive))
    except OSError as error:
        raise _no_tar(str(archive), one_line(error)) from error


def members_of(handle: BinaryIO, archive: str) -> Iterator[Member]:
    """`members` of an open file, from its beginning on. Between two members the caller may read elsewhere in it."""
    seen: dict[str, Member] = {}
    try:
        with tarfile.open(fileobj=handle, mode="r:") as tar:
            while (info := tar.next()) is not None:
                # tarfile remembers every member; at a million that is gigabytes.
                tar.members.clear()  # type: ignore[attr-defined]
                name = str(PurePosixPath(info.name))
                if info.isdir():
                    yield Member(name, 0, 0, folder=True)
                elif info.isreg():
                    seen[name] = Member(name, info.offset_data, info.size)
                    yield seen[name]
                elif info.islnk() and (target := seen.get(str(PurePosixPath(info.linkname)))):
                    yield target._replace(name=name)
            handle.seek(tar.offset)
            end = handle.read(tarfile.BLOCKSIZE)
            if not end or end.strip(b"\0"):
                # tarfile takes an archive that was cut between two members, or is damaged behind one, for its end.
                raise tarfile.ReadError
    except (tarfile.TarError, EOFError) as error:
        raise _no_tar(archive, "it is cut off, damaged, compressed, or something else") from error


def _no_tar(archive: str, why: str) -> RequestError:
    return RequestError(f"{archive}: expected an uncompressed, whole tar archive; {why}")


def open_tar(archive: Path, split: str, complete: bool) -> Found:
    """Open class folders in one archive, with the rules of `open_folder`."""
    found = [member for member in members(archive) if not is_junk(member.name)]
    images = {member.name: member for member in found if not member.folder and is_image(member.name)}
    folders = {member.name for member in found if member.folder}
    folders |= {str(parent) for name in images for parent in PurePosixPath(name).parents}
    folders -= {"."}
    root, chosen = _split_root(images, folders, split, str(archive))
    inside = [name.removeprefix(root) for name in images if name.startswith(root)]
    below = [name.removeprefix(root) for name in folders if name.startswith(root)]
    labels = class_labels(inside, below, f"{archive}/{root}".rstrip("/"), complete)
    names, numbers = number([label for _, label in labels])
    ordered = [images[root + path] for path, _ in labels]
    return Found(names, numbers, TarSource([archive], [0] * len(ordered), ordered), chosen)


def _split_root(images: Iterable[str], folders: set[str], split: str, where: str) -> tuple[str, str | None]:
    """The prefix, empty or ending in `/`, of a split's class folders, and the split's name."""
    holders = {name.rpartition("/")[0] for name in images}
    root = ""
    while True:
        top = {name[len(root) :].partition("/")[0] for name in folders if name.startswith(root)} - {""}
        named = [name for name in top if canonical(name) or name.lower() == split.lower()]
        parts = [name for name in named if root + name not in holders]
        if parts or len(top) != 1 or root.rstrip("/") in holders:
            break
        only = root + next(iter(top)) + "/"
        if not any(name.startswith(only) for name in folders):
            break
        root = only
    chosen = choose_split(parts, split, where)
    return (f"{root}{chosen}/" if chosen else root), chosen
