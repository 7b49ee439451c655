"""Why a job waits, each reason in its own words, on list and page, which hear when the reason changes."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from browsing import Open, sync_api
from houses import House
from serving import Server, hosted

from tcnn_jobs.model.jobs import Claim, Failure, Kind
from tcnn_jobs.model.operation import WorkerInfo

expect = sync_api.expect
COUNTED = re.compile(r"^Attempt 1 of 3 failed; retrying in 14 min \d\d? s$")


@pytest.fixture
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("waiting") / "home")


@pytest.fixture
def server(house: House) -> Iterator[Server]:
    with hosted(house.home.root) as running:
        yield running


def worker(house: House, name: str, slots: int) -> None:
    """One that is there, and has nothing to say of any job."""
    house.store.heartbeat(WorkerInfo(name=name, host="here", slots=slots, version="1"), [])


def begun(house: House, name: str, **options: Any) -> Claim:
    job = house.submit(priority=100, **options)
    taken = house.store.claim(name)
    assert taken is not None and taken.id == job.id
    return Claim(job=job.id, worker=name, number=taken.claim)


@pytest.mark.parametrize("anew", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_reason_has_its_own_words(server: Server, house: House, open_page: Open, anew: bool) -> None:
    """On the list, on pages that were open before, and on those that are opened anew, of all jobs or of one."""
    retried = begun(house, "one", request={"model": "resnet26"})
    house.store.fail(retried, Failure(code="crashed", message="killed"), retry_after=899)
    first = house.submit(request={"model": "resnet18"})
    second = house.submit(request={"model": "resnet34"})
    follower = house.submit(kind=Kind.FINETUNE, request={"job": second.id, "dataset": "ds_" + "0" * 24})
    both = house.submit(request={"model": "resnet50", "depends_on": [first.id, second.id]})
    wide = house.submit(request={"model": "resnet101"}, slots=3)
    jobs = open_page(server.url)
    page = open_page("about:blank")
    page.clock.install()
    page.goto(f"{server.url}/#/jobs/{first.id}")

    def told(job: str, words: str | re.Pattern[str]) -> None:
        expect(jobs.locator(f".jobs a[href$='{job}'] .standing")).to_have_text(words)
        if anew or job == retried.job:
            other.goto(f"{server.url}/#/jobs/{job}")
            expect(other.locator(".standing")).to_have_text(words)

    other = page.context.new_page()
    for job, words in (
        (first.id, "Next in line: no worker is there"),
        (second.id, "1 ahead of it: no worker is there"),
        (follower.id, "Waiting for resnet34 to succeed"),
        (both.id, re.compile("^Waiting for resnet(18|34) and resnet(18|34) to succeed$")),
        (wide.id, "2 ahead of it: needs 3 slots of one worker at once; no worker is there"),
        (retried.job, COUNTED),
    ):
        told(job, words)
    shown = (jobs.locator(f".jobs a[href$='{retried.job}'] .standing"), other.locator(".standing"))
    before = [one.inner_text() for one in shown]
    other.route(re.compile(f"/jobs/{retried.job}$"), lambda route: None)  # it counts without asking anybody
    for one, words in zip(shown, before, strict=True):
        expect(one).not_to_have_text(words)
        expect(one).to_have_text(COUNTED)
    expect(page.locator(".standing")).to_have_text("Next in line: no worker is there")

    worker(house, "one", 1)
    running = begun(house, "one", request={"model": "resnet152"})
    full = "waits for a free slot; the only one is taken"
    page.clock.fast_forward(5000)  # it looks so often
    expect(page.locator(".standing")).to_have_text(f"Next in line: {full}")  # where it was open all the time
    told(first.id, f"Next in line: {full}")
    told(second.id, f"1 ahead of it: {full}")
    told(wide.id, "2 ahead of it: needs 3 slots of one worker at once; the largest worker has 1")
    told(follower.id, "Waiting for resnet34 to succeed")
    worker(house, "two", 1)
    begun(house, "two", request={"model": "vgg16"})
    told(first.id, "Next in line: waits for a free slot; all 2 are taken")
    house.store.cancel(running.job)
    house.store.heartbeat(WorkerInfo(name="one", host="here", slots=2, version="1"), [])
    expect(jobs.locator(f".jobs a[href$='{first.id}'] .standing")).to_have_text("Next in line")
    page.clock.fast_forward(5000)
    expect(page.locator(".standing")).to_have_text("Next in line")
