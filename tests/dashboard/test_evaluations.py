"""What the page of an evaluation says of its images: which could not be read, and what each model answered to them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from browsing import Open, inaccessible, sync_api
from serving import Server
from story import Story

from tcnn_jobs.model.jobs import Artifact, Kind, Result, Upload
from tcnn_jobs.model.naming import Labels

expect = sync_api.expect
PETS = "ds_" + "7" * 24


class Measured(Story):
    """With two models that were measured on twenty images."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        pets = Upload(id=PETS, owner="local", kind="dataset", name="pets.zip", path=f"datasets/{PETS}", size=1,
                      sha256="0" * 64, details={"classes": ["cat", "dog"], "images": 20, "splits": {}})  # fmt: skip
        self.house.store.add_upload(pets)
        self.further = self._succeed(priority=100)
        for one, name in ((self.succeeded, "the start"), (self.further, "trained further")):
            self.house.store.label(one.job, "local", Labels(name=name))

    def measured(self, *unreadable: int, **more: Any) -> str:
        """An evaluation of them whose models could not read so many of the images."""
        models = (self.further.job, self.succeeded.job)
        counts = unreadable or (0, 0)
        rows = [
            {"model": model, "height": 64, "width": 64, "mistakes": [],
             "clean": {"images": 20 - count, "right": 13, "top1": 0.65, "top5": None, "loss": 1.0},
             "unreadable": [f"{PETS}/cat/{number}.png" for number in range(min(count, 3))], "unreadable_count": count}
            for model, count in zip(models, counts, strict=True)
        ]  # fmt: skip
        found = {"data": PETS, "split": None, "images": 20, "held_out": False, "trained_on": [], "rows": rows, **more}
        asked = {"job": models[0], "against": [{"job": models[1]}], "dataset": PETS, "config": {"examples": 24}}
        claim = self._taken(priority=100, kind=Kind.EVALUATE, request=asked)
        file = self.house.home.attempt(claim.job, claim.number) / "evaluation.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(found))
        kept = Artifact(name=file.name, path=f"{claim.job}/{claim.number}/{file.name}", size=file.stat().st_size,
                        sha256=hashlib.sha256(file.read_bytes()).hexdigest())  # fmt: skip
        self.house.store.finish(claim, Result(files=(kept,), metrics=found))
        return claim.job


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return Measured(tmp_path_factory.mktemp("evaluations") / "home")


def test_images_that_cannot_be_read_are_told_of(server: Server, story: Measured, open_page: Open) -> None:
    """Those of the model that could read fewest, by their names in the data set."""
    page = open_page(f"{server.url}/#/jobs/{story.measured()}")
    card = page.locator(".card", has=page.get_by_role("heading", name="Accuracy", exact=True))
    expect(card).to_contain_text("20 images of pets.zip: all of them, since it has no splits.")
    expect(card.locator(".bad")).to_have_count(0)
    for counts, said, names in (
        ((0, 1), "Measured on 19 of the 20 images: 1 cannot be read and is left out.", 1),
        ((5, 1), "Measured on 15 of the 20 images: 5 cannot be read and are left out.", 3),
    ):
        page.goto(f"{server.url}/#/jobs/{story.measured(*counts)}")
        expect(card.locator(".bad")).to_have_text(said)
        card.get_by_text("Show them").click()
        expect(card.locator(".unreadable li")).to_have_text([f"cat/{number}.png" for number in range(names)])
        expect(card.get_by_text("and 2 more.")).to_have_count(int(counts[0] == 5))


def test_answers_are_those_of_models_by_their_names(server: Server, story: Measured, open_page: Open) -> None:
    """Neither of which is before or after the other: the first is the one that the others are compared with."""
    image = {"file": "cat/1.png", "target": "cat", "before": "dog", "before_confidence": 0.6, "after": "cat",
             "after_confidence": 0.9}  # fmt: skip
    change = {"of": story.succeeded.job, "over": story.further.job, "height": 64, "width": 64, "newly_right": 1,
              "newly_wrong": 0, "otherwise_wrong": 0, "top1": {"mean": 0.05, "low": 0.0, "high": 0.1},
              "right_images": [image], "wrong_images": []}  # fmt: skip
    page = open_page(f"{server.url}/#/jobs/{story.measured(changes=[change])}")
    page.get_by_text("The images on which they differ").click()
    expect(page.get_by_role("heading", name="the start: newly right: 1")).to_be_visible()
    shown = page.locator(".changed").first
    expect(shown.locator("dt")).to_have_text(["True class", "trained further", "the start"])
    expect(shown.locator("dd")).to_have_text(["cat", "dog, 60%", "cat, 90%"])
    story.house.store.label(story.succeeded.job, "local", Labels(name="start" * 40))
    page.set_viewport_size({"width": 390, "height": 860})
    page.reload()
    page.get_by_text("The images on which they differ").click()
    expect(shown.locator("dt").last).to_be_visible()
    assert inaccessible(page) == []  # nor is it wider than the window
    story.house.store.label(story.succeeded.job, "local", Labels(name="the start"))
