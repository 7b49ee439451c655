"""Paths that are given, files and directories written atomically: complete, or not at all; the digest of a file."""

import ctypes
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tcnn.errors import OutputError, RequestError, storage_errors
from tcnn.signals import heed
from tcnn.starting import last_deeds

SLICE = 2**22
"""Bytes that are flushed to the disk at a time."""

_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_WAIT_WRITE_WAIT = 7
_UMASK = os.umask(0)  # when this is imported no other thread makes files yet
os.umask(_UMASK)
_temporary: set[Path] = set()
"""Temporary files and directories that there may be now."""


def path_of(given: object, what: str) -> Path:
    """What was given from Python as a path; raises `RequestError` for what is none, such as None or a model."""
    if not isinstance(given, str | os.PathLike):
        hint = "; take its .out, or .best" if isinstance(getattr(given, "best", None), str) else ""  # of a training
        raise RequestError(
            f"{what}: expected a path (str or pathlib.Path), found a value of type {type(given).__name__}{hint}"
        )
    if "\0" in str(given):
        raise RequestError(f"{what}: expected a path, found {str(given)!a}, whose NUL no file system has in a name")
    return Path(given)


def _mode(path: Path) -> int:
    """What stands at a path, or 0; unlike `Path.exists` since Python 3.14, whoever may not look there hears of it."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def check_output(path: Path, force: bool = False) -> None:
    """Raise `OutputError` if `path` cannot be written as asked; call it before any work is done."""
    place = _absolute(path)
    if not place.name:
        raise OutputError(f"{path}: cannot be an output; name a file or a directory to be made")
    try:
        if not stat.S_ISDIR(_mode(place.parent)):
            raise OutputError(f"{path}: the directory {place.parent} does not exist; create it first")
        writable = os.access(place.parent, os.W_OK | os.X_OK)
        mode = _mode(place)
        taken = mode or place.is_symlink()
        special = mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    except OSError as error:
        raise OutputError(f"{path}: no permission to look into {place.parent}; choose another place") from error
    if not writable:
        raise OutputError(f"{path}: no permission to write in {place.parent}; choose another place")
    if special:  # a file renamed to its name would take the place of /dev/null itself
        raise OutputError(f"{path}: is a device, pipe or socket, which a file would replace; name a file")
    if taken and not force:
        raise OutputError(f"{path}: exists already; replace it with --force, or choose another name")


def check_folder(path: Path, force: bool = False) -> None:
    """`check_output` for a folder: raises `OutputError` for a file there, too, even where a folder may be replaced."""
    check_output(path, force)
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path}: expected a folder or nothing, found a file; choose another name")


def check_file(path: Path, force: bool = False) -> None:
    """`check_output` for a file: raises `OutputError` for a directory there, which a file does not replace."""
    check_output(path, force=True)
    if path.is_dir() and not path.is_symlink():  # a link to one is replaced
        raise OutputError(f"{path}: expected a file or nothing, found a directory; choose another name")
    check_output(path, force)


def check_files(paths: Sequence[Path], force: bool = False) -> None:
    """`check_file` for all the files that one command writes; raises `OutputError` also where two are the same."""
    places: set[Path] = set()
    for path in paths:
        check_file(path, force)
        place = _absolute(path).parent.resolve() / path.name  # of the file itself a link is replaced
        if place in places:
            raise OutputError(f"{path}: is named for two outputs, of which one would replace the other; name two files")
        places.add(place)


def _absolute(path: Path) -> Path:
    """Absolute path, with its symbolic links: a link is replaced, not followed."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow links


@contextmanager
def directory_for(path: Path) -> Iterator[None]:
    """Context for what is written into a directory, which is made; if it fails, those that were made go if empty."""
    made = [place for place in (path, *path.parents) if not os.path.lexists(place)]
    make_directory(path)
    try:
        yield
        heed()
    except BaseException:
        for place in made:
            with suppress(OSError):
                place.rmdir()
        raise


def make_directory(path: Path) -> None:
    """Create a directory and its parents, or raise `OutputError` with one line."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be used as a directory ({(error.strerror or str(error)).lower()})"
        ) from error


@contextmanager
def replacing(path: Path, force: bool = False) -> Iterator[Path]:
    """Context with a temporary name beside `path`, which is renamed to `path` at the end, or removed after an error.

    The name may become a file or a directory. Errors of the disk are raised as `StorageError`. What others have put at
    `path` meanwhile is replaced by force only: otherwise `OutputError` is raised, as at the beginning.
    """
    check_output(path, force)
    given, path = path, _absolute(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    with temporary_at(temporary), storage_errors(given):
        yield temporary
        heed()
        if force and not temporary.is_dir():
            check_file(given, force)
        _finish(temporary)
        if force:
            _replace(temporary, path)
        else:
            _take_name(temporary, path, given)
        folder_to_disk(path.parent)


def write_atomically(path: Path, content: str | bytes, force: bool = False) -> None:
    """Write a file, text as UTF-8: complete, or not at all. Raises as `replacing`."""
    with replacing(path, force) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def temporary_at(path: Path) -> Iterator[Path]:
    """Context in which a file or directory may be made at `path`; it is removed at the end, however that comes."""
    _temporary.add(path)
    try:
        yield path
    finally:
        _remove(path)
        _temporary.discard(path)


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Context with a directory among the system's temporary ones, removed at the end, however that comes."""
    with temporary_at(Path(tempfile.mkdtemp(prefix="tcnn-"))) as place:
        yield place


@contextmanager
def removed_if_ended(path: Path) -> Iterator[None]:
    """Context in which `path` is removed if the process is ended at once; otherwise the caller does as it likes."""
    _temporary.add(path)
    try:
        yield
    finally:
        _temporary.discard(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_temporary() -> None:
    for path in tuple(_temporary):
        _remove(path)


last_deeds.append(_remove_temporary)  # of a process that is ended in the middle of them


def _replace(temporary: Path, path: Path) -> None:
    """Put what is finished in the place of whatever is at `path`, or of the files of its names in a directory there."""
    if not temporary.is_dir():
        temporary.replace(path)
    elif not path.exists():
        temporary.rename(path)
    else:
        for file in temporary.iterdir():  # only the files that we write: whatever else lives there stays
            file.replace(path / file.name)
        folder_to_disk(path)


def _take_name(temporary: Path, path: Path, given: Path) -> None:
    """Give what is finished a name that nothing has; raises `OutputError` if something has it by now.

    A rename alone would put a file in the place of another, and a directory in that of an empty one.
    """
    directory = temporary.is_dir()
    try:
        if not directory:
            os.link(temporary, path)
            return
        path.mkdir()
    except OSError:
        check_output(given)  # else it is a file system without links, as on a USB stick
    try:
        temporary.rename(path)
    except BaseException:
        if directory:
            with suppress(OSError):
                path.rmdir()
        raise


def _finish(place: Path) -> None:
    """Flush to the disk, and make files readable as new ones are: safetensors' writer lets only the owner read."""
    directory = place.is_dir()
    for file in place.iterdir() if directory else [place]:
        file.chmod(0o666 & ~_umask())
        to_disk(file)
    if directory:
        folder_to_disk(place)


def _umask() -> int:
    """The umask of this process, read from /proc: the system call would set it for all threads."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except OSError:
        pass
    return _UMASK


def folder_to_disk(folder: Path) -> None:
    """Flush a folder to the disk (fsync), so that the names in it survive a power cut."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def to_disk(file: Path) -> None:
    """Flush a file to the disk (fsync), so that it survives a power cut.

    Slice by slice where Linux can: whoever else waits for the disk, such as a queue that has to commit before it may
    answer, would otherwise wait for all of a checkpoint. In one go it held others up for 80 ms, in slices for 15.
    """
    with file.open("rb") as handle:
        if _sync_file_range is not None:
            for start in range(0, os.fstat(handle.fileno()).st_size, SLICE):
                _sync_file_range(handle.fileno(), start, SLICE, _WAIT_WRITE_WAIT)  # should it fail, fsync says so
        os.fsync(handle.fileno())


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def link(source: str | Path, target: str | Path) -> None:
    """Link a file that is never changed in place, unless there is one; where that cannot be done, copy it."""
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
