"""The OpenAPI document: what FastAPI generates from the routes, and every error response of each."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from tcnn.config import FinetuneConfig
from tcnn.evaluation.comparing.config import EvaluationConfig
from tcnn_api.description.problems import problem
from tcnn_api.errors import Problem


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
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            for status in _statuses(path, method, operation):
                operation["responses"][str(status)] = problem(status)
            operation["responses"] = dict(sorted(operation["responses"].items()))
    return found


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
