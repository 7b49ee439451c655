"""What results are told in: names instead of ids, the accuracy of the model that was kept, whole numbers as such,
and epochs counted from 1.
"""

import hashlib
import json
import re
from pathlib import Path

import pytest
from browsing import Open, sync_api
from serving import Server
from story import Story

from tcnn.evaluation import scores
from tcnn_jobs.model.jobs import Artifact, Kind, Result, Upload

expect = sync_api.expect
PETS = "ds_" + "7" * 24


class Named(Story):
    """With a data set, and a model that was measured on it and knew its images."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        pets = Upload(id=PETS, owner="local", kind="dataset", name="pets & others.zip", path=f"datasets/{PETS}", size=1,
                      sha256="0" * 64, details={"classes": ["cat"], "images": 20, "splits": {}})  # fmt: skip
        self.house.store.add_upload(pets)
        claim = self._taken(priority=100, kind=Kind.EVALUATE, request={"job": self.succeeded.job, "dataset": PETS})
        score = {"images": 20, "right": 13, "top1": 0.65, "top5": None, "loss": 1.0}
        row = {"model": self.succeeded.job, "height": 64, "width": 64, "clean": score}
        found = {"data": PETS, "images": 20, "held_out": True, "trained_on": [self.succeeded.job], "rows": [row]}
        attempt = self.house.home.attempt(claim.job, claim.number)
        attempt.mkdir(parents=True)
        text = json.dumps(found).encode()
        (attempt / "evaluation.json").write_bytes(text)
        file = Artifact(name="evaluation.json", path=f"{claim.job}/{claim.number}/evaluation.json", size=len(text),
                        sha256=hashlib.sha256(text).hexdigest())  # fmt: skip
        self.house.store.finish(claim, Result(files=(file,), metrics=found))
        self.measured = claim.job
        self.whole = self._measured_whole()
        self.best = self._best_before_the_last()

    def _measured_whole(self) -> str:
        """On a data set that is not divided, by a model that has not seen it."""
        claim = self._taken(priority=100, kind=Kind.EVALUATE, request={"job": self.succeeded.job, "dataset": PETS})
        score = {"images": 20, "right": 13, "top1": 0.65, "top5": None, "loss": 1.0,
                 "top1_interval": list(scores.share(13, 20)[1:])}  # fmt: skip
        row = {"model": self.succeeded.job, "height": 64, "width": 64, "clean": score}
        found = {"data": PETS, "split": None, "images": 20, "held_out": False, "trained_on": [], "rows": [row]}
        self.house.store.finish(claim, Result(files=(), metrics=found))
        return claim.job

    def measured_after_a_correction(self) -> str:
        """With the model of a run that held out a part of what was another data set then."""
        claim = self._taken(priority=100, kind=Kind.EVALUATE, request={"job": self.succeeded.job, "dataset": PETS})
        row = {"model": self.succeeded.job, "height": 64, "width": 64, "clean": {"images": 1, "right": 1, "top1": 1.0}}
        found = {"data": PETS, "split": "val", "images": 1, "held_out": False, "trained_on": [self.succeeded.job],
                 "part_lost": [self.succeeded.job], "rows": [row]}  # fmt: skip
        self.house.store.finish(claim, Result(files=(), metrics=found))
        return claim.job

    def _best_before_the_last(self) -> str:
        """A run whose model is that of its second epoch."""
        claim = self._taken(priority=100, kind=Kind.FINETUNE, request={"job": self.succeeded.job, "dataset": PETS})
        file = Artifact(
            name="best.safetensors", path=f"{claim.job}/{claim.number}/best.safetensors", size=1, sha256="1" * 64
        )
        metrics = {"top1": 0.72, "top5": 0.96, "best_top1": 0.75, "best_epoch": 2, "epochs": 4, "train_images": 123_456,
                   "unreadable": ["cat/3.png", "dog/9.png"], "unreadable_count": 50}  # fmt: skip
        self.house.store.finish(claim, Result(checkpoint=file, files=(file,), metrics=metrics))
        return claim.job


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Named:
    return Named(tmp_path_factory.mktemp("names") / "home")


@pytest.mark.slow
def test_the_report_calls_data_sets_and_models_by_their_names(server: Server, story: Named) -> None:
    job = story.measured
    with server.client(None) as client:
        page = client.get(f"/jobs/{job}/report").text
        assert PETS not in page and story.succeeded.job not in page
        assert "pets &amp; others.zip: 20 images, held out from training" in page
        assert "test_resnet (trained on these images)" in page
        client.patch(f"/jobs/{story.succeeded.job}", json={"name": "the good one"})
        assert "the good one (trained on these images)" in client.get(f"/jobs/{job}/report").text
        client.patch(f"/jobs/{story.succeeded.job}", json={"name": None})
        client.patch(f"/jobs/{job}", json={"name": "cats & dogs, measured"})
        page = client.get(f"/jobs/{job}/report").text
        assert "<title>cats &amp; dogs, measured – tcnn report</title>" in page and job not in page


@pytest.mark.slow  # words, two pages; that a job needs it is told in test_data_pages.py
def test_who_uses_a_data_set_is_named(server: Server, story: Named, open_page: Open) -> None:
    job = story.house.submit(kind=Kind.FINETUNE, request={"job": story.succeeded.job, "dataset": PETS, "val": PETS}).id
    page = open_page(f"{server.url}/#/data/{PETS}")
    users = page.locator(".users a")
    expect(users.filter(has_text=re.compile("^test_resnet$")).first).to_have_attribute("href", f"#/jobs/{job}")
    page.goto(f"{server.url}/#/jobs/{job}")
    settings = page.locator(".request")
    expect(settings.get_by_text("pets & others.zip")).to_have_count(2)
    expect(settings.get_by_text("pets & others.zip").first).to_have_attribute("title", PETS)


def test_the_accuracy_is_that_of_the_model_that_was_kept(server: Server, story: Named, open_page: Open) -> None:
    """And whole numbers are told as they are."""
    page = open_page(f"{server.url}/#/jobs/{story.best}")
    result = page.locator(".card", has=page.get_by_role("heading", name="Result", exact=True)).locator("dl > div")
    expect(result.first).to_have_text("Accuracy (top-1)75%")
    assert result.all_inner_texts()[1:3] == ["After the last epoch\n72%", "Top-5, last epoch\n96%"]
    assert result.all_inner_texts()[4:] == ["Training images\n123,456", "Unreadable, left out\n50"]
    page.goto(f"{server.url}/#/compare?jobs={story.best}")
    row = page.get_by_role("region", name="Results").get_by_role("row", name="train_images")
    expect(row.get_by_role("cell")).to_have_text("123,456")


@pytest.mark.slow  # words, one page
def test_of_a_data_set_that_is_not_divided_no_split_was_measured(server: Server, story: Named, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.whole}")
    expect(page.get_by_text("20 images of pets & others.zip: all of them, since it has no splits.")).to_be_visible()
    accuracy = page.get_by_role("region", name="Accuracy by model").get_by_role("row").nth(1).get_by_role("cell").nth(1)
    _, low, high = scores.share(13, 20)
    expect(accuracy).to_have_text(f"65%{low:.0%} to {high:.0%}")


def test_an_evaluation_says_that_the_part_held_out_is_lost(server: Server, story: Named, open_page: Open) -> None:
    """And one image is one."""
    page = open_page(f"{server.url}/#/jobs/{story.measured_after_a_correction()}")
    notices = page.locator(".notice.bad")
    expect(notices).to_have_text(
        [re.compile("^test_resnet: trained on"), re.compile("^test_resnet: a part .* any more")]
    )
    expect(page.get_by_text("1 image of pets & others.zip: split val.")).to_be_visible()


def test_the_best_epoch_is_counted_like_all_others(server: Server, story: Named, open_page: Open) -> None:
    """From 1, as in the table of epochs; and runs are sorted by it."""
    jobs = ",".join((story.best, story.succeeded.job))
    page = open_page(f"{server.url}/#/compare?jobs={jobs}")
    results = page.get_by_role("region", name="Results")
    best, epochs = (results.get_by_role("row", name=name) for name in ("best_epoch", "epochs"))
    expect(best.get_by_role("cell")).to_have_text(["3", "4"])
    expect(epochs.get_by_role("cell")).to_have_text(["4", "4"])
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    page.get_by_text("Numbers by epoch").click()
    expect(page.get_by_role("region", name="Epochs").get_by_role("rowheader").last).to_have_text("4")  # its best
    for sort, cells in (("metrics.best_epoch", ["3", "4"]), ("-metrics.best_epoch", ["4", "3"])):
        page.goto(f"{server.url}/#/runs?sort={sort}&columns=metrics.best_epoch")
        values = page.locator(".runs tbody td").filter(has_text=re.compile("^[0-9]$"))
        expect(values).to_have_text(cells)
        assert [one.get_attribute("title") for one in values.all()] == cells


def test_whole_numbers_of_settings_are_not_rounded(server: Server, story: Named, open_page: Open) -> None:
    """Seeds that differ look different, also beyond 2^53; fractions have four digits."""
    seeds = ("123456789", "123456788", "18446744073709551615", "100")
    for seed in seeds:
        config = {"seed": int(seed), "lr": 0.000123456}
        story.house.submit(kind=Kind.FINETUNE, request={"job": story.best, "dataset": PETS, "config": config})
    page = open_page(f"{server.url}/#/runs?sort=-created&columns=settings.seed,settings.lr")
    rows = page.locator(".runs tbody tr")
    for row, seed in enumerate(reversed(seeds)):
        expect(rows.nth(row).get_by_role("cell").nth(1)).to_have_text(seed)
        expect(rows.nth(row).get_by_role("cell").nth(2)).to_have_text("1.235e-4")


def test_times_ago_are_in_rounded_units_and_days_of_the_calendar(server: Server, open_page: Open) -> None:
    """At 8:00 of a Sunday; the one before has 25 hours."""
    page = open_page(f"{server.url}/static/dashboard/base.css", timezone_id="Europe/Berlin")  # beside the modules
    now = "2026-11-01T08:00:00+01:00"
    ago = {
        "2026-11-01T07:59:55+01:00": "just now",
        "2026-11-01T07:59:00.400+01:00": "1 minute ago",
        "2026-11-01T07:00:18+01:00": "1 hour ago",
        "2026-10-31T08:24:00+01:00": "yesterday",
        "2026-10-31T09:00:00+01:00": "23 hours ago",
        "2026-10-31T00:00:00+01:00": "yesterday",
        "2026-10-30T23:59:00+01:00": "2 days ago",
        "2026-10-25T00:00:00+02:00": "7 days ago",
        "2026-10-24T23:59:00+02:00": "8 days ago",
    }
    said = page.evaluate(
        """([all, now]) => import('./components/format.js').then(({ since }) =>
            all.map((at) => since(at, Date.parse(now))))""",
        [list(ago), now],
    )
    assert dict(zip(ago, said, strict=True)) == ago


def test_one_is_no_plural(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/static/dashboard/base.css")
    said = page.evaluate(
        """import('./components/format.js').then(({ describeDataset, some }) =>
            [some(0, 'image'), some(1, 'image'), some(1000, 'image'), some(2, 'class', 'classes'),
             describeDataset({ name: 'pets', images: 1, classes: ['cat'] })])"""
    )
    assert said[:4] == ["0 images", "1 image", "1,000 images", "2 classes"]
    assert said[4].endswith(" · 1 image, 1 class")


def test_units_are_chosen_after_rounding(server: Server, open_page: Open) -> None:
    """There are no 1,000 kilobytes, and no thousand thousands."""
    page = open_page(f"{server.url}/static/dashboard/base.css")
    said = page.evaluate(
        """import('./components/format.js').then(({ bytes, short }) =>
            [bytes(999_400), bytes(999_500), bytes(999.6), short(999_400), short(999_999), short(999.7), short(12)])"""
    )
    assert [one.replace("\u00a0", " ") for one in said] == ["999 kB", "1 MB", "1 kB", "999 k", "1 M", "1 k", "12"]
