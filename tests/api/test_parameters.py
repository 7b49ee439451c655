"""Parameters that a route has not, or that say two things, are refused: the list they were to narrow would be whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tcnn_api.app import ROUTERS
from tcnn_api.deps import taken

Refusal = Callable[..., dict[str, Any]]
DOCUMENT = json.loads((Path(__file__).parents[2] / "docs/openapi.json").read_bytes())
GUARDED = [
    (method, path)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if "security" in operation
]


def test_an_unknown_parameter_is_refused_by_every_route(alice: TestClient, refusal: Refusal) -> None:
    for method, path in GUARDED:
        answer = alice.request(method.upper(), path.replace("{", "").replace("}", ""), params={"colour": "red"})
        assert "no such parameter" in refusal(answer, 422, "colour")["detail"], (method, path)


def test_what_a_route_takes_is_what_the_document_says() -> None:
    routes = [route for router in ROUTERS for route in router.routes]
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            documented = {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"}
            (endpoint,) = [one.endpoint for one in routes if one.path == path and method.upper() in one.methods]  # type: ignore[attr-defined]
            assert set(taken(endpoint)) == documented, (method, path)


@pytest.mark.parametrize(
    ("query", "field", "told"),
    [
        ("stauts=failed", "stauts", "did you mean status?"),
        ("zebra=1", "zebra", "there are after, limit, status,"),
        ("status=running&status=failed", "status", "expected one value, found 2"),
    ],
)
def test_a_list_is_not_whole_for_a_slip(query: str, field: str, told: str, alice: TestClient, refusal: Refusal) -> None:
    assert told in refusal(alice.get(f"/jobs?{query}"), 422, field)["detail"]


def test_what_may_be_said_twice_and_what_others_add_to_a_page(alice: TestClient, nobody: TestClient) -> None:
    assert alice.get("/jobs?tag=a&tag=b&limit=1").status_code == 200
    for path in ("/", "/docs", "/healthz", "/readyz", "/openapi.json"):
        assert nobody.get(f"{path}?probe=1&probe=2").status_code == 200, path


@pytest.mark.parametrize("name", ["two\nlines", "long" * 1000, "\u202egnp"])
def test_a_name_of_the_senders_is_told_on_one_line(name: str, alice: TestClient) -> None:
    for answer in (
        alice.get("/jobs", params={name: "1"}),
        alice.post("/transform", json={"model": "resnet18", name: 1}),
        alice.post("/transform", json={"model": "resnet18", "finetune": {"dataset": "x", "config": {name: 1}}}),
    ):
        detail = answer.json()["detail"]
        assert answer.status_code == 422 and detail.isprintable() and len(detail) < 1500, detail
