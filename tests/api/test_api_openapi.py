"""The OpenAPI document: what is published is true, every example works, and nothing undocumented is answered."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from sampled import sampled
from serving import ask_here

from tcnn_api import schemas
from tcnn_api.app import create_app
from tcnn_api.description import examples
from tcnn_api.routes.plan import PlanView
from tcnn_api.routes.uploads import checkpoints, datasets, gallery, weights
from tcnn_api.settings import load
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.model.requests import KINDS, PlanRequest

ROOT = Path(__file__).parents[2]
DOCUMENT = json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))
"""The published one: to read it is quicker than to make it, and the first test says that it is the same."""
OPERATIONS = [(path, method, one) for path, methods in DOCUMENT["paths"].items() for method, one in methods.items()]
NAMES = [f"{method.upper()} {path}" for path, method, _ in OPERATIONS]
KEY = {"Authorization": "Bearer key-of-alice"}
EXAMPLES = 2
"""Requests of each kind to each operation."""
DEAR = (
    "/jobs/{id}/predict", "/jobs/{id}/attention/images", "/plan", "/weights", "/checkpoints", "/datasets", "/models",
)  # fmt: skip
"""What starts a process for every request, and what answers with a thousand models: one request."""
CHECKS = (
    "not_a_server_error",
    *(f"{what}_conformance" for what in ("status_code", "content_type", "response_headers", "response_schema")),
)


def test_the_published_document_is_this_one() -> None:
    document = create_app(load(home="/nonexistent")).openapi()
    assert json.loads(json.dumps(document)) == DOCUMENT, "python -m tcnn_api.document docs/openapi.json"


APP = "import tcnn_api.app, tcnn_api.settings\ntcnn_api.app.create_app(tcnn_api.settings.load(home='/none')).openapi()"
CLIENT = (
    "import tcnn_jobs.cli.jobs, tcnn_jobs.cli.submit, tcnn_jobs.cli.watch, tcnn_jobs.client.client\n"
    "tcnn_jobs.cli.watch.exit_code({'status': 'failed', 'error': {'code': 'diverged'}})"
)


@pytest.mark.parametrize("loaded", sampled([APP, CLIENT], [CLIENT]), ids=["app", "client"])
def test_neither_the_app_and_its_document_nor_the_client_loads_torch(loaded: str) -> None:
    """That a server that has answered did not is in `test_serve_process.py`, too."""
    script = f"{loaded}\nimport sys\nprint([name for name in ('torch', 'timm', 'torchvision') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"


def test_operations_have_names_that_generated_clients_can_use_as_they_are() -> None:
    """FastAPI's own are `show_jobs__id__get`, or `index_jobs_get`."""
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", name) for name in names), names
    assert not [name for name in names if name.endswith(("_get", "_post", "_delete", "_patch"))]


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=NAMES)
def test_text_has_a_schema_by_which_a_generated_client_returns_it(
    path: str, method: str, operation: dict[str, Any]
) -> None:
    for status, answer in operation["responses"].items():
        for media, content in answer.get("content", {}).items():
            if media.startswith("text/"):
                assert content["schema"] == {"type": "string"}, f"{method} {path} {status} {media}"


def filled_in(schema: str, given: dict[str, Any]) -> dict[str, Any]:
    """A body as generated clients send it: what is given, and every default that the document has for the rest."""
    body = {}
    for name, described in DOCUMENT["components"]["schemas"][schema]["properties"].items():
        kinds = [described, *described.get("anyOf", [])]
        inner = next((one["$ref"].rpartition("/")[2] for one in kinds if "$ref" in one), None)
        if name in given:
            body[name] = filled_in(inner, given[name]) if inner else given[name]
        elif described.get("default") is not None:
            body[name] = described["default"]
    return body


@pytest.mark.parametrize("preset", ["paper", "quick", "cifar"])
def test_a_client_that_fills_in_the_documents_defaults_leaves_presets_what_they_are(preset: str) -> None:
    training = {"dataset": "ds_1", "preset": preset, "config": {"epochs": 10, "conversion": {"head_dim": 8}}}

    def meaning(kind: str, body: dict[str, Any]) -> tuple[Any, Any]:
        request: Any = KINDS[kind](**body)
        training = request.finetune if kind == "transform" else request
        return training.settings, request.conversion if kind == "transform" else None

    for schema, kind, given in (
        ("TransformRequest", "transform", {"model": "resnet18", "finetune": training}),
        ("FinetuneRequest", "finetune", {"model": "resnet18", **training}),
    ):
        assert meaning(kind, filled_in(schema, given)) == meaning(kind, given)


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=NAMES)
def test_every_operation_is_described(path: str, method: str, operation: dict[str, Any]) -> None:
    assert operation["summary"]
    assert operation["description"]
    assert operation["tags"]
    for status, answer in operation["responses"].items():
        assert answer["description"]
        content = answer.get("content", {})
        if int(status) >= 400:
            assert list(content) == ["application/problem+json"]
            example = content["application/problem+json"]["example"]
            assert example["status"] == int(status)
        elif int(status) in (200, 201, 202) and "application/octet-stream" not in content:
            kinds = [one.get("example") or one.get("schema") for one in content.values()]
            assert content and all(kinds), f"{method} {path} has no example of {status}"
    body = operation.get("requestBody", {}).get("content", {})
    if "application/json" in body:
        assert body["application/json"]["examples"]
    for parameter in operation.get("parameters", []):
        assert parameter.get("description") or parameter["name"] == "id", parameter["name"]


def test_every_example_of_a_request_is_one() -> None:
    for kind, bodies in (
        ("transform", examples.TRANSFORM),
        ("finetune", examples.FINETUNE),
        ("evaluate", examples.EVALUATE),
    ):
        for example in bodies.values():
            request = KINDS[kind](**example["value"])
            for part in (request, getattr(request, "finetune", None)):
                assert not hasattr(type(part), "settings") or part.settings.batch_size > 0


def test_every_example_of_a_plan_is_one() -> None:
    for example in examples.PLAN.values():
        assert PlanRequest(**example["value"]).request
    assert PlanView(**examples.PLANNED).model_dump(mode="json") == examples.PLANNED


def test_every_example_of_an_answer_is_one() -> None:
    for example in (examples.QUEUED, examples.RUNNING, examples.SUCCEEDED, examples.CANCELLED):
        assert schemas.JobView(**example).model_dump(mode="json") == example
    assert schemas.EventList(**examples.EVENTS).model_dump(mode="json") == examples.EVENTS
    TypeAdapter(schemas.FileList).validate_python(examples.listed(examples.FILE))


@pytest.fixture
def ids(path: str, make: Callable[..., Any], upload: Callable[..., str]) -> Iterator[str]:
    """Ids that are alice's, so that an operation has something to do; none where it takes none."""
    made: dict[str, Callable[[], list[str]]] = {
        "/jobs/{id}": lambda: [make(status).id for status in Status],
        "/datasets/{id}": lambda: [upload()],
        "/checkpoints/{id}": lambda: [upload("checkpoint")],
    }
    return cycle(next((ids() for start, ids in made.items() if path.startswith(start)), []))


@pytest.fixture
def looked_at_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks at uploads has its processes in `uploads/`."""
    for route in (checkpoints, datasets, gallery, weights):
        monkeypatch.setattr(route, "ask", ask_here)


@pytest.fixture(scope="module")
def schema() -> Any:
    import schemathesis

    return schemathesis.openapi.from_dict(DOCUMENT)


@pytest.mark.usefixtures("looked_at_here")
@pytest.mark.parametrize(
    ("path", "method", "operation", "mode"),
    [
        pytest.param(*asked, mode, id=f"{name}-{mode}", marks=() if (i + j) % 2 else pytest.mark.slow)
        for i, (asked, name) in enumerate(zip(OPERATIONS, NAMES, strict=True))
        for j, mode in enumerate(("positive", "negative"))
    ],
)
def test_nothing_undocumented_is_answered(
    path: str, method: str, operation: dict[str, Any], mode: str, schema: Any, url: str, ids: Iterator[str]
) -> None:
    """Not by `schema.parametrize()`: its tests share one name, and of those pytest-xdist runs a single one.

    What asks is loaded here, for these tests alone.
    """
    from hypothesis import HealthCheck, given, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis import GenerationMode, checks

    looked_at = [getattr(checks, name) for name in CHECKS]
    asked = 0

    @settings(
        max_examples=1 if path in DEAR else EXAMPLES, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=schema[path][method].as_strategy(generation_mode=GenerationMode(mode)))
    def requests(case: Any) -> None:
        nonlocal asked
        asked += 1
        if asked % 2 and "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = next(ids, case.path_parameters["id"])
        case.call_and_validate(base_url=url, headers=KEY, checks=looked_at, timeout=120)

    try:
        requests()
    except Unsatisfiable:
        assert mode == "negative" and not (operation.get("parameters") or operation.get("requestBody"))
    else:
        assert asked


@pytest.mark.slow
def test_nothing_undocumented_is_answered_to_every_kind_of_request(url: str, tmp_path: Path) -> None:
    """Each wrong value of each parameter and field, one after the other: thousands of requests."""
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    done = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "run", document, "--url", url, "--no-color",
            "--phases", "examples,coverage", "--generation-deterministic",
            "--checks", ",".join(CHECKS),
            "--header", "Authorization:" + KEY["Authorization"],
        ],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
