"""What a stranger found wrong or misleading on the page, each fault as it was. One server, no worker."""

import base64
import re
import struct
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from browsing import HOSTILE, LOOKS, Open, inaccessible, sync_api
from serving import Server
from story import SET
from story_of_faults import Faults

from tcnn_jobs.model.jobs import Upload

expect = sync_api.expect


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    return Faults(tmp_path_factory.mktemp("trust") / "home")


def test_an_evaluation_by_size_corruption_and_class(server: Server, story: Faults, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.compared.job}")
    heat = page.get_by_role("region", name="by corruption and severity").get_by_role("row")
    expect(heat).to_have_count(3)
    assert heat.nth(1).get_by_role("cell").all_inner_texts() == ["80%", "60%", "40%", "60%"]
    expect(page.get_by_role("img", name=re.compile("Accuracy by resolution: .* from 32% to 64%"))).to_be_visible()
    worst = page.get_by_role("region", name="Accuracy by class").get_by_role("row").nth(1)
    expect(worst).to_contain_text(HOSTILE)
    expect(worst).to_contain_text("40%")
    expect(page.get_by_text("20 images of")).to_contain_text("those held out from training")
    matrix = page.get_by_role("region", name="Confusions").first.get_by_role("row")
    assert [matrix.nth(row).get_by_role("cell").all_inner_texts() for row in (1, 2)] == [["9", "1"], ["6", "4"]]
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page, contrast=True) == [], (width, scheme)


@pytest.fixture
def uploaded(story: Faults) -> Iterator[Upload]:
    with story.with_a_data_set() as data:
        yield data


@pytest.mark.slow  # forms are filled in test_frame.py and test_conversion_form.py
def test_the_form_of_an_evaluation(server: Server, story: Faults, open_page: Open, uploaded: Upload) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.succeeded.job}")
    page.get_by_role("link", name="Evaluate it").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value(story.succeeded.job)
    page.get_by_label("Compare with timm models").fill("test_resnet")
    page.get_by_label("Data set").select_option(uploaded.id)
    page.get_by_label("Corruptions").select_option("some")
    page.get_by_label("Image sizes").fill("160, x")
    page.get_by_role("button", name="Evaluate").click()
    expect(page.locator("p.error:visible")).to_contain_text("whole numbers of pixels")
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)
    page.get_by_label("Image sizes").fill("160, 224")
    page.get_by_label("Image limit").fill("100")
    page.get_by_role("button", name="Evaluate").click()
    expect(page.locator(".titled .badge")).to_contain_text("Queued")
    with server.client(None) as client:
        made = client.get(f"/jobs/{page.url.rpartition('/')[2]}").json()
    asked = made["request"]["config"]
    assert made["request"]["job"] == story.succeeded.job and made["request"]["dataset"] == uploaded.id
    assert (asked["sizes"], asked["limit"], asked["per_class"], asked["examples"]) == ([160, 224], 100, True, 24)
    assert [one["model"] for one in made["request"]["against"]] == ["test_resnet"]
    assert len(asked["corruptions"]) == 4
    page.go_back()
    expect(page.get_by_label("Image sizes")).to_have_value("160, 224")
    expect(page.get_by_label("Data set")).to_have_value(uploaded.id)
    expect(page.get_by_label("Compare with timm models")).to_have_value("test_resnet")
    page.get_by_label("A timm model").check()
    page.get_by_role("combobox", name="timm name").fill("test_vit")
    page.get_by_role("button", name="Evaluate").click()
    expect(page.locator(".titled .badge")).to_contain_text("Queued")
    with server.client(None) as client:
        other = client.get(f"/jobs/{page.url.rpartition('/')[2]}").json()
    assert other["request"]["model"] == "test_vit" and "job" not in other["request"]
    for job in (made, other):
        story.house.store.cancel(job["id"])  # so that no job has the data set any more


@pytest.mark.slow
def test_images_on_which_models_differ_open_in_the_explorer(server: Server, story: Faults, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.succeeded.job}")
    page.get_by_text("The images on which they differ").click()
    link = page.locator(".changed a").first
    name = link.inner_text()
    with page.expect_request(re.compile("attention/images")) as sent:
        link.click()
    asked = parse_qs(urlsplit(sent.value.url).query)
    assert asked == {"dataset": [SET], "file": [name]} and name.endswith(".png")
    expect(page.get_by_role("alert")).to_contain_text("no uploaded data set of this id")  # none was uploaded here


@pytest.mark.slow
def test_numbers_of_results(server: Server, story: Faults, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.evaluated.job}")
    result = page.locator(".card", has=page.get_by_role("heading", name="Result"))
    expect(result).to_contain_text("66.7%")
    expect(page.get_by_text("trained on these images")).to_be_visible()
    by_model = page.get_by_role("region", name="Accuracy by model")
    expect(by_model).to_contain_text("test_resnet")
    expect(by_model.locator(".tag")).to_have_text("trained on these")
    expect(page.get_by_text("6 images of")).to_contain_text("split val")
    assert inaccessible(page) == []
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    expect(page.locator(".drift")).to_contain_text("on noise")
    expect(page.locator(".drift")).not_to_contain_text("same prediction")
    page.goto(f"{server.url}/#/jobs/{story.steady.job}")
    expect(page.locator(".drift")).to_contain_text("10% of 8 real images get the same prediction")
    spans = page.get_by_role("img", name=re.compile("^Spans"))
    expect(spans).to_be_visible()
    labels = spans.locator(".grid text").all_text_contents()
    assert 3 <= len(labels) <= 6 and all(len(label) <= 5 for label in labels), labels
    edge = page.evaluate("[...document.querySelectorAll('.chart .grid text')].map(t => t.getBBox().x)")
    assert min(edge) >= 0  # no digit is cut off
    steps = spans.locator(".tick").all_text_contents()
    assert steps == ["1,000", "2,000", "3,000", "4,000", "5,000"] or len(steps) <= 4, steps
    assert all(int(step.replace(",", "")) % 500 == 0 for step in steps), steps


@pytest.mark.slow  # as one that succeeded is cloned, in test_runs.py
def test_a_failed_job_is_edited_and_run_again(server: Server, story: Faults, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.edited.job}")
    page.get_by_role("link", name="Edit and run again").click()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("resnet34")
    expect(page.get_by_label("Head width")).to_have_value("16")
    expect(page.get_by_label("Epochs")).to_have_value("3")
    expect(page.get_by_label("Data set", exact=True)).to_have_value(SET)  # though it is not on the list
    expect(page.get_by_label("Settings, one NAME=VALUE per line")).to_have_value("mixup=0\nconversion.seed=4")
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    expect(page.get_by_role("heading", name="test_resnet")).to_be_visible()
    expect(page.get_by_role("link", name="Edit and run again")).to_have_count(0)


@pytest.mark.slow
def test_the_page_speaks_of_jobs_and_not_of_commands(server: Server, story: Faults, open_page: Open) -> None:
    """What a task says in the words of the command line, a job's page says in its own; no label is odd."""
    page = open_page(f"{server.url}/#/jobs/{story.advised.job}")
    expect(page.locator(".standing, .notice").first).to_contain_text("resume the job")
    for address in ("", f"jobs/{story.advised.job}", f"jobs/{story.cancelled.id}", f"jobs/{story.succeeded.job}"):
        page.goto(f"{server.url}/#/{address}")
        expect(page.locator(".jobs li, .events li").first).to_be_visible()
        said = page.locator("#main").inner_text()
        assert not re.search(r"(?<![\w-])--[a-z]", said), said
        for odd in ("What was asked for", "Somebody cancelled", "Authorization:"):
            assert odd not in said
        assert "now" not in [line.strip() for line in said.splitlines()]


@pytest.mark.slow
def test_names_as_long_as_they_may_be(server: Server, story: Faults, open_page: Open) -> None:
    page = open_page(server.url)
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        for address in ("", f"jobs/{story.long.job}"):
            page.goto(f"{server.url}/#/{address}")
            expect(page.get_by_text("a_model_with_a_name").first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, address)
    page.goto(f"{server.url}/docs")
    expect(page.locator("#docs")).to_have_css("filter", re.compile(r"invert\(0\.9"))


@pytest.mark.slow  # two pages beside each other
def test_colours_of_attention_mean_the_same_everywhere(server: Server, story: Faults, open_page: Open) -> None:
    page = open_page("about:blank")
    side, heads = 6, 2
    layer = {"name": "conv2", "heads": heads, "kernel": None, "size": [side, side], "queries": [side, side],
             "padding": [0, 0, 0, 0], "first": [0, 0], "stride": [1, 1], "gate": [0.0, 1.0],
             "temperature": 1.0}  # fmt: skip
    flat, peaked = [1 / side**2] * side**2, [1.0] + [0.0] * (side**2 - 1)
    packed = base64.b64encode(struct.pack(f"<{2 * side**2}f", *flat, *peaked)).decode()
    maps = {**{name: layer[name] for name in ("name", "size", "padding", "gate")}, "query": [0, 0], "content": packed,
            "positional": packed}  # fmt: skip
    dot = "data:image/gif;base64,R0lGODlhAQABAIAAAP///wAAACH5BAAAAAAALAAAAAABAAEAAAICRAEAOw=="
    seen = {"id": "img_0", "width": 1, "height": 1, "picture": dot, "truth": "cat", "layers": [layer],
            "says": [{"label": "tench", "share": 0.9}]}  # fmt: skip
    page.route(re.compile("/attention/images"), lambda route: route.fulfill(status=201, json=seen))
    page.route(
        re.compile("/attention/img_0"), lambda route: route.fulfill(json={"layers": [maps], "says": seen["says"]})
    )
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}/attention")
    tiles = page.locator(".tile canvas")
    expect(tiles).to_have_count(heads)
    expect(page.get_by_text("True class: cat. The model says: tench 90%")).to_be_visible()
    expect(page.locator(".key-to")).to_contain_text("uniform attention, 2.8%")
    expect(page.get_by_label("Every map on its own scale")).not_to_be_checked()
    bar, mark = (page.locator(f".key-to {one}").bounding_box() for one in (".bar-of", ".uniform"))
    share = (mark["x"] + mark["width"] / 2 - bar["x"]) / bar["width"]  # of the scale, which is of roots
    assert share == pytest.approx(1 / side, abs=0.03)
    orange = "c => { const p = c.getContext('2d').getImageData(60, 60, 1, 1).data; return p[0] - p[2]; }"
    pale = tiles.first.evaluate(orange)
    tiles.nth(1).click()
    page.get_by_text("Position", exact=True).click()
    page.get_by_role("application").click(position={"x": 100, "y": 100})
    page.wait_for_url(re.compile("image=drawn&layer=conv2&head=2&part=positional&y=0[.](?!500)"))
    asked = page.url.rpartition("&y=")[2]
    with page.expect_request(re.compile("attention/img_0.y=" + asked.replace("&", "[0-9]*&"))):
        page.reload()
    expect(page.locator(".tile").nth(1)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("Position", exact=True)).to_be_checked()
    page.get_by_text("Combined", exact=True).click()
    page.get_by_label("Every map on its own scale").check()
    expect(page.locator(".key-to")).to_contain_text("cannot be compared")
    strong = tiles.first.evaluate(orange)
    assert 0 < pale < 0.4 * strong, (pale, strong)
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)


def test_a_run_has_one_colour_in_all_charts(server: Server, story: Faults, open_page: Open) -> None:
    """Whether or not those before it have anything in a chart."""
    page = open_page(f"{server.url}/#/compare?jobs={story.failed.job},{story.steady.job},{story.succeeded.job}")
    expect(page.get_by_role("img", name=re.compile("^Validation loss"))).to_be_visible()
    keys = page.locator(".legend button").filter(has_text="test_resnet")
    expect(keys).to_have_count(5)
    assert len({key.get_attribute("class") for key in keys.all()}) == 1
