"""Exceptions of the queue, under tcnn's own, so that the command line knows the exit code of each.

RequestError (2)
├── JobNotFound             no such job, or it is another tenant's
├── UploadNotFound          no such data set or checkpoint, or it is another tenant's
├── KeyNotFound             no such API key
├── QuotaExceeded           a tenant has as many jobs, or GPU hours, as it may
│   └── BytesExceeded       a tenant stores as much as it may
├── WrongState              the job's status does not allow what was asked
└── IdempotencyMismatch     an idempotency key came back with another request
EnvironmentFailure (4)
└── StoreUnavailable        the database is locked, away or full
TcnnError
└── LostClaim               the job was given to another worker; whatever is written is to be thrown away
"""

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


class WrongState(RequestError):
    """A job in this status cannot be treated so."""


class IdempotencyMismatch(RequestError):
    """The same idempotency key was used for another request."""


class StoreUnavailable(EnvironmentFailure):
    """The database does not answer; nothing that was accepted is lost, and the call may be made again."""


class LostClaim(TcnnError):
    """The claim is no longer the job's newest one."""
