"""The OpenAPI document: what FastAPI generates from the routes, and every error response of each, with an example."""

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.config.evaluation import EvaluationConfig
from tcnn_api.errors import AWAY, MEDIA_TYPE, Problem

PROBLEMS: dict[int, tuple[str, str, str]] = {
    400: ("The body is not JSON.", "malformed-body", "expected JSON, found an error at character 0: Expecting value"),
    401: (
        "Missing or invalid API key.",
        "unauthorized",
        "expected `Authorization: Bearer KEY` with a key of this server, found none",
    ),
    403: (
        "The key lacks the scope; the storage quota is used up; or a server without API keys was reached by a name "
        "other than localhost.",
        "missing-scope",
        "expected a key with the scope submit, found one with read; use another key",
    ),
    404: (
        "No resource of yours has this id.",
        "job-not-found",
        "job_0123456789abcdef01234567: no such job; GET /jobs lists yours",
    ),
    408: (
        "The body did not arrive, or too slowly.",
        "too-slow",
        "body: expected some of it within 30 s, found nothing; send it again",
    ),
    409: (
        "The state of the job or upload does not allow it.",
        "wrong-state",
        "job_0123456789abcdef01234567: is running; cancel it before deleting it",
    ),
    413: (
        "The body is too large.",
        "too-large",
        "body: expected at most 1,048,576 bytes; send less, or raise TCNN_MAX_BODY_MB on the server",
    ),
    415: (
        "Unsupported media type of the body.",
        "unsupported-media",
        "expected Content-Type: application/json, found text/plain",
    ),
    416: (
        "The range starts after the end of the file.",
        "range-not-satisfiable",
        "expected a range within the file's 1000 bytes; GET it without Range",
    ),
    422: (
        "The request is well-formed but cannot be carried out; `errors` names the fields.",
        "refused",
        "resnet51: no timm model of this name; did you mean resnet50, resnet101, resnet152?",
    ),
    429: (
        "The quota of queued jobs or GPU hours is used up; or too many concurrent event streams or slow requests of "
        "one tenant, or too many wrong keys from one address.",
        "too-many-streams",
        "64 event streams are open, as many as TCNN_MAX_STREAMS allows; close one, or poll",
    ),
    503: (
        "The database is locked, unreachable or full; try again after `Retry-After` seconds.",
        "store-unavailable",
        AWAY,
    ),
    507: (
        "No space is left for the upload, beside what is to stay free (`TCNN_MIN_FREE_GB`).",
        "storage",
        "the upload: no space left while writing; nothing was kept, make room on the server",
    ),
}
"""Status → what it means, its kind, an example's detail."""


OPERATIONS: dict[str, str] = {
    "GET /models": "list_models",
    "POST /datasets": "upload_dataset",
    "GET /datasets": "list_datasets",
    "GET /datasets/{id}": "get_dataset",
    "DELETE /datasets/{id}": "delete_dataset",
    "GET /datasets/{id}/contents": "get_dataset_contents",
    "GET /datasets/{id}/images": "list_dataset_images",
    "POST /checkpoints": "upload_checkpoint",
    "GET /checkpoints": "list_checkpoints",
    "GET /checkpoints/{id}": "get_checkpoint",
    "DELETE /checkpoints/{id}": "delete_checkpoint",
    "GET /checkpoints/{id}/info": "get_checkpoint_info",
    "POST /weights": "upload_weights",
    "GET /weights": "list_weights",
    "GET /weights/{id}": "get_weights",
    "DELETE /weights/{id}": "delete_weights",
    "POST /transform": "submit_transform",
    "POST /finetune": "submit_finetune",
    "POST /evaluate": "submit_evaluate",
    "POST /plan": "plan",
    "GET /jobs": "list_jobs",
    "GET /jobs/{id}": "get_job",
    "PATCH /jobs/{id}": "label_job",
    "DELETE /jobs/{id}": "delete_job",
    "POST /jobs/{id}/cancel": "cancel_job",
    "POST /jobs/{id}/resume": "resume_job",
    "GET /jobs/{id}/events": "list_job_events",
    "POST /jobs/{id}/shares": "create_job_share",
    "GET /jobs/{id}/shares": "list_job_shares",
    "DELETE /jobs/{id}/shares/{share}": "revoke_job_share",
    "GET /jobs/{id}/checkpoint": "download_job_checkpoint",
    "GET /jobs/{id}/checkpoints": "list_job_checkpoints",
    "GET /jobs/{id}/files/{name}": "download_job_file",
    "GET /jobs/{id}/metrics.csv": "download_job_metrics",
    "GET /jobs/{id}/logs": "get_job_log",
    "GET /jobs/{id}/archive": "download_job_archive",
    "GET /jobs/{id}/report": "get_job_report",
    "POST /jobs/{id}/predict": "predict",
    "POST /jobs/{id}/attention/images": "create_attention_image",
    "GET /jobs/{id}/attention/{image}": "get_attention",
    "GET /audit": "list_audit",
    "GET /workers": "list_workers",
    "GET /system": "get_system",
    "GET /healthz": "get_health",
    "GET /me": "get_me",
    "GET /readyz": "get_readiness",
    "GET /metrics": "get_metrics",
}
"""Names of the operations. Generated clients have a function of each name, so none may change within a release line."""


def install(app: FastAPI) -> None:
    """Make the app answer `/openapi.json` with our document, which is made once."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
    schemas = found["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    _, own = models_json_schema(
        [(Problem, "serialization"), (FinetuneConfig, "validation"), (EvaluationConfig, "validation")],
        ref_template="#/components/schemas/{model}",
    )
    schemas.update(own["$defs"])
    for name, config in (
        ("Training", "FinetuneConfig"),
        ("FinetuneRequest", "FinetuneConfig"),
        ("EvaluateRequest", "EvaluationConfig"),
    ):
        # Kept as they were given, so that a preset's values stay under them: a dictionary in Python.
        described = schemas[name]["properties"]["config"]
        schemas[name]["properties"]["config"] = {
            "$ref": f"#/components/schemas/{config}",
            "description": described["description"],
        }
    for name in ("FinetuneConfig", "ConversionConfig"):
        _leave_open(schemas[name]["properties"])
    request = schemas["TransformRequest"]["properties"]
    _leave_open({name: request[name] for name in ConversionConfig.model_fields})
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            operation["operationId"] = OPERATIONS[f"{method.upper()} {path}"]
            for status in _statuses(path, method, operation):
                operation["responses"][str(status)] = problem(status)
            operation["responses"] = dict(sorted(operation["responses"].items()))
    return found


def _leave_open(properties: dict[str, Any]) -> None:
    """Tell defaults in the descriptions alone: clients that fill in a schema's defaults would overrule every preset."""
    for described in properties.values():
        default = described.pop("default", None)
        if default is not None and not isinstance(default, dict):
            told = f"{default:.4g}" if isinstance(default, float) else default
            told = told if isinstance(told, str) else json.dumps(told)
            described["description"] += f" Default: `{told}`, unless the preset sets another."


def _statuses(path: str, method: str, operation: dict[str, Any]) -> list[int]:
    """Errors that follow from what an operation takes."""
    parameters = operation.get("parameters", [])
    body = operation.get("requestBody", {}).get("content", {})
    statuses = [403, 413]
    if "security" in operation:
        statuses += [401, 422, 429, 503]  # 422: `parameters` it has not
    if "{id}" in path or any(parameter["name"] == "after" for parameter in parameters):
        statuses.append(404)
    if body:
        statuses.append(408)
    if "application/json" in body:
        statuses += [400, 415]
    if "multipart/form-data" in body:
        statuses += [415, 507]
    return [status for status in statuses if str(status) not in operation["responses"] or status == 422]


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
