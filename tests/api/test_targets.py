"""Targets of conversions: a tenant's regular expression is matched where it can hold nobody up, and is told in one line
what is wrong with it, by the server, the command line and Python alike.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serving import Server, serving
from starlette.testclient import TestClient

import tcnn
from tcnn.cli.main import main
from tcnn.config.conversion import MOST_SETS, MOST_TARGET, MOST_WIDE
from tcnn.errors import RequestError
from tcnn_jobs.confined.patterns import matches

Refusal = Callable[..., dict[str, Any]]
ENDLESS = "(.+)+!"
"""Doubles its time with every character of a name, of which some have sixty."""
WRONG = {
    "a{99999999999999}": "not a regular expression: the repetition number is too large",
    f"{'(' * 3000}{')' * 3000}": "not a regular expression that can be read: its groups are nested too deeply",
    "(": "not a regular expression: missing ), unterminated subpattern at position 0",
    "a" * (MOST_TARGET + 1): f"expected at most {MOST_TARGET} characters, found {MOST_TARGET + 1}",
    "[sk]" * (MOST_SETS + 1): f"expected at most {MOST_SETS} sets of characters ([…]), found {MOST_SETS + 1}",
    f"(?i)[{''.join(f'!-{chr(9000 + place)}' for place in range(MOST_WIDE + 1))}]": f"expected at most {MOST_WIDE} "
    f"ranges (-) in an expression with characters beyond Latin-1, found {MOST_WIDE + 1}",
}
"""Targets, and what is said to them."""
wrong = pytest.mark.parametrize(("target", "words"), WRONG.items(), ids=range(len(WRONG)))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server in a process of its own, which may stand still."""
    home = tmp_path_factory.mktemp("served") / "home"
    with serving(home, "--no-worker", TCNN_API_KEYS="alice:key-of-alice,bob:key-of-bob") as server:
        yield server


@wrong
def test_what_is_no_target_is_refused_over_http(
    target: str, words: str, alice: TestClient, upload: Callable[..., str], refusal: Refusal
) -> None:
    body = {"model": "resnet18", "pretrained": False}
    found = refusal(alice.post("/transform", json=body | {"target": target}), 422, "target")
    assert found["errors"][0]["message"] == words
    training = body | {"dataset": upload(), "config": {"batch_size": 2, "conversion": {"target": target}}}
    found = refusal(alice.post("/finetune", json=training), 422, "config.conversion.target")
    assert found["errors"][0]["message"].startswith(words[:1].lower())
    refusal(alice.post("/plan", json={"finetune": training}), 422, "finetune.config.conversion.target")


@wrong
def test_python_says_the_same(target: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        tcnn.ConversionConfig(target=target)
    assert str(caught.value).startswith(f"target: {words.lower()}")
    assert "\n" not in str(caught.value)


def test_the_command_line_says_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for target, words in WRONG.items():
        with pytest.raises(SystemExit) as left:
            main(["convert", "test_resnet", str(tmp_path / "out.safetensors"), "--target", target])
        told = capsys.readouterr().err
        assert (left.value.code, told.count("\n"), "Traceback" in told) == (2, 1, False)
        assert told.startswith(f"error: target: {words.lower()}")


@pytest.mark.parametrize("target", ["layer9.*", "conv2"])  # which is a part of many
def test_a_target_of_nothing_is_refused_before_it_is_queued(
    target: str, alice: TestClient, upload: Callable[..., str], refusal: Refusal
) -> None:
    body = {"model": "resnet18", "pretrained": False}
    found = refusal(alice.post("/transform", json=body | {"target": target}), 422, "target")
    told = f"'{target}' is the whole name of no convolution of resnet18 that can be converted; they are conv1, layer{{"
    assert found["errors"][0]["message"].startswith(told)
    training = {"dataset": upload(), "config": {"batch_size": 2, "conversion": {"target": target}}}
    refusal(alice.post("/finetune", json=body | training), 422, "config.conversion.target")
    refusal(alice.post("/plan", json={"finetune": body | training}), 422, "finetune.config.conversion.target")
    training["config"] = {"batch_size": 2, "convert": False}
    assert alice.post("/finetune", json=body | training).status_code == 202


def test_a_target_that_the_model_has_is_accepted(alice: TestClient) -> None:
    for target in (r"layer[34]\..*", "layer4.0.conv1", r"layer4\.0\.conv1|layer4\.1\.conv2", "(?i)LAYER4.*(?<=2)"):
        answer = alice.post("/transform", json={"model": "resnet18", "pretrained": False, "target": target})
        assert answer.status_code == 202, answer.text


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a.b", True), ("a|a.b", True), (r"a\.b", True), (r"(?P<x>a)\.b(?!c)", True), ("a", False), ("a.c|b", False),
        ("x" * 30_000, False),
        *(pytest.param(endless, None, marks=pytest.mark.slow) for endless in ("(((x*)*)*)*y", "(?:.*){20}!")),
    ],
)  # fmt: skip
def test_names_are_matched_as_re_does_within_two_seconds(pattern: str, found: bool | None) -> None:
    assert asyncio.run(matches(pattern, ["a.b", "x" * 60])) is found


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_target_without_end_holds_nobody_up(served: Server, count: int) -> None:
    """A thread of the server would keep the interpreter to itself, so that not even a signal was heard."""
    body = {"model": "densenet121", "pretrained": False, "target": ENDLESS}
    with served.client() as alice, served.client("key-of-bob") as bob, ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(alice.post, "/transform", json=body) for _ in range(count)]
        while not all(one.done() for one in asked):
            assert bob.get("/models?limit=1").status_code == 200
            time.sleep(0.05)
        for one in asked:
            answer = one.result()
            assert answer.status_code == 422, answer.text
            (error,) = answer.json()["errors"]
            assert error["field"] == "target"
            assert error["message"].startswith("'(.+)+!' takes more than 2 s to match with the names of the convolut")
