"""What a job's page gives to take away and to read on: downloads, its report, single images, ids on one line."""

import functools
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
from browsing import HOSTILE, LOOKS, Open, inaccessible, sync_api
from PIL import Image
from serving import Server, ask_here
from story import PIXEL, SET, Story

from tcnn.analysis.pages.report import report
from tcnn.config import ConversionConfig
from tcnn.evaluation.comparing.before_after import change, estimate
from tcnn.evaluation.comparing.paired import PairedDifference
from tcnn.evaluation.comparing.report import Comparison, Row
from tcnn.evaluation.comparing.single_images import Mistake, ModelChange
from tcnn.evaluation.outcomes import Outcomes
from tcnn.evaluation.scores import Evaluation, paired_means
from tcnn.workflows.pipeline import convert_to_file
from tcnn_api.routes.jobs import report as making
from tcnn_jobs.model.jobs import Artifact, Claim, Kind, Result, Upload

expect = sync_api.expect


class Finished(Story):
    """The story, a run with a real checkpoint of random weights, and an evaluation that names images."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.compared = self._evaluate()

    @functools.cached_property
    def random(self) -> Claim:
        """The run with a checkpoint: tests that do not look at it do not wait for its conversion."""
        root, one = self.root, ConversionConfig(target="layer4.0.conv1")
        made = convert_to_file("test_resnet.r160_in1k", root / "made.safetensors", one, pretrained=False)
        assert made.verification is not None
        claim = self._succeed(verification=made.verification.model_dump(mode="json"), priority=100)
        run = self.house.home.attempt(claim.job, claim.number) / "run"
        (root / "made.safetensors").replace(run / "best.safetensors")
        record = {"model": "test_resnet.r160_in1k", "pretrained": False, "data": "pets", "val": None,
                  "class_names": ["cat"], "config": {"val_split": 0.2}}  # fmt: skip
        (run / "config.json").write_text(json.dumps(record))
        return claim

    def _evaluate(self) -> Claim:
        """Of two models on six images; the second is right on one more, and wrong on none that the first knew."""
        names = [HOSTILE, "cat", "dog"]
        targets = numpy.array([0, 0, 1, 1, 2, 2])
        said = [numpy.array([0, 1, 1, 1, 2, 0]), numpy.array([0, 0, 1, 1, 2, 0])]
        before, after = (Outcomes(numpy.arange(6), targets, one, numpy.linspace(0.5, 1, 6)) for one in said)
        files = [f"{names[target]}/{number}.png" for number, target in enumerate(targets)]
        models = ("resnet18", self.succeeded.job)
        made = change(before, after, names, files)
        made.right_images[0].thumbnail = PIXEL
        rows = [
            Row(model=model, parameters=44_600_000, height=32, width=32, outputs=3, classes=3, corruptions={},
                clean=Evaluation(images=6, right=int(one.right.sum()), top1=float(one.right.mean()), right5=None,
                                 top5=None, loss=1.0, per_class={}, unreadable=[], unreadable_count=0,
                                 images_per_second=9.0),
                mistakes=[Mistake(file=files[at], target=names[targets[at]], answer=names[one.predicted[at]],
                                  confidence=0.9)
                          for at in numpy.flatnonzero(~one.right)],
                corruption_top1=None, corruption_error=None, mce=None, unreadable=[], unreadable_count=0)
            for model, one in zip(models, (before, after), strict=True)
        ]  # fmt: skip
        changed = ModelChange(of=models[1], over=models[0], height=32, width=32, **dict(made))
        apart = PairedDifference(of=models[1], over=models[0], height=32, width=32, top1=changed.top1,
                                 corrupted=estimate(paired_means(numpy.full(6, 0.25), numpy.full(6, 0.5))))  # fmt: skip
        whole = Comparison(data=SET, split="val", layout="folder", images=6, baseline=None, seconds=1.0, rows=rows,
                           differences=[apart], changes=[changed])  # fmt: skip
        asked = {"job": self.succeeded.job, "dataset": SET, "config": {"examples": 24}}
        claim = self._taken(priority=100, kind=Kind.EVALUATE, request=asked)
        content = whole.model_dump_json().encode()
        folder = self.house.home.attempt(claim.job, claim.number)
        folder.mkdir(parents=True)
        (folder / "evaluation.json").write_bytes(content)
        file = Artifact(name="evaluation.json", path=f"{claim.job}/{claim.number}/evaluation.json", size=len(content),
                        sha256=hashlib.sha256(content).hexdigest())  # fmt: skip
        self.house.store.finish(claim, Result(files=(file,), metrics=whole.headline().model_dump(mode="json")))
        return claim


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return Finished(tmp_path_factory.mktemp("files") / "home")


def report_of(page: Any) -> Any:
    """The report's page, opened by its link."""
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="The report").click()
    opened.value.wait_for_load_state()
    return opened.value


def test_the_report_of_an_evaluation(
    server: Server, story: Finished, open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made by a thread, which works in another directory as the process does; those below have the process."""
    monkeypatch.setattr(making, "ask", ask_here)
    monkeypatch.chdir(tmp_path)
    page = open_page(f"{server.url}/#/jobs/{story.compared.job}")
    report = report_of(page)
    assert report.title() == f"{story.compared.job} – tcnn report"
    expect(report.locator("body")).to_contain_text("83.3")
    expect(report.locator("body")).not_to_contain_text(str(story.house.home.root))


@pytest.mark.slow
def test_the_report_says_what_weights_and_which_images(server: Server, story: Finished, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.random.job}")
    told = page.get_by_role("region", name="Errors by precision").get_by_role("row").nth(1).get_by_role("cell").first
    error = float(told.inner_text())
    report = report_of(page)
    row = report.get_by_role("row", name=re.compile("^equivalence, ")).first
    assert 0 < float(row.get_by_role("cell").nth(2).inner_text()) == pytest.approx(error, rel=0.01)
    assert report.title() == f"{story.random.job}: test_resnet with random weights – tcnn report"
    expect(report.locator("body")).to_contain_text("20 % of its images, held out from training")
    expect(report.locator("body")).not_to_contain_text("None")


@pytest.mark.slow  # the report itself is looked at above
def test_a_report_is_dark_in_the_dark_and_fades_where_it_goes_on(
    story: Finished, open_page: Open, tmp_path: Path
) -> None:
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (200, 160), "white").save(tmp_path / "cat" / "0.png")
    made = report(story.house.home.attempt(story.random.job, story.random.number), images=tmp_path)
    page = open_page("about:blank", viewport={"width": 390, "height": 860})
    page.route("http://127.0.0.1:1/report", lambda route: route.fulfill(body=made, content_type="text/html"))
    page.goto("http://127.0.0.1:1/report")
    assert page.locator(".picture > svg.inked").count() and page.locator(".picture > svg:not(.inked)").count()
    for scheme, dark in (("light", False), ("dark", True)):
        page.emulate_media(color_scheme=scheme)
        for drawn in page.locator(".picture:visible").all():
            pixel = Image.open(io.BytesIO(drawn.screenshot())).convert("L").getpixel((12, 6))
            assert isinstance(pixel, int) and (pixel < 60) == dark and (pixel > 200) != dark, (scheme, pixel)
    edges = """[...document.querySelectorAll('.wide, .picture')].filter(one => one.checkVisibility()).map(one => {
        return [one.scrollWidth > one.clientWidth + 1, one.dataset.more, getComputedStyle(one).maskImage !== 'none'];
    })"""
    assert {tuple(one) for one in page.evaluate(edges)} == {(True, "right", True)}
    page.evaluate("document.querySelectorAll('.wide, .picture').forEach(one => one.scrollTo(one.scrollWidth, 0))")
    page.wait_for_timeout(100)
    assert {tuple(one) for one in page.evaluate(edges)} == {(True, "left", True)}
    page.set_viewport_size({"width": 1280, "height": 860})
    page.wait_for_timeout(100)
    assert {tuple(one) for one in page.evaluate(edges)} == {(False, "", False)}  # what fits is whole


@pytest.mark.slow  # a file's name is looked at in test_journeys.py, a download with a key in test_keys.py
@pytest.mark.parametrize("keyed", [False, True])
def test_downloads_have_names_of_their_own(server: Server, story: Finished, open_page: Open, keyed: bool) -> None:
    short = story.succeeded.job.removeprefix("job_")[:6]
    page = open_page(f"{server.url}/#/jobs/{story.succeeded.job}", accept_downloads=True)
    if keyed:  # a server without keys takes any; what is fetched with one is saved by a script
        page.evaluate("import('./static/dashboard/server/http.js').then(one => one.key.set('some-key'))")
        page.goto(f"{server.url}/#/jobs/{story.failed.job}")
        expect(page.get_by_role("link", name="best.safetensors")).to_have_count(0)  # drawn anew, now with the key
        page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    for link, name in (("best.safetensors", f"test_resnet-{short}-best.safetensors"),
                       ("before-after.json", f"test_resnet-{short}-before-after.json"),
                       ("Download all", f"test_resnet-{short}-files.zip")):  # fmt: skip
        with page.expect_download() as waiting:
            page.get_by_role("link", name=link).click()
        assert waiting.value.suggested_filename == name
    with server.client(None) as client:
        whole = client.get(f"/jobs/{story.succeeded.job}/archive").content
    assert Path(waiting.value.path()).read_bytes() == whole


@pytest.mark.slow  # the report of an evaluation is above
def test_single_images_of_an_evaluation(server: Server, story: Finished, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.compared.job}")
    accuracy = page.get_by_role("region", name="Accuracy by model").get_by_role("row")
    expect(accuracy.nth(1)).to_contain_text("30% to 90%")  # four of six
    apart = page.get_by_role("region", name="Accuracy relative to resnet18").get_by_role("row")
    expect(apart.first).to_have_text(re.compile("Model.*Pixels.*Top-1.*Corrupted"))
    expect(apart.nth(1)).to_contain_text("+25.0")
    card = page.locator(".card", has=page.get_by_role("heading", name="Image by image"))
    expect(card.locator(".differences li")).to_contain_text("1 image newly right, 0 newly wrong")
    card.locator("summary").click()
    expect(card.get_by_role("heading", level=3)).to_have_text(
        [
            re.compile("newly right: 1"),
            re.compile("newly wrong: 0"),
            re.compile("resnet18: wrong: 2"),
            re.compile("wrong: 1"),
        ]
    )
    newly = card.locator(".changed").first
    assert newly.locator("dd").all_inner_texts() == [HOSTILE, "cat, 60%", f"{HOSTILE}, 60%"]
    expect(newly.locator("img")).to_have_count(1)
    address = newly.get_by_role("link").get_attribute("href")
    assert address.startswith(f"#/jobs/{story.succeeded.job}/attention?dataset={SET}&file=%3Cimg")
    links = card.locator(".changed").nth(1).get_by_role("link")  # a timm model has no job to look with: the other's
    expect(links).to_have_count(2)
    assert links.first.get_attribute("href").startswith(f"#/jobs/{story.succeeded.job}/attention?dataset={SET}&file=")
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)


@pytest.mark.slow
def test_an_uploaded_checkpoint_is_evaluated(server: Server, story: Finished, open_page: Open) -> None:
    told = {"base_model": "resnet18", "tcnn_version": "0.1", "layers": 3, "parameters": 44_600_000, "trained": False}
    classes: dict[str, Any] = {"classes": ["cat", "dog"], "images": 60, "splits": {}}
    own = {"architecture": "test_resnet", "tensors": 92, "parameters": 375_074, "dtypes": {"float32": 92}}
    for kind, prefix, details in (
        ("checkpoint", "ckpt_", told), ("dataset", "ds_", classes), ("weights", "wts_", own),
    ):  # fmt: skip
        story.house.store.add_upload(
            Upload(id=prefix + "3" * 24, owner="local", kind=kind, name=f"{kind}.zip", path="x", size=1,
                   sha256="0" * 64,
                   details=details)
        )  # fmt: skip
    page = open_page(f"{server.url}/#/evaluate")
    page.get_by_label("An uploaded checkpoint").check()
    expect(page.get_by_label("Checkpoint", exact=True).locator("option")).to_have_text(
        re.compile("checkpoint.zip · resnet18")
    )
    page.get_by_label("Data set").select_option("ds_" + "3" * 24)
    beside = page.get_by_label("Compare with", exact=True)
    itself = beside.locator(f"option[value=ckpt_{'3' * 24}]")
    expect(itself).to_be_disabled()
    page.get_by_label("A job’s model").check()
    expect(itself).to_be_enabled()
    beside.select_option("ckpt_" + "3" * 24)
    page.get_by_label("An uploaded checkpoint").check()
    assert beside.evaluate("select => select.selectedOptions.length") == 0
    page.get_by_role("button", name="Evaluate").click()
    expect(page.locator(".titled .badge")).to_contain_text("Queued")
    with server.client(None) as client:
        asked = client.get(f"/jobs/{page.url.rpartition('/')[2]}").json()["request"]
    assert (asked["checkpoint"], asked["dataset"]) == ("ckpt_" + "3" * 24, "ds_" + "3" * 24)
    assert not asked.get("job") and not asked.get("model")
    page.goto(f"{server.url}/#/evaluate?weights=wts_{'3' * 24}")
    expect(page.get_by_label("Your own weights")).to_have_value("wts_" + "3" * 24)
    expect(page.get_by_role("combobox", name="timm name")).to_have_value("test_resnet")
    page.get_by_label("Compare with", exact=True).select_option("ckpt_" + "3" * 24)
    page.get_by_role("button", name="Evaluate").click()
    expect(page.locator(".titled .badge")).to_contain_text("Queued")
    with server.client(None) as client:
        asked = client.get(f"/jobs/{page.url.rpartition('/')[2]}").json()["request"]
    assert (asked["model"], asked["weights"]) == ("test_resnet", "wts_" + "3" * 24)
    page.goto(f"{server.url}/#/evaluate")
    page.get_by_label("An uploaded checkpoint").check()
    page.get_by_label("Compare with", exact=True).select_option("wts_" + "3" * 24)
    page.get_by_role("button", name="Evaluate").click()
    expect(page.locator(".titled .badge")).to_contain_text("Queued")
    with server.client(None) as client:
        asked = client.get(f"/jobs/{page.url.rpartition('/')[2]}").json()["request"]
    assert asked["against"] == [{"model": "test_resnet", "weights": "wts_" + "3" * 24}]
    page.goto(f"{server.url}/#/checkpoints/ckpt_{'3' * 24}")
    expect(page.locator("#main")).to_contain_text("44.6\u00a0M")


@pytest.mark.slow
def test_ids_stay_on_one_line(server: Server, story: Finished, open_page: Open) -> None:
    page = open_page(server.url, viewport={"width": 390, "height": 860})
    lines = """[...document.querySelectorAll('#main *')]
        .filter(one => one.children.length === 0 && /\\b(job|ds|ckpt)_[0-9a-f]{24}/.test(one.textContent))
        .filter(one => one.getClientRects().length)
        .map(one => [one.textContent, new Set([...(() => { const range = document.createRange();
            range.selectNodeContents(one); return range.getClientRects(); })()]
            .map(box => Math.round(box.top))).size])"""
    for address in ("", f"jobs/{story.succeeded.job}", f"jobs/{story.compared.job}", "runs"):
        page.goto(f"{server.url}/#/{address}")
        expect(page.locator(".jobs li, .titled, tbody tr").first).to_be_visible()
        if "jobs" in address:
            expect(page.locator(".events li").first).to_be_visible()
        found = page.evaluate(lines)
        assert [one for one in found if one[1] > 1 and len(one[0]) < 40] == [], address
        assert found or "jobs" not in address
