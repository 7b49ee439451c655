"""Error responses as RFC 9457 `application/problem+json`: what was expected, what was found, what to do.

`type` ends in the error's class in kebab case (`urn:tcnn:problem:job-not-found`); `errors` names fields, where there
are any. Whatever was not foreseen is a 500 without detail, and its traceback is in the log under the request's id.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tcnn.characters import named
from tcnn.config.base import length, no_such_key, words
from tcnn.errors import EnvironmentFailure, RequestError, StorageError, TcnnError
from tcnn_jobs.artifacts.bucket import BucketError
from tcnn_jobs.confined.explorers import ImageGone
from tcnn_jobs.errors import (
    BytesExceeded,
    IdempotencyMismatch,
    JobNotFound,
    KeyNotFound,
    QuotaExceeded,
    StoreUnavailable,
    UploadNotFound,
    WrongState,
    for_requests,
)
from tcnn_jobs.model.columns import WrongPlace
from tcnn_jobs.model.requests import KINDS

log = structlog.get_logger("tcnn.api")

MEDIA_TYPE = "application/problem+json"
AWAY = "the database is locked, away, full or read-only; nothing that was accepted is lost, so try again"
"""All that a tenant is told about a database; where it lies is in the log."""
MOST_ERRORS = 20
"""Errors of one request that are told. A body of a megabyte may have a hundred thousand, and each takes its time."""
LONGEST_FIELD = 200
"""Characters of a field's name in an error: a client may have made it up."""
RETRY_AFTER = 5
"""Seconds after which a request that met an absent database may be made again."""


class FieldError(BaseModel):
    """What is wrong with one field of a request."""

    field: str = Field(description="Dotted name, or `body`, `query` … for the whole of it.")
    message: str = Field(description="What was expected, what was found, what to do.")


class Problem(BaseModel):
    """An error, as defined in RFC 9457."""

    type: str
    title: str
    status: int
    detail: str | None = None
    instance: str
    errors: list[FieldError] = Field(
        default=[], description=f"The first {MOST_ERRORS}; `detail` says how many there are if there are more."
    )


class Refused(RequestError):
    """A request that is well formed and cannot be done; `field` is what to change."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class TooLarge(RequestError, HTTPException):
    """A body over the limit. FastAPI lets HTTPException through wherever it reads a body, and wraps every other."""

    def __init__(self, message: str) -> None:
        HTTPException.__init__(self, 413, message)

    def __str__(self) -> str:
        return self.detail


class TooSlow(RequestError, HTTPException):
    """A body that does not come. An HTTPException for the same reason."""

    def __init__(self, message: str) -> None:
        HTTPException.__init__(self, 408, message)

    def __str__(self) -> str:
        return self.detail


class Unauthorized(RequestError):
    """No key, or a wrong one."""


class Forbidden(RequestError):
    """A server without keys, reached by another name than this machine's own."""


class MissingScope(RequestError):
    """A key that is not for this."""


class NotOwn(RequestError):
    """Another tenant's, which the key may see and not change; whoever may not see it is told that there is none."""


class UnsupportedMedia(RequestError):
    """A body of another media type."""


class NotFound(RequestError):
    """Nothing of this name."""


class TooManyStreams(RequestError):
    """A tenant has as many event streams as it may have."""


class TooManyKeys(RequestError):
    """Too many wrong keys from one address."""


class TooManyAtOnce(RequestError):
    """A tenant keeps as much busy as it may."""


STATUS: tuple[tuple[type[TcnnError], int, str | None], ...] = (
    (JobNotFound, 404, "id"),
    (UploadNotFound, 404, "id"),
    (KeyNotFound, 404, "share"),
    (NotFound, 404, None),
    (ImageGone, 404, "image"),
    (WrongState, 409, "status"),
    (WrongPlace, 422, "after"),
    (TooLarge, 413, "body"),
    (TooSlow, 408, "body"),
    (UnsupportedMedia, 415, "Content-Type"),
    (Unauthorized, 401, "Authorization"),
    (Forbidden, 403, "Host"),
    (MissingScope, 403, "Authorization"),
    (NotOwn, 403, "id"),
    (TooManyStreams, 429, None),
    (TooManyKeys, 429, None),
    (TooManyAtOnce, 429, None),
    (BytesExceeded, 403, None),
    (QuotaExceeded, 429, None),
    (IdempotencyMismatch, 422, "Idempotency-Key"),
    (RequestError, 422, None),
    (StoreUnavailable, 503, None),
    (BucketError, 503, None),
    (StorageError, 507, None),
    (EnvironmentFailure, 503, None),
)
"""The status of an error, and the field that it is about; the first class that the error belongs to decides."""


def problem(
    path: str,
    status: int,
    detail: str | None = None,
    errors: Sequence[FieldError] = (),
    kind: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The response. ASCII only, since what is quoted from a request need not be encodable."""
    body = {
        "type": f"urn:tcnn:problem:{kebab(kind)}" if kind else "about:blank",
        "title": title(kind) if kind else HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": path,
        "errors": [error.model_dump() for error in errors],
    }
    return Response(json.dumps(body), status, dict(headers or {}), MEDIA_TYPE)


def respond(path: str, error: TcnnError) -> Response:
    """The response to one of our own errors."""
    status, field = next(((status, field) for kind, status, field in STATUS if isinstance(error, kind)), (500, None))
    message = AWAY if isinstance(error, StoreUnavailable) else str(error)
    message = for_requests(message) if isinstance(error, StorageError) else message
    field = error.field if isinstance(error, Refused) else field
    errors = [] if field is None else [FieldError(field=field, message=message.removeprefix(f"{field}: "))]
    detail = f"{field}: {message}" if isinstance(error, Refused) else message
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="tcnn"'
    if status in (429, 503):
        headers["Retry-After"] = str(math.ceil(getattr(error, "retry_after", None) or RETRY_AFTER))
    if status in (408, 413, 507) or isinstance(error, BytesExceeded):
        headers["Connection"] = "close"  # what is still being sent will not be read
    if status == 500:
        return problem(path, 500)
    return problem(path, status, detail, errors, type(error).__name__.removesuffix("Error"), headers)


def install(app: FastAPI) -> None:
    """Make the app answer every exception so."""
    app.add_exception_handler(TcnnError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, TcnnError)  # noqa: S101
    if not isinstance(error, RequestError):
        log.warning("failed", error=str(error), code=type(error).__name__)
    return respond(request.url.path, error)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    if error.status_code == 400:  # FastAPI's word for a body that makes the reader fail
        return _malformed(request.url.path, "expected JSON in UTF-8, found what cannot be read as such")
    details = {
        404: "no such page; GET /openapi.json lists what there is",
        405: f"{request.method} is not allowed here; the Allow header lists what is",
    }
    detail = details.get(error.status_code, str(error.detail))
    return problem(request.url.path, error.status_code, detail, headers=error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    found = error.errors()
    path = request.url.path
    if any(item["type"] == "json_invalid" for item in found):
        reason = found[0].get("ctx", {}).get("error", "not JSON")
        place = found[0]["loc"][-1]
        return _malformed(path, f"expected JSON, found an error at character {place}: {reason}")
    if any(tuple(item["loc"]) == ("body",) for item in found) and not _is_json(request):
        given = request.headers.get("content-type", "none")
        return respond(path, UnsupportedMedia(f"expected Content-Type: application/json, found {given}"))
    errors = [field_error(item, path) for item in found[:MOST_ERRORS]]
    detail = "; ".join(f"{named(item.field)}: {item.message}" for item in errors[:3])
    if len(found) > MOST_ERRORS:
        detail += f"; found {len(found)} errors, of which the first {MOST_ERRORS} are in `errors`"
    return problem(path, 422, detail, errors, "InvalidRequest")


def _malformed(path: str, detail: str) -> Response:
    return problem(path, 400, detail, [FieldError(field="body", message=detail)], "MalformedBody")


def _is_json(request: Request) -> bool:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media == "application/json" or (media.startswith("application/") and media.endswith("+json"))


def field_error(item: Mapping[str, Any], path: str) -> FieldError:
    """One of pydantic's errors, by the name that a person wrote."""
    where, *rest = item["loc"]
    field = ".".join(map(str, rest)) or str(where)
    field = field if len(field) <= LONGEST_FIELD else f"{field[:LONGEST_FIELD]} …"
    message = words(item)
    kind = KINDS.get(path.strip("/"))
    if item["type"] == "extra_forbidden":
        try:
            message = no_such_key(kind, tuple(rest)) if kind else "no such setting; leave it out"
        except (KeyError, TypeError):
            message = "no such setting; leave it out"
    elif item["type"] == "missing":
        message = "required, found nothing"
    elif counted := length(item):
        message = counted
    elif item["type"] != "value_error":
        message = f"{message[:1].lower()}{message[1:]}, found {quoted(item.get('input'))}"
    return FieldError(field=field, message=message)


def quoted(value: object, width: int = 100) -> str:
    """A value of a request as part of a message."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else ascii(value)  # as it was written
    return text if len(text) <= width else f"{text[: width - 2]} …"


def kebab(name: str) -> str:
    """`JobNotFound` → `job-not-found`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def title(name: str) -> str:
    """`JobNotFound` → `Job not found`."""
    return kebab(name).replace("-", " ").capitalize()
