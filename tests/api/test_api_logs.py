"""Logs of a job's attempts, by the numbers that its events tell, however often each of them started."""

import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_jobs.model.jobs import Claim, Failure, Status

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
