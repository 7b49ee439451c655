"""Names as people give them to files, models and classes: in letters that run from right to left, and very long."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from browsing import HEBREW, PLACES, Open, sync_api
from sampled import sampled
from serving import Server
from story import Story

from tcnn_jobs.model.jobs import Artifact, Claim, Kind, Result, Upload
from tcnn_jobs.model.naming import Labels

expect = sync_api.expect
ORDINARY = "food_101_resized_256_train_val_split_v2.tar.gz"
LONG = "a" * 180
"""Without a place to break it at."""
SHOWN = """(text) => {
    const line = document.createElement("div");
    line.textContent = text;
    document.getElementById("main").replaceChildren(line);
}"""
"""What an option says, on a page that can be measured."""


WIDER = """() => {
    const edge = document.documentElement.clientWidth;
    const beyond = (one) => one.getBoundingClientRect().right > edge + 1 && !one.closest(".scroll, svg, .unseen");
    const all = [...document.querySelectorAll("main *, dialog *")];
    return document.documentElement.scrollWidth > edge || document.querySelector("dialog[open]")
        ? all.filter(beyond).map((one) => `${one.tagName} ${one.className}: ${one.textContent.slice(0, 40)}`) : [];
}"""
"""What makes a page or a dialog wider than the window."""

OPENED = """() => {
    for (const one of document.querySelectorAll("main details")) one.open = true;
    for (const one of document.querySelectorAll(".legend")) one.remove();
}"""
"""All that can be opened; legends of charts are looked at in test_charts.py."""


class Called(Story):
    """For every name a data set, a model that was trained on it, and what an evaluation of that has measured."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.made = {name: self._all_of(name, place) for place, name in enumerate((HEBREW, ORDINARY, LONG))}

    def _all_of(self, name: str, place: int) -> tuple[str, str, str]:
        data = f"ds_{place + 1:024}"
        self.house.store.add_upload(Upload(
            id=data, owner="local", kind="dataset", name=name, path=f"datasets/{data}", size=1, sha256="0" * 64,
            details={"classes": [name], "images": 48, "splits": {}}))  # fmt: skip
        request = {"model": "test_resnet", "finetune": {"dataset": data}}
        model = self._succeed(priority=100, request=request)
        self.house.store.label(model.job, "local", Labels(name=name))
        return data, model.job, self._evaluate(name, data, model).job

    def _evaluate(self, name: str, data: str, model: Claim) -> Claim:
        """Of two models at two sizes."""
        wrong = {"file": f"{name}/0.png", "target": name, "answer": name, "confidence": 0.349}
        turned = {"file": f"{name}/1.png", "target": name, "before": name, "before_confidence": 0.9, "after": name,
                  "after_confidence": 0.8}  # fmt: skip
        scores = {name: {"images": 48, "right": 20, "top1": 0.4}}
        clean = {"images": 48, "right": 20, "top1": 0.4, "top5": None, "loss": 1.0, "per_class": scores,
                 "confusions": [{"target": name, "answer": name, "images": 28}]}  # fmt: skip
        fog = {"top1": 0.3, "severities": {"1": {"top1": 0.3}}}
        rows = [{"model": one, "height": size, "width": size, "clean": clean, "corruptions": {"fog": fog},
                 "mistakes": [wrong]} for one in ("resnet18", model.job) for size in (32, 64)]  # fmt: skip
        change = {"of": model.job, "over": "resnet18", "height": 32, "width": 32, "newly_right": 1, "newly_wrong": 0,
                  "top1": {"mean": 0.1, "low": 0.0, "high": 0.2}, "right_images": [turned],
                  "wrong_images": []}  # fmt: skip
        whole = {"data": data, "split": "val", "images": 48, "held_out": True, "trained_on": [model.job],
                 "rows": rows, "differences": [change], "changes": [change]}  # fmt: skip
        asked = {"job": model.job, "dataset": data, "config": {"examples": 24}}
        claim = self._taken(priority=100, kind=Kind.EVALUATE, request=asked)
        content = json.dumps(whole).encode()
        folder = self.house.home.attempt(claim.job, claim.number)
        folder.mkdir(parents=True)
        (folder / "evaluation.json").write_bytes(content)
        file = Artifact(name="evaluation.json", path=f"{claim.job}/{claim.number}/evaluation.json", size=len(content),
                        sha256=hashlib.sha256(content).hexdigest())  # fmt: skip
        self.house.store.finish(claim, Result(files=(file,), metrics=whole))
        return claim


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Called:
    return Called(tmp_path_factory.mktemp("called") / "home")


def assert_in_order(element: Any, *words: str) -> None:
    expect(element).to_be_visible()
    assert element.evaluate(PLACES, list(words)) == list(words)


def test_numbers_stay_with_their_words_beside_names_from_right_to_left(
    server: Server, story: Called, open_page: Open
) -> None:
    data, _, evaluation = story.made[HEBREW]
    page = open_page(f"{server.url}/#/jobs/{evaluation}")
    main = page.locator("main")
    sized = (HEBREW, "32", "pixels")
    assert_in_order(main.locator("h2", has_text=HEBREW).filter(has_text="Corruptions").first, "Corruptions", *sized)
    assert_in_order(main.locator("h2", has_text=HEBREW).filter(has_text="Confusions").first, "Confusions", *sized)
    by_class = page.get_by_role("region", name="Accuracy by class")
    assert_in_order(by_class.get_by_role("columnheader").filter(has_text=HEBREW).first, *sized)
    assert_in_order(main.locator(".differences li"), *sized, "vs.", "resnet18", "+10.0")
    page.get_by_text("The images on which they differ, and those that each gets wrong").click()
    assert_in_order(main.locator("h3", has_text="newly right"), *sized, "newly right", "1")
    images = main.locator(".changed li")
    assert_in_order(images.first.locator("dl > div").nth(1), "resnet18", HEBREW, "90%")
    assert_in_order(images.last.locator("dl > div").nth(1), "Predicted as", HEBREW, "35%")
    assert_in_order(images.first.locator("code"), HEBREW, "1.png")
    expect(images.first.locator("code")).to_have_text(f"{HEBREW}/1.png")  # as it is copied
    expect(main.locator("h3", has_text="Difference from")).to_have_text("Difference from resnet18")  # without marks
    for form in ("finetune", "evaluate"):
        page.goto(f"{server.url}/#/{form}")
        option = page.locator(f"option[value={data}]")
        expect(option).to_have_count(1)
        page.evaluate(SHOWN, option.text_content())
        assert_in_order(main.locator("div"), HEBREW, "48", "images", "1", "class")


@pytest.mark.parametrize("name", sampled([ORDINARY, LONG], [LONG]), ids=["ordinary", "long"])
def test_no_page_is_wider_than_the_window(server: Server, story: Called, open_page: Open, name: str) -> None:
    """Also on a phone; 320 pixels are those of a window of 1280 at 400 %."""
    data, model, evaluation = story.made[name]
    page = open_page(server.url)
    main = page.locator("main")
    found = {}
    for address, shown in (
        ("", ".jobs li"), (f"jobs/{evaluation}", ".heat"), (f"jobs/{model}", ".before-after"), ("runs", ".runs td"),
        (f"compare?jobs={model},{evaluation}", ".compared"), (f"finetune?dataset={data}", "form.submit"),
        ("data", ".listing td"), (f"data/{data}", ".users li"), (f"evaluate?from={evaluation}", "form.submit .card"),
        (f"jobs/{model}/attention", ".explorer"),
    ):  # fmt: skip
        page.goto(f"{server.url}/#/{address}")
        expect(main.locator(shown).first).to_be_visible()
        page.evaluate(OPENED)
        if address == f"jobs/{evaluation}":
            expect(main.locator(".changed li").first).to_be_visible()
        for width in (1280, 390, 320):
            page.set_viewport_size({"width": width, "height": 860})
            found[address, width] = page.evaluate(WIDER)
    page.goto(f"{server.url}/#/jobs/{model}")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text(name)
    found["dialog", 320] = page.evaluate(WIDER)
    assert {at: wide for at, wide in found.items() if wide} == {}
