"""Exceptions of the queue, under tcnn's own, so that the command line knows the exit code of each, and their wording:
errors and advice are told in the words of whoever reads them, those of a request or those of the command line.

RequestError (2)
├── JobNotFound             no such job, or it is another tenant's
├── UploadNotFound          no such data set or checkpoint, or it is another tenant's
├── KeyNotFound             no such API key
├── QuotaExceeded           a tenant has as many jobs, or GPU hours, as it may
│   └── BytesExceeded       a tenant stores as much as it may
├── OtherDatabase           files of another database, which this one must not sweep
├── WrongState              the job's status does not allow what was asked
└── IdempotencyMismatch     an idempotency key came back with another request
EnvironmentFailure (4)
└── StoreUnavailable        the database is locked, away, full or read-only
TcnnError
└── LostClaim               the job was given to another worker; whatever is written is to be thrown away
"""

import re

from tcnn.errors import EnvironmentFailure, RequestError, TcnnError


class JobNotFound(RequestError):
    """No job of this id belongs to this owner."""


class UploadNotFound(RequestError):
    """No data set or checkpoint of this id belongs to this owner."""


class KeyNotFound(RequestError):
    """No API key of this id."""


class QuotaExceeded(RequestError):
    """A tenant has what it may have; in `retry_after` seconds it may be otherwise."""

    def __init__(self, message: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BytesExceeded(QuotaExceeded):
    """A tenant stores as much as it may: waiting does not help."""


class OtherDatabase(RequestError):
    """A home directory or a bucket has the files of another database."""


class WrongState(RequestError):
    """A job in this status cannot be treated so."""


class IdempotencyMismatch(RequestError):
    """The same idempotency key was used for another request."""


class StoreUnavailable(EnvironmentFailure):
    """The database does not answer; nothing that was accepted is lost, and the call may be made again."""

    in_doubt = False
    """Whether the transaction may have happened all the same, or may do so yet: the answer to its commit is lost."""


class LostClaim(TcnnError):
    """The claim is no longer the job's newest one."""


_ADVICE: tuple[tuple[str, str], ...] = (
    (r"go on with --resume(?: --out \S+)? --set ([\w.]+=[\w.]+)", r"run it again with \1"),
    (r"go on with --resume(?: --out [^\s;]+)?", "resume the job"),
    (
        r"give --weights FILE, or --no-pretrained for random ones",
        "name weights of your own (POST /weights), or set pretrained to false for random ones",
    ),
    (r"\s*\(with --allow-changes\)", ""),
    (r"give the same ones, or --allow-changes", "give the same ones, or begin another job"),
    (r"give --no-convert", "set config.convert to false"),
    (r"use --preset (\w+)", r"use preset \1"),
    (r"--val DATASET", "val"),
    (r"choose another --out|free some space or choose another disk", "make room on the server"),
    (r"choose another place", "the server's operator has to mend that"),
    (r"--set ", ""),
    (r"`tcnn models` lists", "GET /models lists"),
)  # fmt: skip
_ARGUMENT = re.compile(r"(?<![\w-])--(?:no-)?([a-z]+(?:-[a-z]+)*)")
"""Any other option of a command is named as the request's field is."""


_COMMANDS: tuple[tuple[str, str], ...] = (
    (r"GET /models lists", "`tcnn models` lists"),
    (r"GET /jobs lists", "`tcnn jobs list` lists"),
    (r"GET /jobs/(\S+?)/checkpoints lists", r"`tcnn jobs show \1` lists"),
    (r"GET /jobs/(\S+?)/shares lists", r"`tcnn jobs share \1 --list` lists"),
    (r"GET /(?:datasets|checkpoints|weights) lists yours", "`tcnn jobs upload PATH` makes one"),
    (r"POST /(?:datasets|checkpoints|weights)", "`tcnn jobs upload PATH`"),
    (r"POST /jobs/(\S+?)/(resume|cancel)", r"`tcnn jobs \2 \1`"),
    (r"POST /(transform|finetune|evaluate)", r"`tcnn jobs submit \1`"),
    (r"GET /jobs/\{id\}", "`tcnn jobs show JOB`"),
)


def for_commands(text: str) -> str:
    """A server's advice as commands: `GET /jobs lists yours` becomes `tcnn jobs list` lists yours."""
    for pattern, words in _COMMANDS:
        text = re.sub(pattern, words, text)
    return text


def for_requests(text: str) -> str:
    """The text without options of commands: `--batch-size 8` becomes `batch_size 8`."""
    for pattern, words in _ADVICE:
        text = re.sub(pattern, words, text)
    return _ARGUMENT.sub(lambda found: found[1].replace("-", "_"), text)
