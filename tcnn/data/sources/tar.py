"""Read images in tar archives at their offset: any order, no unpacking, safe in forked workers.

timm keeps archives open; forked workers would then share one file position and read each other's bytes.
"""

import io
import re
import tarfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from posixpath import dirname, join, normpath
from typing import BinaryIO, NamedTuple

import numpy
from numpy.typing import NDArray

from tcnn.data.sources.folder import class_labels, in_classes
from tcnn.data.sources.names import choose_split, is_image, is_junk, is_left_out, left_out_note, split_folders
from tcnn.data.sources.source import ArchiveMembers, Found, number, stamp_of
from tcnn.errors import RequestError, one_line, readable

COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")
"""What files of gzip, bzip2, xz and zstandard begin with."""
UNPACK = "it is compressed: unpack it, as with gunzip, for images are read at any place in it"

_OUTSIDE = re.compile(r"(\.\.(/|$)|/)+")


class Member(NamedTuple):
    """A file in an archive: where its `size` bytes begin."""

    name: str
    offset: int
    size: int
    folder: bool = False


class TarSource(ArchiveMembers):
    """`Source` of members of archives on the disk."""

    def stamp(self, index: int) -> str | None:
        return stamp_of(self.archive(index))

    def sizes(self) -> NDArray[numpy.int64]:
        return self.ranges[:, 1]

    def open(self, index: int) -> BinaryIO:
        offset, size = self.ranges[index].tolist()
        with open(self.archive(index), "rb") as file:  # noqa: PTH123 - a million times
            file.seek(offset)
            return io.BytesIO(file.read(size))


def is_compressed(name: str) -> bool:
    """Whether a file's name is that of a compressed tar archive."""
    return re.search(r"\.(tar\.(gz|bz2|xz|zst)|t(gz|bz2?|xz|zst))$", name, re.IGNORECASE) is not None


def members(archive: Path) -> Iterator[Member]:
    """Files and folders of an archive, links as what they refer to. Raises `RequestError`."""
    try:
        with archive.open("rb") as handle:
            yield from members_of(handle, str(archive))
    except OSError as error:
        raise _not_a_tar(str(archive), one_line(error)) from error


def members_of(handle: BinaryIO, archive: str) -> Iterator[Member]:
    """`members` of an open file, from its beginning on. Between two members the caller may read elsewhere in it."""
    return (member._replace(name=_inside(member.name)) for member in _as_packed(handle, archive))


def _inside(name: str) -> str:
    """A name as where tar unpacks it: without what would lead out of there (`/` and `../` before it)."""
    outside = _OUTSIDE.match(name)
    return (name[outside.end() :] or ".") if outside else name


def _as_packed(handle: BinaryIO, archive: str) -> Iterator[Member]:
    """Members by the names that they were packed with, by which links refer to them."""
    seen: dict[str, Member] = {}
    links: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=handle, mode="r:") as tar:
            while (info := tar.next()) is not None:
                # tarfile remembers every member; at a million that is gigabytes.
                tar.members.clear()  # type: ignore[attr-defined]
                name = normpath(info.name)
                if info.isdir():
                    yield Member(name, 0, 0, folder=True)
                elif info.isreg():
                    seen[name] = Member(name, info.offset_data, info.size)
                    yield seen[name]
                elif info.islnk() and (target := seen.get(normpath(info.linkname))):
                    yield target._replace(name=name)
                elif info.issym():
                    links[name] = normpath(join(dirname(name), info.linkname))
            handle.seek(tar.offset)
            end = handle.read(tarfile.BLOCKSIZE)
            if not end or end.strip(b"\0"):
                # tarfile takes an archive that was cut between two members, or is damaged behind one, for its end.
                raise tarfile.ReadError
    except (tarfile.TarError, EOFError) as error:
        handle.seek(0)
        if handle.read(6).startswith(COMPRESSED):
            raise _not_a_tar(archive, UNPACK) from error
        raise _not_a_tar(archive, "it is cut off, damaged, or something else") from error
    yield from _links(links, seen, archive)


def _links(links: Mapping[str, str], files: dict[str, Member], archive: str) -> Iterator[Member]:
    """The files that symbolic links name, or that lie in folders that they name; `files` grows by the former.

    An archive of links is what `tar` makes of a subset that was put together with them. Raises `RequestError` for an
    image, or what may be a class, that is not in it.
    """
    ends = {name: _resolve(name, links) for name in links}
    for name, end in ends.items():
        if end in files:
            files[name] = files[end]._replace(name=name)
            yield files[name]
    paths = sorted(files)  # what lies in a folder stands together
    for name, end in ends.items():
        if end in files:
            continue
        inside = paths[bisect_left(paths, f"{end}/") : bisect_left(paths, f"{end}0")]  # 0 is what comes behind /
        yield from (files[path]._replace(name=name + path.removeprefix(end)) for path in inside)
        wanted = is_image(_inside(name)) or not (PurePosixPath(name).suffix or is_junk(_inside(name)))
        if wanted and not inside:
            raise RequestError(
                f"{archive}: {readable(name)} is a link to {readable(end)}, which is not in the archive; pack it with "
                "tar --dereference"
            )


def _resolve(name: str, links: Mapping[str, str]) -> str:
    """Where links that begin with one lead; one of a circle is its own end."""
    passed: set[str] = set()
    while name in links and name not in passed:
        passed.add(name)
        name = links[name]
    return name


def _not_a_tar(archive: str, why: str) -> RequestError:
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
    others = [member.name for member in found if not member.folder and is_left_out(member.name)]
    others = [name.removeprefix(root) for name in others if name.startswith(root)]
    labels = class_labels(inside, below, f"{archive}/{root}".rstrip("/"), complete, others)
    names, numbers = number([label for _, label in labels])
    ordered = [images[root + path][:3] for path, _ in labels]
    source = TarSource([str(archive)], [0] * len(ordered), ordered)
    return Found(names, numbers, source, chosen, left_out_note(in_classes(others, chosen)))


def _split_root(images: Iterable[str], folders: set[str], split: str, where: str) -> tuple[str, str | None]:
    """The prefix, empty or ending in `/`, of a split's class folders, and the split's name."""
    holders = {name.rpartition("/")[0] for name in images}
    root = ""
    while True:
        top = {name[len(root) :].partition("/")[0] for name in folders if name.startswith(root)} - {""}
        outer = {name.rpartition("/")[0] for name in folders}
        holds = {name: (root + name in holders, root + name in outer) for name in top}
        parts = split_folders(sorted(top), split, holds.__getitem__)
        if parts or len(top) != 1 or root.rstrip("/") in holders:
            break
        only = root + next(iter(top)) + "/"
        if not any(name.startswith(only) for name in folders):
            break
        root = only
    chosen = choose_split(parts, split, where)
    return (f"{root}{chosen}/" if chosen else root), chosen
