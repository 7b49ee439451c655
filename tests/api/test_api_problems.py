"""Whatever is wrong with a request: problem+json, a header that says which request, and nothing of the server's own;
parameters that a route has not, or that say two things, are refused: the list they were to narrow would be whole.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from starlette.testclient import TestClient

from tcnn_api.app import ROUTERS
from tcnn_api.deps import taken

Refusal = Callable[..., dict[str, Any]]
JSON = {"Content-Type": "application/json"}
LIMIT = 50_000
ROUTES = ("transform", "finetune", "evaluate")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"{", 400, "body"),
        (b"", 422, "body"),
        (b"[]", 422, "body"),
        (b"null", 422, "body"),
        (b'"text"', 422, "body"),
        (b"\xff\xfe\x00", 400, "body"),
        (b"[" * 40_000, 400, "body"),
        *((b"[" * deep + b"]" * deep, 422, "body") for deep in (300, 900)),
        (b'{"model": ' + b"9" * 5000 + b"}", 400, "body"),
    ],
)
def test_bodies_that_are_none(
    route: str, body: bytes, status: int, field: str, alice: TestClient, refusal: Refusal
) -> None:
    refusal(alice.post(f"/{route}", content=body, headers=JSON), status, field)


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_bodies_of_another_kind(media: str | None, alice: TestClient, refusal: Refusal) -> None:
    """A form can be posted from any page, without asking the server first: it must not pass for JSON."""
    headers = {} if media is None else {"Content-Type": media}
    answer = alice.post("/transform", content=b'{"model": "resnet18"}', headers=headers)
    refusal(answer, 415, "Content-Type")
    assert alice.post("/transform", content=b'{"model": "resnet18"}', headers=JSON).status_code == 202


def test_a_body_over_the_limit_is_cut_off_by_its_announced_length(alice: TestClient, refusal: Refusal) -> None:
    def body() -> Iterator[bytes]:
        raise AssertionError("read")
        yield b""

    headers = JSON | {"Content-Length": str(LIMIT + 1)}
    answer = alice.post("/transform", content=body(), headers=headers)
    assert "TCNN_MAX_BODY_MB" in refusal(answer, 413, "body")["detail"]
    assert answer.headers["connection"] == "close"


def test_a_body_over_the_limit_is_cut_off_while_it_is_read(alice: TestClient, refusal: Refusal) -> None:
    """Nothing announces the length of a chunked body; what is read beyond the limit is a chunk at most."""
    sent = 0

    async def app_sees() -> dict[str, Any]:
        nonlocal sent
        sent += 10_000
        return {"type": "http.request", "body": b" " * 10_000, "more_body": True}

    answers: list[Any] = []

    async def send(message: Any) -> None:
        answers.append(message)

    headers = [
        (b"host", b"localhost"),
        (b"authorization", b"Bearer key-of-alice"),
        (b"content-type", b"application/json"),
    ]
    scope = {
        "type": "http", "method": "POST", "path": "/transform", "raw_path": b"/transform", "query_string": b"",
        "headers": headers, "client": ("127.0.0.1", 1), "server": ("localhost", 80), "scheme": "http",
        "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0"}, "app": alice.app, "state": {},
    }  # fmt: skip
    anyio.run(alice.app, scope, app_sees, send)
    assert answers[0]["status"] == 413
    assert LIMIT < sent <= LIMIT + 20_000
    exact = json.dumps({"model": "resnet18"}).encode().ljust(LIMIT)
    assert alice.post("/transform", content=exact, headers=JSON).status_code == 202
    refusal(alice.post("/transform", content=exact + b" ", headers=JSON), 413, "body")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/jobs", 405), ("POST", "/jobs", 405), ("PATCH", "/transform", 405), ("DELETE", "/models", 405),
        ("GET", "/nothing", 404), ("GET", "/jobs/", 404), ("GET", "//etc/passwd", 404), ("BREW", "/transform", 405),
        ("GET", "/static/docs.html", 404), ("GET", "/static/..%2fcore.py", 404),
    ],
)  # fmt: skip
def test_no_such_page_or_method(method: str, path: str, status: int, alice: TestClient) -> None:
    answer = alice.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    if status == 405:
        assert answer.headers["allow"]


def test_a_405_names_all_methods_of_a_path(alice: TestClient) -> None:
    """Those that the document has, and HEAD where there is GET."""
    paths = alice.get("/openapi.json").json()["paths"]
    for path in (
        "/datasets",
        "/datasets/{id}",
        "/jobs/{id}",
        "/jobs/{id}/checkpoint",
        "/jobs/{id}/shares",
        "/transform",
    ):
        methods = {method.upper() for method in paths[path]}
        expected = sorted(methods | ({"HEAD"} if "GET" in methods else set()))
        for method in ("PUT", "BREW"):
            answer = alice.request(method, path.format(id="job_000000000000000000000000"))
            assert (answer.status_code, answer.headers["allow"]) == (405, ", ".join(expected)), path


def test_every_answer_says_which_request_it_was(alice: TestClient, nobody: TestClient) -> None:
    for client in (alice, nobody):
        assert client.get("/jobs", headers={"X-Request-ID": "mine-1.2_3"}).headers["x-request-id"] == "mine-1.2_3"
        strange = ("", "a b", "x" * 129, "a\x7f")
        ours = [client.get("/jobs", headers={"X-Request-ID": one}).headers["x-request-id"] for one in strange]
        assert all(len(one) == 32 for one in ours)
        assert len(set(ours)) == 4


def test_every_answer_is_guarded(alice: TestClient) -> None:
    for path in ("/jobs", "/nothing", "/docs", "/", "/healthz"):
        headers = alice.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe-eval" not in headers["content-security-policy"]


def test_what_was_not_foreseen_is_logged_and_not_told(
    alice: TestClient, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the secret of the house")

    monkeypatch.setattr(alice.app.state.service.store, "get", broken)  # type: ignore[attr-defined]
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logged:
        answer = alice.get("/jobs/job_0123456789abcdef01234567")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] is None
    assert "secret" not in answer.text
    unforeseen = next(line for line in logged if line["event"] == "unforeseen")
    assert unforeseen["exc_info"]
    assert unforeseen["request_id"] == answer.headers["x-request-id"]


def test_one_line_a_request(alice: TestClient) -> None:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logged:
        answer = alice.post("/transform", json={"model": "resnet18"}, headers={"X-Request-ID": "r1"})
    line = next(line for line in logged if line["event"] == "request")
    expected = {
        "method": "POST", "path": "/transform", "route": "/transform", "status": 202, "tenant": "alice",
        "job": answer.json()["id"], "request_id": "r1",
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert 0 < line["seconds"] < 10
    assert "key-of-alice" not in str(logged)


def test_pages_load_nothing_from_elsewhere(nobody: TestClient) -> None:
    for path in ("/", "/docs"):
        text = nobody.get(path).text
        assert "//" not in text, path
    for name, media in (
        ("swagger-ui.css", "text/css"),
        ("swagger-ui-bundle.js", "javascript"),
        ("dashboard/docs.css", "text/css"),
        ("dashboard/docs.js", "javascript"),
    ):
        answer = nobody.get(f"/static/{name}")
        assert (answer.status_code, media in answer.headers["content-type"]) == (200, True)


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
