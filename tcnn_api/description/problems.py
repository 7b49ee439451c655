"""Error responses in the OpenAPI document: what each status means, with an example."""

from typing import Any

from tcnn_api.errors import AWAY, MEDIA_TYPE

PROBLEMS: dict[int, tuple[str, str, str]] = {
    400: ("The body is not JSON.", "malformed-body", "expected JSON, found an error at character 0: Expecting value"),
    401: (
        "No API key, or a wrong one.",
        "unauthorized",
        "expected `Authorization: Bearer KEY` with a key of this server, found none",
    ),
    403: (
        "The key is not for this; a quota of bytes is used up; or a server without API keys, reached by another name "
        "than localhost.",
        "missing-scope",
        "expected a key with the scope submit, found one with read; use another key",
    ),
    404: (
        "Nothing of this id is yours.",
        "job-not-found",
        "job_0123456789abcdef01234567: no such job; GET /jobs lists yours",
    ),
    408: (
        "The body does not come, or too slowly.",
        "too-slow",
        "body: expected some of it within 30 s, found nothing; send it again",
    ),
    409: (
        "The job's status does not allow it.",
        "wrong-state",
        "job_0123456789abcdef01234567: is running; cancel it before deleting it",
    ),
    413: (
        "The body is too large.",
        "too-large",
        "body: expected at most 1,048,576 bytes; send less, or raise TCNN_MAX_BODY_MB on the server",
    ),
    415: (
        "The body is of another media type.",
        "unsupported-media",
        "expected Content-Type: application/json, found text/plain",
    ),
    416: (
        "The range begins behind the file's end.",
        "range-not-satisfiable",
        "expected a range within the file's 1000 bytes; GET it without Range",
    ),
    422: (
        "The request is understood and cannot be done; `errors` names the fields.",
        "refused",
        "resnet51: no timm model of this name; did you mean resnet50, resnet101, resnet152?",
    ),
    429: (
        "A quota of queued jobs or GPU hours is used up; too many event streams or slow requests of one tenant at "
        "once, or wrong keys from one address.",
        "too-many-streams",
        "64 event streams are open, as many as TCNN_MAX_STREAMS allows; close one, or poll",
    ),
    503: (
        "The database is locked, away or full; try again after `Retry-After` seconds.",
        "store-unavailable",
        AWAY,
    ),
    507: (
        "No space is left for the upload.",
        "storage",
        "the upload: no space left while writing; nothing was kept, free some space or choose another disk",
    ),
}
"""Status → what it means, its kind, an example's detail."""


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What `responses=` of a route takes."""
    return {status: problem(status) for status in statuses}


def problem(status: int) -> dict[str, Any]:
    description, kind, detail = PROBLEMS[status]
    example = {
        "type": f"urn:tcnn:problem:{kind}",
        "title": kind.replace("-", " ").capitalize(),
        "status": status,
        "detail": detail,
        "instance": "/jobs",
        "errors": [{"field": "model", "message": detail}] if status == 422 else [],
    }
    found: dict[str, Any] = {
        "description": description,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}},
    }
    if status in (429, 503):
        found["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    if status == 401:
        found["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return found
