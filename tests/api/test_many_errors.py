"""Requests with very much that is wrong: what is told of it is bounded, in number and in length, and the rest counted;
a hundred thousand errors would take the server a minute to word.
"""

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tcnn_api.errors import LONGEST_FIELD, MOST_ERRORS, quoted

Refusal = Callable[..., dict[str, Any]]
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ({"name": "x" * 201}, "expected at most 200 characters, found 201"),
        ({"tags": [str(number) for number in range(60)]}, "expected at most 20 items, found 60"),
    ],
)
def test_what_is_too_long_is_counted(label: dict[str, Any], words: str, alice: TestClient, refusal: Refusal) -> None:
    """Not in pydantic's words, which speak of tuples and validation, nor with all of it in the answer."""
    job = alice.post("/transform", json={"model": "resnet18"}).json()["id"]
    (field,) = label
    told = refusal(alice.patch(f"/jobs/{job}", json=label), 422, field)
    assert told["errors"][0]["message"] == words


def test_what_is_wrong_has_a_type_and_the_first_three_are_told_in_words(alice: TestClient, refusal: Refusal) -> None:
    """All of them stand in `errors`."""
    wrong = {f"x{number}": 1 for number in range(5)}
    found = refusal(alice.post("/transform", json={"model": "resnet18", **wrong}), 422)
    assert (found["type"], found["title"]) == ("urn:tcnn:problem:invalid-request", "Invalid request")
    assert [error["field"] for error in found["errors"]] == list(wrong)
    assert found["detail"] == "; ".join(f"{error['field']}: {error['message']}" for error in found["errors"][:3])
    found = refusal(alice.post("/transform", content=b"{", headers=JSON), 400, "body")
    assert (found["type"], found["title"]) == ("urn:tcnn:problem:malformed-body", "Malformed body")
    assert alice.get("/nothing").json()["type"] == "about:blank"


@pytest.mark.parametrize("letters", ["x", "pretrained"])  # like no setting, and like one
def test_of_very_many_errors_the_first_are_told_and_the_rest_counted(
    letters: str, alice: TestClient, refusal: Refusal
) -> None:
    wrong = {f"{letters}{number}": 1 for number in range(2000)}
    told = f"; found 2000 errors, of which the first {MOST_ERRORS} are in `errors`"
    for route, prefix, body in (
        ("transform", "", {"model": "resnet18", **wrong}),
        ("evaluate", "against.0.", {"model": "resnet18", "dataset": "x", "against": [{"model": "resnet18", **wrong}]}),
        ("plan", "transform.", {"transform": {"model": "resnet18", **wrong}}),
    ):
        found = refusal(alice.post(f"/{route}", json=body), 422)
        assert [error["field"] for error in found["errors"]] == [f"{prefix}{key}" for key in list(wrong)[:MOST_ERRORS]]
        assert found["detail"].endswith(told)
    found = refusal(alice.get("/jobs", params=wrong), 422)
    assert [error["field"] for error in found["errors"]] == list(wrong)[:MOST_ERRORS]
    assert found["detail"].endswith(told)


@pytest.mark.parametrize(
    ("route", "body", "field", "most"),
    [
        ("transform", {"depends_on": [1] * 9000}, "depends_on", 16),
        ("transform", {"tags": [[]] * 9000}, "tags", 20),
        ("transform", {"input_size": ["x"] * 9000}, "input_size", 2),
        ("evaluate", {"dataset": "x", "against": [{}] * 9000}, "against", 8),
        ("finetune", {"dataset": "x", "config": {"size": ["x"] * 9000}}, "config.size", 2),
    ],
)
def test_a_list_that_is_too_long_is_refused_as_a_whole(
    route: str, body: Any, field: str, most: int, alice: TestClient, refusal: Refusal
) -> None:
    told = refusal(alice.post(f"/{route}", json={"model": "resnet18", **body}), 422, field)
    assert told["errors"][0]["message"] == f"expected at most {most} items, found 9000"


def test_a_key_that_is_a_page_long_is_cut(alice: TestClient, refusal: Refusal) -> None:
    page = "stride" * 5000
    for answer in (alice.post("/transform", json={"model": "resnet18", page: 1}), alice.get("/jobs", params={page: 1})):
        found = refusal(answer, 422)
        (error,) = found["errors"]
        assert error["field"] == f"{page[:LONGEST_FIELD]} …"
        assert error["message"].startswith("no such ") and "did you mean" not in error["message"]
        assert len(answer.content) < 3000


@pytest.mark.parametrize("deep", [150, 450])
def test_a_field_that_is_nested_deep_is_refused(deep: int, alice: TestClient, refusal: Refusal) -> None:
    nested = b'{"a":[' * deep + b"]}" * deep
    refusal(alice.post("/transform", content=b'{"model": ' + nested + b"}", headers=JSON), 422, "model")


def test_what_is_quoted_is_short_and_plain() -> None:
    assert quoted("é\n") == r"'\xe9\n'"
    assert len(quoted("x" * 1000)) == 100
