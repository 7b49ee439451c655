"""Writing files so that they are either whole or not there."""

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tcnn.errors import OutputError, StorageError

_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def check_output(path: Path, force: bool = False) -> None:
    """Raise `OutputError` if `path` cannot be written as asked; call it before any work is done."""
    parent = path.resolve().parent
    if not parent.is_dir():
        raise OutputError(f"{path}: the directory {parent} does not exist; create it first")
    if not os.access(parent, os.W_OK):
        raise OutputError(f"{path}: no permission to write in {parent}; choose another place")
    if (path.exists() or path.is_symlink()) and not force:
        raise OutputError(f"{path}: exists already; give --force to replace it, or choose another name")


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
    """A temporary name beside `path`; when the block ends well it becomes `path`, otherwise nothing remains.

    The name may become a file or a directory. Errors of the disk are raised as `StorageError`.
    """
    check_output(path, force)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with storage_errors(path):
            yield temporary
            if temporary.is_dir():
                _replace_directory(temporary, path)
            else:
                _sync(temporary)
                temporary.replace(path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what a full or failing disk raises, from Python or from safetensors' writer, into one `StorageError`."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None) or _os_error_number(error)
        if number is None:
            raise
        what = "no space left" if number in _SPACE else os.strerror(number).lower()
        raise StorageError(
            f"{path}: {what} while writing; nothing was kept, free some space or choose another disk"
        ) from error


def _os_error_number(error: Exception) -> int | None:
    """safetensors reports the operating system's error only in its text: "… (os error 28)"."""
    _, found, rest = str(error).partition("(os error ")
    digits = rest.partition(")")[0]
    return int(digits) if found and digits.isdigit() else None


def _replace_directory(temporary: Path, path: Path) -> None:
    for file in temporary.iterdir():
        _sync(file)
    if not path.exists():
        temporary.rename(path)
        return
    for file in temporary.iterdir():  # only the files that we write: whatever else lives there stays
        file.replace(path / file.name)


def _sync(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
