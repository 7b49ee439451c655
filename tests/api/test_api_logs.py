"""Logs of a job's attempts, by the numbers that its events tell, however often each of them started.

Of attempts after a backup the database that was restored from it does not know.
"""

import hashlib
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_jobs.model.jobs import Artifact, Claim, Failure, Result, Status

Refusal = Callable[..., dict[str, Any]]
Make = Callable[..., Any]
FIRST = "first\n" * 50_000


class Run:
    """A job that is tried several times."""

    def __init__(self, service: Service, job: str) -> None:
        self.home, self.store, self.id = service.home, service.store, job
        self.url = f"/jobs/{job}/logs"

    def write(self, text: str) -> Claim:
        """What the start that runs has written so far."""
        now = self.store.get(self.id)
        folder = self.home.attempt(self.id, now.claim)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log.txt").write_text(text)
        (folder / "run").mkdir(exist_ok=True)
        (folder / "run" / "metrics.jsonl").write_text(json.dumps({"line": text.strip()}) + "\n")
        assert now.worker is not None
        return Claim(job=self.id, worker=now.worker, number=now.claim)

    def again(self) -> None:
        taken = self.store.claim("another")
        assert taken is not None and taken.id == self.id


@pytest.fixture
def run(make: Make, service: Service) -> Run:
    """Of three starts: attempt 1 failed, attempt 2 was handed back and started again."""
    run = Run(service, make(Status.RUNNING).id)
    run.store.fail(run.write(FIRST), Failure(code="internal", message="once more"), retry_after=0.0)
    run.again()
    run.store.hand_back(run.write("second, up to where it was"))
    run.again()
    run.write("zweite ä\n")
    return run


def test_a_job_without_a_log(alice: TestClient, service: Service, make: Make, refusal: Refusal) -> None:
    waiting, running = make(Status.QUEUED), make(Status.RUNNING)
    assert "no worker has taken the job yet" in refusal(alice.get(f"/jobs/{waiting.id}/logs"), 404)["detail"]
    assert "nothing has been written yet" in refusal(alice.get(f"/jobs/{running.id}/logs"), 404)["detail"]


def test_the_last_start_and_any_other(alice: TestClient, run: Run, refusal: Refusal) -> None:
    assert alice.get(run.url).text == alice.get(run.url, params={"start": 3}).text == "zweite ä\n"
    assert alice.get(run.url).headers["content-type"] == "text/plain; charset=utf-8"
    assert alice.get(run.url, params={"attempt": 1}).text == alice.get(run.url, params={"start": 1}).text == FIRST
    assert alice.get(run.url, params={"start": 2}).text == "second, up to where it was"
    none = refusal(alice.get(run.url, params={"attempt": 3}), 404)
    assert "no log of attempt 3; there are logs of 1, 2" in none["detail"]
    none = refusal(alice.get(run.url, params={"start": 5}), 404)
    assert "no log of start 5; there are logs of 1, 2, 3" in none["detail"]
    refusal(alice.get(run.url, params={"attempt": 0}), 422, "attempt")
    refusal(alice.get(run.url, params={"attempt": 1, "start": 1}), 422, "start")


def test_starts_of_one_attempt_are_joined(alice: TestClient, run: Run) -> None:
    found = alice.get(run.url, params={"attempt": 2}).content
    joined = (
        r"==> attempt 2, start 2, \S+Z on another <==\nsecond, up to where it was\n"
        r"==> attempt 2, start 3, \S+Z on another <==\nzweite ä\n"
    )
    assert re.fullmatch(joined, found.decode())
    for tail in range(1, len(found) + 2):  # whole lines alone, wherever it begins
        end = alice.get(run.url, params={"attempt": 2, "tail": tail}).content
        whole = [found[place:] for place in range(len(found) + 1) if place == 0 or found[place - 1 : place] == b"\n"]
        assert end == next(one for one in whole if len(one) <= tail)


def test_attempts_of_a_resumed_job_are_those_of_its_events(alice: TestClient, run: Run, refusal: Refusal) -> None:
    run.store.fail(run.write("zweite ä\n"), Failure(code="diverged", message="no"))
    run.store.resume(run.id)
    run.again()
    run.write("resumed\n")
    told = alice.get(f"/jobs/{run.id}/events").json()["data"]
    assert [event["data"]["attempt"] for event in told if event["kind"] == "started"] == [1, 2, 2, 1]
    assert alice.get(run.url).headers["log-starts"] == "1-4"
    assert alice.get(run.url).text == "resumed\n"
    found = alice.get(run.url, params={"attempt": 1}).text
    assert re.findall("^==> (.*?, .*?),", found, re.MULTILINE) == ["attempt 1, start 1", "attempt 1, start 4"]
    assert found.count("first\n") == 50_000 and found.endswith(" <==\nresumed\n")
    shutil.rmtree(run.home.attempt(run.id, 2))  # as housekeeping does
    assert alice.get(run.url, params={"attempt": 2}).headers["log-starts"] == "1, 3-4"
    for start in (1, 3):
        shutil.rmtree(run.home.attempt(run.id, start))
    assert alice.get(run.url).headers["log-starts"] == "4"
    assert alice.get(run.url, params={"attempt": 1}).text == "resumed\n"
    none = refusal(alice.get(run.url, params={"attempt": 2}), 404)
    assert "the log of attempt 2 is not there; there are logs of 1" in none["detail"]


def test_the_newest_is_that_of_the_row_though_files_are_there_of_later_ones(
    alice: TestClient, run: Run, refusal: Refusal
) -> None:
    for later in (4, 10):
        shutil.copytree(run.home.attempt(run.id, 1), run.home.attempt(run.id, later))

    def shown() -> tuple[str, str]:
        return alice.get(run.url).text, alice.get(f"/jobs/{run.id}/metrics.csv").text

    assert shown() == ("zweite ä\n", "line\nzweite ä\n")
    assert alice.get(run.url).headers["log-starts"] == "1-3"
    assert "there are logs of 1, 2, 3" in refusal(alice.get(run.url, params={"start": 4}), 404)["detail"]
    path = run.home.attempt(run.id, 3) / "run" / "metrics.jsonl"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    file = Artifact(name=path.name, path=f"{run.id}/3/run/{path.name}", size=path.stat().st_size, sha256=digest)
    run.store.finish(run.write("zweite ä\n"), Result(files=(file,)))
    with zipfile.ZipFile(io.BytesIO(alice.get(f"/jobs/{run.id}/archive").content)) as archive:
        assert archive.read("log.txt").decode() == "zweite ä\n"
    for one in (1, 2, 3):
        shutil.rmtree(run.home.attempt(run.id, one))
    assert "nothing has been written yet" in refusal(alice.get(run.url), 404)["detail"]
    refusal(alice.get(f"/jobs/{run.id}/metrics.csv"), 404)


def test_the_tenth_is_later_than_the_second(alice: TestClient, run: Run) -> None:
    while run.store.get(run.id).claim < 10:
        run.store.hand_back(run.write(str(run.store.get(run.id).claim)))
        run.again()
    run.write("the tenth")
    assert alice.get(run.url).text == "the tenth"
    assert alice.get(f"/jobs/{run.id}/metrics.csv").text == "line\nthe tenth\n"
