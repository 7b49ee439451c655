"""Numbers as people write them into forms: in the digits of their script, with its minus sign, never another number.
And settings, none of which is given in two places.
"""

import re
from typing import Any

import pytest
from browsing import Open, sync_api
from serving import Server
from story import SET, Story

expect = sync_api.expect
READ = """(texts) => import('./components/written.js').then(({ numberIn }) => texts.map(([text, whole]) => {
    try {
        return numberIn(text, { whole });
    } catch (error) {
        return { refused: error.message };
    }
}))"""
"""What forms make of texts, each with whether it is one of whole numbers."""
MEANT = {
    "12": 12, "-1": -1, "+3": 3, "1e3": 1000, "0.1": 0.1, ".5": 0.5, "2.": 2, "1e-4": 0.0001, " 7 ": 7,
    "−1": -1, "－1": -1, "＋2": 2, "１２": 12, "٣": 3, "١٢٫٥": 12.5, "\u061c-٣": -3, "\u200e−1": -1, "५०": 50,
    "𝟙𝟚": 12, "0．5": 0.5,
}  # fmt: skip
LEFT = ["0x10", "0b1", "Infinity", "-Infinity", "1e999", "NaN", "all", "1/46", "0,001", "9007199254740993", "1.2.3"]
"""The server says what it makes of these."""
GROUPED = ["1.000", "-1.000", "12.345.678", "1,000", "1\u202f000", "1\u00a0000", "1 000", "1'000", "1’000", "1,00,000",
           "١٬٠٠٠", "−1.000"]  # fmt: skip
LOCALES = ["en", "de", "de-CH", "fr", "sv", "ar-EG", "fa", "hi-IN-u-nu-deva", "en-IN", "bn", "my", "es", "pl"]
NUMBERS = [-100_000, -1_000, -1, 0, 7, 999, 1_000, 12_345, 1_234_567]


@pytest.fixture
def read(server: Server, open_page: Open) -> Any:
    page = open_page(f"{server.url}/static/dashboard/base.css")  # beside the modules
    return lambda texts, whole: page.evaluate(READ, [[text, whole] for text in texts])


def test_digits_and_signs_of_any_script(read: Any) -> None:
    for whole in (False, True):
        assert dict(zip(MEANT, read(list(MEANT), whole), strict=True)) == MEANT
        assert read(LEFT, whole) == LEFT


def test_thousands_are_no_fractions(read: Any) -> None:
    found = read(GROUPED, True)
    assert all("without separators" in one["refused"] for one in found), found
    assert found[0]["refused"] == "Expected a number without separators, such as 1000; found 1.000."
    assert read(["1.000", "0.125", "1.0000"], False) == [1, 0.125, 1]  # a field of fractions


def test_what_pages_write_is_read_as_it_was_meant_or_refused(read: Any, open_page: Open) -> None:
    written = """([locales, numbers]) => locales.flatMap((locale) =>
        numbers.map((number) => new Intl.NumberFormat(locale).format(number)))"""
    texts = open_page("about:blank").evaluate(written, [LOCALES, NUMBERS])
    found = read(texts, True)
    for number, text, made in zip(NUMBERS * len(LOCALES), texts, found, strict=True):
        assert made == number or (abs(number) >= 1000 and "refused" in made), text


def test_a_form_tells_all_of_them_beside_their_fields(server: Server, story: Story, open_page: Open) -> None:
    """Of a German browser, and opens what they are folded in; then it sends what was meant."""
    page = open_page(f"{server.url}/#/transform", locale="de-DE")
    page.get_by_role("combobox", name="Model").fill("test_resnet")
    page.get_by_role("combobox", name="Model").press("Escape")
    page.get_by_label("Pretrained weights").uncheck()
    page.get_by_text("More conversion options").click()
    seed, limit = page.get_by_label("Seed"), page.get_by_label("Time limit")
    for label, value in (("Stage", "−1"), ("Content heads", "٢"), ("Temperature τ", "1.000"), ("Seed", "1.000")):
        page.get_by_label(label, exact=True).fill(value)
    page.get_by_text("More conversion options").click()
    page.get_by_text("Name and queue").click()
    limit.fill("3.600")
    page.get_by_text("Name and queue").click()
    convert = page.get_by_role("button", name="Convert", exact=True)
    convert.click()
    expect(seed).to_have_accessible_description("Expected a number without separators, such as 1000; found 1.000.")
    expect(limit).to_have_accessible_description(re.compile("such as 3600; found 3.600."))
    expect(seed).to_be_focused()
    expect(limit).to_be_visible()
    limit.fill("3600")
    seed.fill("0x10")
    convert.click()
    expect(seed).to_have_accessible_description(re.compile("0x10"))
    seed.fill("1000")
    convert.click()
    expect(page.locator(".titled .badge")).to_contain_text("Queued")
    asked = story.house.store.list(limit=1)[0][0].request
    expected = {"stage": -1, "content_heads": 2, "temperature": 1, "seed": 1000, "max_runtime": 3600}
    assert {name: asked[name] for name in expected} == expected


def test_sizes_and_a_limit_of_an_evaluation(server: Server, story: Story, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/evaluate?job={story.succeeded.job}&dataset={SET}", locale="de-DE")
    sizes, limit = page.get_by_label("Image sizes"), page.get_by_label("Image limit")
    sizes.fill("64 1.000")
    limit.fill("1.000")
    evaluate = page.get_by_role("button", name="Evaluate", exact=True)
    evaluate.click()
    for field in (sizes, limit):
        expect(field).to_have_accessible_description(re.compile("such as 1000; found 1.000."))
    sizes.fill("٦٤, 1000")
    limit.fill("1000")
    with page.expect_request("**/evaluate") as sent:
        evaluate.click()
    config = sent.value.post_data_json["config"]
    assert (config["sizes"], config["limit"]) == ([64, 1000], 1000)


LISTED = """(texts) => import('./components/written.js').then(({ numbersIn }) => texts.map((text) => {
    try {
        return numbersIn(text, { whole: true });
    } catch (error) {
        return error.message;
    }
}))"""
LISTS = {"160,224": [160, 224], "64 128;1000": [64, 128, 1000], "1, 224": [1, 224], "24 1000": [24, 1000], " ": []}
PARTED = ["1,024", "1 024", "64, 1\u202f024", "10,024", "256,1,000", "١,٠٢٤"]
"""Lists of which a part is a number with a separator of thousands."""


def test_thousands_are_no_two_numbers(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/static/dashboard/base.css")  # beside the modules
    assert page.evaluate(LISTED, list(LISTS)) == list(LISTS.values())
    found = page.evaluate(LISTED, PARTED)
    assert all(one.startswith("Expected numbers without separators, such as 1") for one in found), found
    assert found[0].endswith("such as 1024, and a comma and a space between two; found 1,024.")


SETTINGS = """(texts) => import('./components/form.js').then(({ settings, over }) => texts.map(([text, own]) => {
    try {
        const found = settings(text);
        over(found, own);
        return found;
    } catch (error) {
        return error.message;
    }
}))"""
GIVEN: dict[str, tuple[dict[str, object], object]] = {
    'conversion={"stage": 2}\nconversion.stride=keep\nepochs=5.0': (
        {"epochs": 5, "lr": 1}, {"conversion": {"stage": 2, "stride": "keep"}, "epochs": 5, "lr": 1}
    ),
    "size=[32,32]\nseed=1.500": ({"size": 32}, {"size": 32, "seed": 1.5}),
    "seed=1\nseed=2": ({}, "seed=2: seed has a value already, 1; give one of the two"),
    "a.b=2\na=3": ({}, 'a=3: a has a value already, {"b":2}; give one of the two'),
    "a=3\na.b=2": ({}, "a.b=2: a has a value already, 3; give one of the two"),
    'a.b.c=1\na={"b": {"c": 2}}': ({}, 'a={"b": {"c": 2}}: a.b.c has a value already, 1; give one of the two'),
    "epochs=7": ({"epochs": 5}, "epochs=7: the field above says 5; give one of the two"),
    "size=[32,48]": ({"size": 32}, "size=[32,48]: the field above says 32; give one of the two"),
    "epochs=1.000": ({}, "epochs=1.000: expected a number without separators, as 1 or 1000"),
}  # fmt: skip
"""Lines, and what fields of their own say beside them; the settings, or why they are refused."""


def test_a_setting_is_given_in_one_place(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/static/dashboard/base.css")  # beside the modules
    found = page.evaluate(SETTINGS, [[lines, own] for lines, (own, _) in GIVEN.items()])
    assert found == [expected for _, expected in GIVEN.values()]


def test_a_form_refuses_a_setting_that_its_field_contradicts(server: Server, story: Story, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/finetune?job={story.succeeded.job}&dataset={SET}")
    settings, epochs = page.get_by_label("Settings, one NAME=VALUE per line"), page.get_by_label("Epochs")
    start = page.get_by_label("Initialisation of an untrained transformer")
    page.get_by_text("All other settings").click()
    epochs.fill("5")
    settings.fill("epochs=7")
    button = page.get_by_role("button", name="Fine-tune", exact=True)
    button.click()
    expect(settings).to_have_accessible_description(re.compile("epochs=7: the field above says 5; give one"))
    expect(settings).to_be_focused()
    epochs.fill("")
    start.select_option("mimetic")
    settings.fill("epochs=7\ninit=impulse")
    button.click()
    expect(settings).to_have_accessible_description(re.compile("the field above says .mimetic.; give one"))
    start.select_option("default")
    with page.expect_request("**/finetune") as sent:
        button.click()
    assert sent.value.post_data_json["config"] == {"epochs": 7, "init": "impulse"}
