"""What a job's page offers beside its results: commands to copy, a search of its log, one zip, a notification."""

import hashlib
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsing import LOOKS, Open, archive, client_of, inaccessible, open_log, sync_api, until
from sampled import sampled
from serving import Server
from story import Story

from tcnn.cli.main import main
from tcnn_jobs.model.jobs import Failure, Result
from tcnn_jobs.model.requests import KINDS

expect = sync_api.expect
NOTED = """
window.told = [];
window.Notification = class {
  static permission = "default";
  static async requestPermission() { return (Notification.permission = "granted"); }
  constructor(title, options) { told.push(title); }
};
"""
"""The browser's own, which has nobody to show anything to here."""


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with client_of(server) as client:
        yield client


@pytest.fixture(scope="module")
def data(client: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    made = client.post("/datasets", files={"file": ("pets.zip", archive(tmp_path_factory.mktemp("pets")))})
    return str(made.json()["id"])


def run(name: str, text: str) -> None:
    """What was copied, as somebody would run it: by a shell, or as Python. What the shell makes of words for `tcnn`
    goes to the command in this process, for to load another takes a second or two."""
    if name == "Python":
        exec(text, {"__name__": "__main__"})
        return
    words = 'tcnn() { printf "%s\\0" "$@"; }\n' if name == "tcnn" else ""
    done = subprocess.run(["bash", "-e", "-c", words + text], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{text}\n{done.stderr}{done.stdout}"
    if name == "tcnn":
        with pytest.raises(SystemExit) as ended:
            main(done.stdout.split("\0")[:-1])
        assert not ended.value.code, text


def requests(data: str, job: str) -> dict[str, dict[str, Any]]:
    """One of each kind, with all that makes trouble: quotes, minus signs, lists, nothing, other letters."""
    training = {"dataset": data, "preset": "quick", "config": {"batch_size": 8, "val_split": 0.2, "mixup": 0}}
    return {
        "transform": {
            "model": "resnet18", "pretrained": False, "stage": -1, "target": r"layer4\.[01]\.conv2", "seed": 3,
            "head_dim": None, "input_size": [96, 64], "tags": ["a b", "größe"],
            "name": "it's \"the\" first; $(touch pwned)", "note": "two\nlines 'and' \\ more", "priority": -5,
            "finetune": {**training, "baseline": True},
        },
        "finetune": {"job": job, **training, "depends_on": [job], "max_runtime": 60.5},
        "evaluate": {
            "job": job, "dataset": data, "config": {"sizes": [32, 64], "corruptions": ["fog"]},
            "against": [{"model": "resnet18.a1_in1k"}],
        },
    }  # fmt: skip


@pytest.mark.parametrize("kind", sampled(KINDS, ["finetune"]))
def test_what_is_copied_makes_the_same_job(
    kind: str, server: Server, story: Story, client: httpx.Client, data: str, open_page: Open, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    body = requests(data, story.succeeded.job)[kind]
    answer = client.post(f"/{kind}", json=body)
    assert answer.status_code == 202, answer.text
    made = answer.json()
    page = open_page(f"{server.url}/#/jobs/{made['id']}", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_text("Run it from elsewhere").click()
    for name in ("tcnn", "curl", "Python"):
        button = page.get_by_role("button", name=f"Copy for {name}")
        button.click()
        expect(button).to_have_text("Copied")
        run(name, page.evaluate("navigator.clipboard.readText()"))
        again = client.get("/jobs?limit=1").json()["data"][0]
        assert again["id"] != made["id"]
        assert KINDS[kind](**again["request"]) == KINDS[kind](**made["request"]), name
        assert [again[one] for one in ("name", "tags", "note")] == [made[one] for one in ("name", "tags", "note")]
        made["id"] = again["id"]
    assert not (tmp_path / "pwned").exists()
    for width, scheme in LOOKS if kind == "transform" else ():  # the page is the same for all
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)


def long_log(server: Server, story: Story, open_page: Open) -> tuple[Any, Any]:
    """The page of a job with a long log, and where it is shown: its end."""
    attempt = story.house.home.attempt(story.succeeded.job, story.succeeded.number)
    long = "".join(f"step {number} {'.' * 20}\n" for number in range(2000))  # more than the end that is shown
    (attempt / "log.txt").write_text(f"the Beginning <b>\n{long}the beginning of the end\n")
    page = open_page(f"{server.url}/#/jobs/{story.succeeded.job}")
    open_log(page)
    log = page.locator("pre.log").last
    expect(log).to_contain_text("the beginning of the end")
    expect(log).not_to_contain_text("the Beginning <b>")
    return page, log


def test_the_log_is_searched(server: Server, story: Story, open_page: Open) -> None:
    page, log = long_log(server, story, open_page)
    page.get_by_role("searchbox", name="Search").fill("BEGINNING")
    expect(page.get_by_text("2 of 2,003 lines")).to_be_visible()
    expect(log).to_have_text("1the Beginning <b>\n2002the beginning of the end\n")
    expect(log.locator("mark")).to_have_text(["Beginning", "beginning"])


def test_every_time_that_a_worker_took_a_job_has_its_log(server: Server, story: Story, open_page: Open) -> None:
    """A job that is resumed begins with its first attempt again."""
    house, failure = story.house, Failure(code="diverged", message="no")
    claim = story._taken(priority=100, max_attempts=1)
    for number in (1, 2, 3):
        folder = house.home.attempt(claim.job, number)
        folder.mkdir(parents=True)
        (folder / "log.txt").write_text(f"the log of time {number}\n")
        house.store.fail(claim.model_copy(update={"number": number}), failure)
        if number < 3:
            house.store.resume(claim.job)
            assert house.store.claim(claim.worker) is not None
    page = open_page(f"{server.url}/#/jobs/{claim.job}")
    open_log(page)
    log, attempt = page.locator("pre.log").last, page.get_by_label("Attempt")
    expect(log).to_have_text("the log of time 3\n")
    attempt.select_option("1")
    expect(log).to_have_text("the log of time 1\n")
    expect(attempt.locator("option")).to_have_text(["Latest", *[re.compile("^1, ")] * 3])
    offered = attempt.locator("option:enabled:not([hidden])")
    expect(offered).to_have_count(4)
    shutil.rmtree(house.home.attempt(claim.job, 2))  # as housekeeping does
    attempt.select_option("2")
    problem = page.locator("details:has(pre.log) [role=alert]")
    expect(problem).to_contain_text("the log of start 2 is not there; there are logs of 1, 3")
    expect(problem.get_by_role("button")).to_have_count(0)
    expect(log).to_have_text("")  # nor the lines of another one
    attempt.select_option("3")
    expect(log).to_have_text("the log of time 3\n")
    expect(problem).to_have_count(0)
    expect(offered).to_have_count(3)
    shutil.rmtree(house.home.attempt(claim.job, 1))
    page.reload()
    open_log(page)
    expect(log).to_have_text("the log of time 3\n")
    expect(attempt).to_be_hidden()  # there is no other
    with page.expect_response(re.compile("/resume$")):
        page.get_by_role("button", name="Resume").click()
    assert house.store.claim(claim.worker) is not None
    expect(offered).to_have_count(3)  # with the new start, which has written nothing yet
    house.store.fail(claim.model_copy(update={"number": 4}), failure)


@pytest.mark.slow  # a search that finds little is above
def test_a_search_that_finds_much(server: Server, story: Story, open_page: Open) -> None:
    page, log = long_log(server, story, open_page)
    page.get_by_role("searchbox", name="Search").fill("BEGINNING")
    expect(log.locator("mark")).to_have_text(["Beginning", "beginning"])
    assert inaccessible(page, "details:has(pre.log)") == []
    page.get_by_role("searchbox", name="Search").fill("step 1")
    expect(page.get_by_text("1,111 of 2,003 lines; the last 1,000 are shown")).to_be_visible()
    page.get_by_role("searchbox", name="Search").fill("")
    expect(log).to_contain_text("the beginning of the end")


def test_everything_in_one_zip(story: Story, client: httpx.Client, tmp_path: Path) -> None:
    """Which the page's link gives in test_files_of_jobs.py."""
    job = story.succeeded.job
    (tmp_path / "all.zip").write_bytes(client.get(f"/jobs/{job}/archive").content)
    with zipfile.ZipFile(tmp_path / "all.zip") as packed:
        assert packed.testzip() is None
        assert packed.namelist() == ["job.json", "best.safetensors", "before-after.json", "log.txt"]
        for file in client.get(f"/jobs/{job}").json()["result"]["files"]:
            assert hashlib.sha256(packed.read(file["name"])).hexdigest() == file["sha256"]
    assert client.get(f"/jobs/{story.running.job}/archive").status_code == 409
    (story.house.home.attempt(job, story.succeeded.number) / "run" / "before-after.json").rename(tmp_path / "gone")
    assert client.get(f"/jobs/{job}/archive").status_code == 404


def test_a_notification_that_was_asked_for(server: Server, story: Story, open_page: Open) -> None:
    page = open_page("about:blank")
    page.add_init_script(NOTED)
    page.goto(f"{server.url}/#/jobs/{story.running.job}")
    button = page.get_by_role("button", name="Notify me")
    expect(button).to_be_visible()
    assert page.evaluate("Notification.permission") == "default"  # nobody was asked yet
    button.click()
    expect(page.get_by_role("button", name="Will notify")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("told.splice(0)") == [
        "You will be notified when the job ends"
    ]  # it shows that it can be shown
    story.house.store.finish(story.running, Result(metrics={"top1": 0.5}))
    expect(page.locator(".titled .badge")).to_have_text("✓ Succeeded")
    expect(page.get_by_role("button", name="Will notify")).to_have_count(0)
    assert page.evaluate("told") == ["Succeeded: resnet18"]


def test_a_browser_that_shows_no_notifications_says_so(server: Server, story: Story, open_page: Open) -> None:
    """As those of phones, where one cannot be made though permission is given: nothing is promised, nor asked for."""
    job = story.house.submit(request={"model": "resnet18"}).id
    page = open_page("about:blank")
    page.add_init_script(NOTED.replace("told.push(title)", 'throw new TypeError("Illegal constructor")'))
    page.clock.install()
    page.goto(f"{server.url}/#/jobs/{job}")
    page.get_by_role("button", name="Notify me").click()
    expect(page.get_by_role("button", name="Not supported")).to_have_attribute("aria-pressed", "false")
    asked: list[str] = []
    page.on("request", lambda one: one.url.endswith(f"/jobs/{job}") and asked.append(one.url))
    page.goto(f"{server.url}/#/system")
    story.house.store.cancel(job)
    page.clock.fast_forward(60_000)
    expect(page.get_by_role("heading", name="Versions of this server")).to_be_visible()
    assert asked == []


def test_what_can_no_longer_be_shown_is_asked_for_once(server: Server, story: Story, open_page: Open) -> None:
    job = story.house.submit(request={"model": "resnet18"}).id
    page = open_page("about:blank")
    page.add_init_script(NOTED)
    page.clock.install()
    page.goto(f"{server.url}/#/jobs/{job}")
    page.get_by_role("button", name="Notify me").click()
    expect(page.get_by_role("button", name="Will notify")).to_be_visible()
    page.goto(f"{server.url}/#/system")
    page.evaluate("void (Notification = class { constructor() { told.push('tried'); throw new TypeError('no'); } })")
    story.house.store.cancel(job)
    with page.expect_response(f"**/jobs/{job}"):
        page.clock.fast_forward(10_000)
    until(page, lambda: "tried" in page.evaluate("told"))
    page.clock.fast_forward(60_000)
    page.wait_for_timeout(100)
    assert page.evaluate("told").count("tried") == 1
