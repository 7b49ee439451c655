"""Safe extraction of an untrusted zip or tar: only images, only below the target, never more than is allowed.

Nothing that an archive says about itself is believed: bytes are counted as they come out, links and devices are
refused whatever they point to, and a name is checked before anything is made of it. Runs in a process of its own
(`tcnn_jobs.confined.process`), which also bounds its memory.
"""

import bz2
import errno
import gzip
import lzma
import re
import stat
import struct
import sys
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from tcnn.data.sources.names import is_image, is_junk, is_left_out
from tcnn.errors import RequestError, StorageError, one_line, shorten, storage_errors
from tcnn_jobs.confined.room import Bounds

KINDS = "a zip, tar, tar.gz, tar.bz2 or tar.xz"
FREE_RATIO_BYTES = 64 << 20
"""So much may come out of any archive: small drawings compress a thousandfold, and harm nobody."""
LONGEST_NAME, LONGEST_PATH, DEEPEST = 255, 1000, 16

LOCAL_HEADER = 30
"""Bytes of a zip entry's own header, without its name."""

_CHUNK = 1 << 20
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]")
_DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, struct.error,
    ValueError, NotImplementedError, RuntimeError, OverflowError, AssertionError,
)  # fmt: skip
_CLASHES = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR}


class ArchiveError(RequestError):
    """An archive that is damaged, hostile, or too large."""


class Limits(NamedTuple):
    """What may come out: entries, bytes, and bytes for every byte that was sent; and what may be kept of it."""

    files: int
    unpacked: int
    ratio: float
    kept: Bounds = Bounds()


class Readable(Protocol):
    """Anything with `read(size)`."""

    def read(self, size: int = -1, /) -> bytes: ...


class Entry(NamedTuple):
    """One file or folder of an archive."""

    name: str
    open: Callable[[], Readable] | None
    """None for a folder."""


class Budget:
    """Counts what comes out of an archive, and raises `ArchiveError` when it is too much."""

    def __init__(self, limits: Limits, size: int) -> None:
        self._limits, self._entries, self._bytes, self._kept = limits, 0, 0, 0
        self._by_ratio = max(FREE_RATIO_BYTES, round(limits.ratio * size))

    def entry(self, count: int = 1) -> None:
        """So many more entries."""
        self._entries += count
        if self._entries > self._limits.files:
            raise ArchiveError(f"expected at most {self._limits.files} entries, found more; split the data set")

    def spend(self, size: int) -> None:
        """So many more bytes."""
        self._bytes += size
        if self._bytes > self._limits.unpacked:
            raise ArchiveError(f"expected at most {self._limits.unpacked} bytes unpacked, found more; send less")
        if self._bytes > self._by_ratio:
            raise ArchiveError(f"unpacks to more than {self._limits.ratio:g} times its size; send it less compressed")

    def keep(self, size: int, folder: Path) -> None:
        """So many more bytes are about to be written there; raises `BytesExceeded` and `StorageError`."""
        self._kept += size
        self._limits.kept.check(self._kept, size, folder)


class Counted:
    """A stream whose every byte is counted."""

    def __init__(self, stream: Readable, budget: Budget) -> None:
        self._stream, self._budget = stream, budget

    def read(self, size: int = _CHUNK) -> bytes:
        data = self._stream.read(size)
        self._budget.spend(len(data))
        return data


def unpack(archive: Path, target: Path, limits: Limits) -> list[str]:
    """Unpack the images of an archive, in their folders, into `target`, which is made.

    Returns the names of what is left out and may be missed (`is_left_out`). Raises `ArchiveError` with one line,
    `BytesExceeded` for more than the tenant may store, `StorageError` when the disk is full; what was written so far is
    left there.
    """
    budget = Budget(limits, archive.stat().st_size)
    seen: dict[str, str] = {}
    left_out: list[str] = []
    with storage_errors(Path("the data set")), archive.open("rb") as file:
        target.mkdir()
        try:
            for entry in _entries(file, budget):
                name = _keep(entry, target, seen, budget)
                left_out += [name] * (entry.open is not None and is_left_out(name))
        except (ArchiveError, StorageError):
            raise
        except _DAMAGE as error:
            raise ArchiveError(f"not a whole archive ({one_line(error)}); pack and send it again") from error
        except OSError as error:
            if error.errno is None:  # how gzip and bz2 speak of damage
                raise ArchiveError(f"not a whole archive ({one_line(error)}); pack and send it again") from error
            raise
    return left_out


def safe_parts(name: str) -> list[str]:
    """The parts of an entry's name, all of them harmless; raises `ArchiveError`."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    problem = None
    if _FORBIDDEN.search(name):
        problem = "has a backslash, a control character, or is not UTF-8"
    elif name.startswith("/") or re.match(r"[A-Za-z]:", name):
        problem = "is absolute"
    elif ".." in parts:
        problem = "leaves the archive's folder"
    elif len(parts) > DEEPEST:
        problem = f"is more than {DEEPEST} folders deep"
    elif len(name.encode()) > LONGEST_PATH or any(len(part.encode()) > LONGEST_NAME for part in parts):
        problem = "is too long"
    if problem:
        raise ArchiveError(f"the name {shorten(ascii(name), 100)} {problem}; pack the folder with relative names")
    return parts


def _keep(entry: Entry, target: Path, seen: dict[str, str], budget: Budget) -> str:
    """Write an entry, if it is an image; returns its name in the target."""
    parts = safe_parts(entry.name)
    name = "/".join(parts)
    if is_junk(name):
        return name
    image = entry.open is not None and is_image(parts[-1] if parts else "")
    for depth in range(1, len(parts) + 1):
        _no_collision("/".join(parts[:depth]), seen)
    path = target.joinpath(*parts)
    try:
        # Also the folders of other files: a class without a single image is to be noticed, not to vanish.
        (path if entry.open is None else path.parent).mkdir(parents=True, exist_ok=True)
        if image and entry.open is not None:
            source = entry.open()
            with path.open("xb") as out:
                while chunk := source.read(_CHUNK):
                    budget.keep(len(chunk), target)
                    out.write(chunk)
    except OSError as error:
        if error.errno in _CLASHES:
            raise ArchiveError(f"{shorten(ascii(entry.name), 100)} is there twice; keep one of them") from error
        raise
    return name


def _no_collision(path: str, seen: dict[str, str]) -> None:
    """Two names that differ only by case, or by how an accent is written, would be one file elsewhere."""
    other = seen.setdefault(unicodedata.normalize("NFC", path).casefold(), path)
    if other != path:
        raise ArchiveError(f"{path!a} and {other!a} differ only by case or accents; rename one of them")


def _entries(file: IO[bytes], budget: Budget) -> Iterator[Entry]:
    magic = file.read(6)
    file.seek(0)
    if magic[:4] in (b"PK\3\4", b"PK\5\6"):
        yield from _zip(file, budget)
    elif magic[:2] == b"\x1f\x8b":
        yield from _tar(gzip.GzipFile(fileobj=file), budget)
    elif magic == b"\xfd7zXZ\0":
        yield from _tar(lzma.LZMAFile(file), budget)  # noqa: SIM115 - it holds no file of its own
    elif magic[:3] == b"BZh":
        yield from _tar(bz2.BZ2File(file), budget)
    elif magic[:4] == b"\x28\xb5\x2f\xfd" and sys.version_info >= (3, 14):
        yield from _tar(import_module("compression.zstd").ZstdFile(file), budget)
    elif _looks_like_tar(file):
        yield from _tar(file, budget)
    else:
        raise ArchiveError(f"expected {KINDS} of class folders, found something else")


def _looks_like_tar(file: IO[bytes]) -> bool:
    try:
        tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        return _is_end(error)  # empty, but a tar
    finally:
        file.seek(0)
    return True


def _zip(file: IO[bytes], budget: Budget) -> Iterator[Entry]:
    # UTF-8 also where the flag is missing: that is what current packers write, and others are told.
    with zipfile.ZipFile(file, metadata_encoding="utf-8") as archive:
        infos = archive.infolist()
        budget.entry(len(infos))
        _refuse_overlaps(infos)
        for info in infos:
            name = shorten(ascii(info.orig_filename), 100)
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ArchiveError(f"{name} is a link or a device; pack plain files only")
            if info.flag_bits & 1:
                raise ArchiveError(f"{name} is encrypted; pack without a password")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ArchiveError(f"{name} is compressed by method {info.compress_type}; store or deflate it")
            # The name as it stands there: zipfile's own is cut off at a NUL.
            yield Entry(info.orig_filename, None if info.is_dir() else partial(_open_zip, archive, info, budget))


def _open_zip(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget) -> Readable:
    return Counted(archive.open(info), budget)


def _refuse_overlaps(infos: list[zipfile.ZipInfo]) -> None:
    """Files that share their bytes are how a small archive unpacks to a large one without nesting."""
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise ArchiveError(f"{shorten(ascii(info.orig_filename), 100)} overlaps another entry; pack it again")
        end = info.header_offset + LOCAL_HEADER + info.compress_size


class _Tar(tarfile.TarFile):
    complete = False
    """Whether the end-of-archive block was reached; tarfile takes a file that just ends for a whole one."""


class _Member(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "_Member":
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            archive.complete = _is_end(error)  # type: ignore[attr-defined]
            raise


def _tar(stream: Readable, budget: Budget) -> Iterator[Entry]:
    counted: Any = Counted(stream, budget)
    with _Tar.open(fileobj=counted, mode="r|", tarinfo=_Member, encoding="utf-8", errors="surrogateescape") as archive:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined] # it would keep them all
            budget.entry()
            if member.isdir():
                yield Entry(member.name, None)
            elif member.isreg() and not member.issparse():
                yield Entry(member.name, partial(_open_tar, archive, member))
            else:
                raise ArchiveError(
                    f"{shorten(ascii(member.name), 100)} is a link, a device or a sparse file; pack plain files only"
                )
    if not archive.complete:
        raise ArchiveError("the archive ends too early; pack and send it again")
    while counted.read(_CHUNK):  # to where a checksum may stand
        pass


def _is_end(error: tarfile.HeaderError) -> bool:
    return type(error).__name__ == "EOFHeaderError"


def _open_tar(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Readable:
    opened = archive.extractfile(member)
    if opened is None:
        raise ArchiveError(f"{shorten(ascii(member.name), 100)} is no plain file")
    return opened
