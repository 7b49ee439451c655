"""Forms of jobs: what is wrong stands beside its field before there is a job, and nothing that was typed is lost."""

import re

import pytest
from browsing import Open, inaccessible, sync_api
from serving import Server
from story import SET, Story

from tcnn.errors import StorageError
from tcnn_jobs.model.jobs import Failure, Upload
from tcnn_jobs.store import Store

expect = sync_api.expect


def test_forms_tell_all_errors_and_forget_nothing(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/finetune")
    settings = page.get_by_label("Settings, one NAME=VALUE per line")
    page.get_by_text("All other settings").click()
    settings.fill("size")
    page.get_by_label("An uploaded checkpoint").check()
    page.get_by_role("button", name="Fine-tune").click()
    expect(page.locator(".error:visible")).to_have_count(3)  # what to begin with, the data set, the settings
    settings.fill("size=64")
    expect(settings).not_to_have_attribute("aria-invalid", "true")  # it is no longer what was wrong
    expect(page.locator(".error:visible")).to_have_count(2)
    page.get_by_label("A timm model").check()
    model = page.get_by_role("combobox", name="Model")
    model.fill("resnet")
    expect(page.get_by_role("option").first).to_contain_text("resnet50")
    expect(page.get_by_role("option").first).to_contain_text("25.6\u00a0M")
    model.press("Escape")
    page.get_by_label("Epochs").fill("7")
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.locator(".jobs li").first).to_be_visible()
    page.go_back()
    expect(page.get_by_label("Epochs")).to_have_value("7")
    expect(model).to_have_value("resnet")
    expect(model).to_be_visible()


def test_advice_of_the_server_names_pages(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/static/dashboard/base.css")  # beside the modules
    said = page.evaluate(
        """import('./server/http.js').then(({ Problem }) => [
            "no data set 'ds_1'; POST /datasets uploads one", "no job 'x'; GET /jobs lists yours",
            "x: no file of this name; GET /jobs/job_1/checkpoints lists its files",
            "expected a name; GET /models lists them",
        ].map((message) => new Problem(422, { detail: message, errors: [{ field: "x", message }] }))
            .map((problem) => [problem.message, problem.fields[0].message]))"""
    )
    assert said == [[words, words] for words in (
        "no data set 'ds_1'; the Data page uploads one", "no job 'x'; the Runs page lists yours",
        "x: no file of this name; the job’s page lists its files", "expected a name; the Model field lists them",
    )]  # fmt: skip


def test_advice_of_a_job_that_failed_names_pages(server: Server, story: Story, open_page: Open) -> None:
    job = story._taken(priority=100, request={"model": "resnet34"}, max_attempts=1)
    said = "no weights of it are to be had; name weights of your own (POST /weights), or set pretrained to false"
    story.house.store.fail(job, Failure(code="unknown_model", message=said))
    page = open_page(f"{server.url}/#/jobs/{job.job}")
    expect(page.locator(".events").get_by_text("(the Checkpoints page)")).to_be_visible()
    expect(page.locator(".standing")).to_contain_text("weights of your own (the Checkpoints page), or set")
    expect(page.get_by_text("POST /weights")).to_have_count(0)


@pytest.mark.slow  # one more form of fields that the others have
def test_how_an_untrained_transformer_begins_is_chosen(server: Server, story: Story, open_page: Open) -> None:
    details = {"classes": ["a", "b"], "images": 900, "splits": {"train": 800, "val": 100}}
    data = "ds_00000000000000000000beef"
    story.house.store.add_upload(
        Upload(id=data, owner="local", kind="dataset", name="p", path=data, size=1, sha256="0" * 64, details=details)
    )
    page = open_page(f"{server.url}/#/finetune?dataset={data}")
    page.get_by_label("A timm model").check()
    page.get_by_role("combobox", name="Model").fill("convit_tiny")
    page.get_by_role("combobox", name="Model").press("Escape")
    expect(page.get_by_label("Data set", exact=True)).to_have_value(data)
    page.get_by_text("All other settings").click()
    init = page.get_by_label("Initialisation of an untrained transformer")
    init.select_option("impulse")
    page.get_by_label("Settings, one NAME=VALUE per line").fill("convert=false")
    page.get_by_role("button", name="Fine-tune").click()
    expect(page.locator(".error:visible")).to_contain_text("convit_tiny takes convolution or random, found impulse")
    expect(init).to_have_attribute("aria-invalid", "true")
    init.select_option("convolution")
    page.get_by_role("button", name="Fine-tune").click()
    expect(page.locator(".error:visible")).to_contain_text("the model has weights, which an initialisation would lose")
    page.get_by_label("Pretrained weights").uncheck()
    page.get_by_role("button", name="Fine-tune").click()
    expect(page.get_by_role("heading", name="convit_tiny")).to_be_visible()
    job = page.url.rpartition("/")[2]
    assert story.house.store.get(job).request["config"] == {"init": "convolution", "convert": False}
    page.goto(f"{server.url}/#/finetune?from={job}")
    expect(init).to_have_value("convolution")
    expect(init).to_be_visible()
    expect(page.get_by_label("Settings, one NAME=VALUE per line")).to_have_value("convert=false")


@pytest.mark.slow
def test_the_model_that_is_meant_is_offered_first(server: Server, open_page: Open) -> None:
    """Exactly so named, then names that begin so, then the widely used; none that cannot be converted."""
    page = open_page(f"{server.url}/#/transform")
    model, options = page.get_by_role("combobox", name="Model"), page.get_by_role("option")
    for query, first in (
        ("resnet", ["resnet50", "resnet18", "resnet34"]),
        ("resnet101", ["resnet101", "resnet101_clip"]),
        ("50d", ["resnet50d", "cspresnet50d"]),
        ("convnext", ["convnext_tiny", "convnext_small", "convnext_base", "convnextv2_tiny", "convnext_atto"]),
        ("vgg1", ["vgg16", "vgg11"]),
    ):
        model.fill(query)
        expect(options.first.locator("span").first).to_have_text(first[0])
        assert options.locator("span:first-child").all_inner_texts()[: len(first)] == first
    model.fill("beit")
    expect(page.get_by_text("No convertible model has this in its name.")).to_be_visible()
    model.fill("resnet50")
    expect(options.first.locator("span").first).to_have_text("resnet50")
    expect(options.first).to_contain_text("25.6\u00a0M")
    model.press("ArrowDown")
    model.press("Enter")
    expect(model).to_have_value("resnet50")


@pytest.mark.slow  # as test_frame.py's errors, which stand beside their fields
def test_what_the_models_list_knows_is_refused_in_the_form(server: Server, open_page: Open) -> None:
    """Before there is a job: a stage, a convolution and heads that the model has not."""
    page = open_page(f"{server.url}/#/transform")
    page.get_by_role("combobox", name="Model").fill("resnet18")
    page.get_by_role("combobox", name="Model").press("Escape")
    page.get_by_text("More conversion options").click()
    with server.client(None) as client:
        before = client.get("/jobs?limit=1").json()["data"]
        for label, value, words in (
            ("Stage", "9", "resnet18 has 5 stages, found 9"),
            ("Head width", "100000", "expected at most 512"),
            ("Convolutions by name", "layer9", "the whole name of no convolution of resnet18"),
        ):
            field = page.get_by_label(label, exact=True)
            field.fill(value)
            page.get_by_role("button", name="Convert", exact=True).click()
            expect(field).to_have_accessible_description(re.compile(re.escape(words)))
            expect(field).to_be_focused()
            field.fill("")
        assert client.get("/jobs?limit=1").json()["data"] == before


def _add(story: Story, identifier: str, splits: dict[str, int]) -> str:
    details = {"classes": ["a", "b"], "images": 900, "splits": splits}
    story.house.store.add_upload(
        Upload(id=identifier, owner="local", kind="dataset", name=identifier, path=identifier, size=1,
               sha256="0" * 64, details=details)
    )  # fmt: skip
    return identifier


def test_what_is_older_than_the_list_is_chosen_all_the_same(server: Server, story: Story, open_page: Open) -> None:
    """And not another job, the newest one, in its place."""
    for _ in range(101):
        story.house.store.cancel(story.house.submit().id)
    page = open_page(f"{server.url}/#/finetune?job={story.succeeded.job}")
    expect(page.get_by_label("Job", exact=True)).to_have_value(story.succeeded.job)
    page.goto(f"{server.url}/#/evaluate?job={story.succeeded.job}&dataset=ds_{'5' * 24}")
    expect(page.get_by_label("Data set", exact=True)).to_have_value(f"ds_{'5' * 24}")


def test_a_share_is_held_out_only_if_it_was_asked_for(server: Server, story: Story, open_page: Open) -> None:
    """Of the first data set of the list a tenth would be; the one that is chosen then has validation images."""
    divided = _add(story, f"ds_{'6' * 24}", {"train": 800, "val": 100})
    whole = _add(story, f"ds_{'7' * 24}", {})
    page = open_page(f"{server.url}/#/finetune")
    data, share = page.get_by_label("Data set", exact=True), page.get_by_label("Held out for validation")
    expect(data).to_have_value(whole)
    expect(share).to_have_attribute("placeholder", "0.1")
    data.select_option(divided)
    expect(share).to_have_attribute("placeholder", "none: it has its own")
    expect(share).to_have_value("")


def test_a_list_that_is_refused_can_be_asked_for_again(
    server: Server, story: Story, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says why, and what was written meanwhile stays."""
    data = _add(story, f"ds_{'8' * 24}", {})

    def full(*_: object) -> None:
        raise StorageError("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "uploads", full)
        page = open_page(f"{server.url}/#/finetune?dataset={data}")
        said = page.get_by_role("alert").filter(has_text="The list could not be loaded: no space is left")
        expect(said).to_have_count(1)  # those of checkpoints and weights are not in view
        page.get_by_label("Epochs").fill("7")
        again = said.get_by_role("button", name="Try again")
        with page.expect_response(re.compile("/datasets[?]")):
            again.press("Enter")
        expect(again).to_be_focused()
        assert inaccessible(page) == []
    again.press("Enter")
    control = page.get_by_label("Data set", exact=True)
    expect(control.locator("option:checked")).to_contain_text("900 images")
    expect(control).to_have_value(data)
    expect(control).to_be_focused()
    expect(said).to_have_count(0)
    expect(page.get_by_label("Epochs")).to_have_value("7")


LARGE = 2**53 + 1
"""The least whole number that JavaScript has none of: it would take its neighbour."""


def test_a_whole_number_stays_what_it_is(server: Server, story: Story, open_page: Open) -> None:
    """In a field, among all other settings, on the job's page, in its copy, and in the request as text."""
    data = Upload(id="ds_" + "4" * 24, owner="local", kind="dataset", name="large.zip", path="x", size=1,
                  sha256="0" * 64, details={"classes": ["cat", "dog"], "images": 600, "splits": {}})  # fmt: skip
    story.house.store.add_upload(data)
    page = open_page(f"{server.url}/#/transform")
    page.get_by_role("combobox", name="Model").fill("resnet18")
    page.get_by_role("combobox", name="Model").press("Escape")
    page.get_by_label("Pretrained weights").uncheck()
    page.get_by_text("More conversion options").click()
    seed = page.get_by_label("Seed")
    seed.fill("9" * 20)
    page.get_by_label("Fine-tune it in the same job").check()
    page.get_by_label("Data set", exact=True).select_option(data.id)
    page.get_by_text("All other settings").click()
    page.get_by_label("Settings, one NAME=VALUE per line").fill(f"seed={LARGE}")
    convert = page.get_by_role("button", name="Convert")
    convert.click()
    expect(seed).to_have_accessible_description(re.compile("less than 9223372036854775808"))
    seed.fill(str(LARGE))
    for _ in range(2):
        convert.click()
        facts = page.locator(".request")
        expect(facts.get_by_text(str(LARGE))).to_have_count(2)
        request = story.house.store.list(limit=1)[0][0].request
        assert request["seed"] == LARGE and int(request["finetune"]["config"]["seed"]) == LARGE
        page.get_by_role("link", name="Clone and edit").click()
        expect(seed).to_have_value(str(LARGE))
    job = story.house.store.list(limit=1)[0][0]
    page.goto(f"{server.url}/#/evaluate?from={job.id}")  # where a request is edited as it is
    text = page.get_by_label("Request")
    expect(text).to_have_value(re.compile(rf'"seed": "{LARGE}"'))
    story.house.store.cancel(job.id)


def test_a_setting_by_any_name_is_a_setting(server: Server, story: Story, open_page: Open) -> None:
    """It goes to the server, which knows it or not, and to nothing else of the page."""
    page = open_page(f"{server.url}/#/finetune?job={story.succeeded.job}&dataset={SET}")
    settings = page.get_by_label("Settings, one NAME=VALUE per line")
    page.get_by_text("All other settings").click()
    for line, name in (("__proto__.polluted=1", "__proto__"), ("constructor.prototype.polluted=1", "constructor")):
        settings.fill(line)
        page.get_by_role("button", name="Fine-tune").click()
        expect(settings).to_have_accessible_description(re.compile(f"{name}.*no such"))
        assert page.evaluate("({}).polluted") is None
    settings.fill("teacher=toString")  # a word that is the name of something, too
    with page.expect_request("**/finetune") as sent:
        page.get_by_role("button", name="Fine-tune").click()
    assert sent.value.post_data_json["config"] == {"teacher": "toString"}


def test_a_model_to_compare_with_is_refused_where_it_was_given(server: Server, story: Story, open_page: Open) -> None:
    """One of the list, one of those that were written; the second place in the request, or the first."""
    data = _add(story, f"ds_{'9' * 24}", {})
    page = open_page(f"{server.url}/#/evaluate?job={story.succeeded.job}&dataset={data}")
    expect(page.get_by_label("Data set", exact=True)).to_have_value(data)
    listed, written = page.get_by_label("Compare with", exact=True), page.get_by_label("Compare with timm models")
    button, wrong = page.get_by_role("button", name="Evaluate", exact=True), page.locator(".error:not(:empty)")
    for names in ("resnet18, nope_model", "nope_model"):
        written.fill(names)
        button.click()
        expect(written).to_have_accessible_description(re.compile(r"commas\. nope_model: no timm model of this name"))
        expect(written).to_be_focused()
        expect(wrong).to_have_count(1)
    written.fill("resnet18")
    expect(wrong).to_have_count(0)
    gone = f"job_{'e' * 24}"
    listed.evaluate("(list, id) => list.append(new Option(id, id, true, true))", gone)
    button.click()
    expect(listed).to_have_accessible_description(re.compile(f"or none\\. .*no job '{gone}'"))
    expect(wrong).to_have_count(1)
