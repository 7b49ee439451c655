"""The exceptions of tcnn and their exit codes.

::

    TcnnError
    ├── RequestError (2)               what was asked for cannot be done
    │   ├── ConfigError                a configuration built in Python with a wrong setting
    │   ├── UnknownModelError          no such model; names close ones
    │   ├── NothingToConvertError      no convolution left to convert; says what was looked at
    │   ├── NoAttentionError           a model without attention to look at
    │   ├── UnsupportedLayerError      a convolution that cannot be reproduced, with the reason
    │   ├── EmptyMapError              a map that is smaller than the kernel
    │   ├── WeightsError               weights that do not fit the model
    │   ├── CheckpointError            a file that is truncated, altered, or not ours
    │   └── OutputError                an output that exists or whose directory is missing
    ├── VerificationError (3)          the converted model is not the same function
    ├── DivergedError (5)              the training loss is no longer finite
    ├── Stopped (75)                   asked to stop; what was done is saved
    └── EnvironmentFailure (4)         the request is fine, the surroundings are not
        ├── DownloadError              no network, no such file on the hub
        ├── OutOfMemoryError           too little memory for a function of `tcnn`
        └── StorageError               no space, no permission

A message is one line: what was expected, what was found, what to do.
"""

import errno
import os
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class TcnnError(Exception):
    """Base class of tcnn's errors. `exit_code` is what the command line returns. Quoted text may have many lines."""

    exit_code = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*(" ".join(one.split()) if isinstance(one, str) and "\n" in one else one for one in args))


class RequestError(TcnnError):
    """The request itself is wrong."""

    exit_code = 2


class ConfigError(RequestError, ValueError):
    """A configuration that is built in Python has a wrong setting; a ValueError as well, as pydantic's error is."""


class UnknownModelError(RequestError):
    """The model name is unknown."""


class NothingToConvertError(RequestError):
    """No convolution matched, or none that matched can be converted."""


class NoAttentionError(RequestError):
    """The model has no attention that can be looked at."""


class UnsupportedLayerError(RequestError):
    """One convolution cannot be reproduced exactly, so it is refused."""


class EmptyMapError(RequestError, RuntimeError):
    """The feature map is smaller than the kernel; a RuntimeError as well, as a convolution's is."""


class WeightsError(RequestError):
    """Weights are missing, unreadable, or do not fit the model."""


class CheckpointError(RequestError):
    """A checkpoint is truncated, altered, or was not written by tcnn."""


class OutputError(RequestError):
    """The output exists, or its directory is missing."""


class VerificationError(TcnnError):
    """Source and converted model differ by more than the tolerance."""

    exit_code = 3


class DivergedError(TcnnError):
    """The loss became infinite or not a number."""

    exit_code = 5


class Stopped(TcnnError):
    """A run was stopped by a signal, after writing a resume point."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again later; 130 after Ctrl-C


class EnvironmentFailure(TcnnError):
    """Network, disk or device failed."""

    exit_code = 4


class DownloadError(EnvironmentFailure):
    """Pretrained weights could not be downloaded."""


class OutOfMemoryError(EnvironmentFailure, RuntimeError):
    """There is no memory left for what a function of `tcnn` does; a RuntimeError as well, as PyTorch's is."""


class StorageError(EnvironmentFailure):
    """The disk is full or refuses the write."""


PROCESS_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors of this process, not of a file or a disk: to skip an image because of them would lose it in silence."""
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""What PyTorch's allocators say, whose errors on a CPU are plain RuntimeErrors."""
NO_CODE = ("could not create a primitive", "could not create a memory object")
"""All that oneDNN says where there is no memory for the code that it compiles; what it cannot do it tells at length."""
NO_ROOM = ("failed to map segment", "cannot allocate memory")
"""What the loader says of a library that does not fit."""


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Context that raises errors of a full or failing disk as `StorageError`, safetensors' included, and those of a
    process that has no more memory or files as `EnvironmentFailure`."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None) or _os_error_number(error)
        if number is None:
            raise
        if number in PROCESS_ERRORS:
            what = f"{path}: {os.strerror(number).lower()} while writing; nothing was kept"
            raise EnvironmentFailure(f"{what}, end other work or raise its limits (ulimit) and try again") from error
        what = "no space left" if number in NO_SPACE else os.strerror(number).lower()
        advice = "free some space or choose another disk" if number in NO_SPACE else "choose another place"
        raise StorageError(f"{path}: {what} while writing; nothing was kept, {advice}") from error


STORE_EXTRAS = {"s3": "tcnn[s3]", "http": "fsspec[http]", "https": "fsspec[http]", "hf": "huggingface_hub"}
"""What has the library of a store, by the scheme of its URLs; of others fsspec's own error names the library."""


def no_library(scheme: str, error: ImportError) -> str:
    """What is said where the library that reads URLs of a scheme is not installed, and what to install."""
    extra = STORE_EXTRAS.get(scheme)
    advice = one_line(error) if extra is None else f"pip install '{extra}'"
    return f"{scheme}:// needs a library that is missing: {advice}"


def _os_error_number(error: Exception) -> int | None:
    """Error number in safetensors' message, which has it in its text only: "… (os error 28)"."""
    _, found, rest = str(error).partition("(os error ")
    digits = rest.partition(")")[0]
    return int(digits) if found and digits.isdigit() else None


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, ImportError):
        return bool(_no_room(error))
    said = str(error) if isinstance(error, RuntimeError) else ""
    return said in NO_CODE or any(words in said for words in NO_MEMORY)


def no_memory(error: BaseException) -> str:
    """What to say of an error for which `out_of_memory` holds."""
    try:
        if isinstance(error, ImportError):
            told = shorten(_no_room(error).removeprefix("Original error was: "), 160)  # of NumPy's page
            return f"out of memory while loading libraries ({told}); end other programs, or raise the limit (ulimit -v)"
        return f"out of memory ({shorten(one_line(error), 160)}); choose smaller images, or fewer at a time"
    except MemoryError:  # nor is there any for the words
        return "out of memory; choose smaller images, or fewer at a time"


def _no_room(error: ImportError) -> str:
    """The line that says that a library does not fit: NumPy wraps it in a page of advice. Nothing if none does."""
    return next((line for line in str(error).splitlines() if any(words in line.lower() for words in NO_ROOM)), "")


def one_line(error: BaseException) -> str:
    """Text of a foreign error on one line; its class name if it has no text."""
    return shorten(str(error)) or type(error).__name__


def readable(name: str) -> str:
    r"""A file's name as text that can be written anywhere; bytes that are no UTF-8 are told as `\xff`.

    Python keeps such bytes as lone surrogates, and where the locale is not UTF-8 (`LC_ALL=C`) all that are no ASCII.
    """
    try:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeError:
        return name.encode("utf-8", "backslashreplace").decode()


def shorten(text: str, width: int = 300) -> str:
    """Text on one line, shortened between words."""
    return textwrap.shorten(text, width, placeholder=" …")
