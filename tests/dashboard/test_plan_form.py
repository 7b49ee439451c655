"""The forms tell what a job will take, before it is submitted."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsing import Open, inaccessible, sync_api
from serving import Server
from tiny_runs import colours

from tcnn_jobs.client import Client

expect: Any = sync_api.expect


@pytest.mark.slow
def test_what_it_will_take(server: Server, open_page: Open, tmp_path: Path) -> None:
    with Client(server.url) as client:
        data = client.upload_dataset(colours(tmp_path / "photos"))["id"]
    page = open_page(f"{server.url}/#/transform")
    ahead = page.get_by_role("button", name="What will it take?")
    expect(ahead).to_be_hidden()  # a conversion alone takes what the list of models tells
    page.get_by_role("combobox", name="Model").fill("test_resnet")
    page.get_by_role("combobox", name="Model").press("Escape")
    page.get_by_label("Pretrained weights").uncheck()
    page.get_by_label("Fine-tune it in the same job").check()
    page.get_by_label("Data set", exact=True).select_option(data)
    page.get_by_label("Batch size").fill("800")
    ahead.click()
    expect(page.locator("p.error:visible")).to_contain_text("a batch of 800 is larger than the 27 training images")
    expect(page.get_by_label("Batch size")).to_be_focused()
    page.get_by_label("Batch size").fill("8")
    page.get_by_label("Image size").fill("64")
    ahead.click()
    card = page.get_by_role("status").filter(has_text="What it will take")
    expect(card).to_contain_text("27 to train on, 3 held out")
    expect(card).to_contain_text(re.compile(r"373\sk → \d+\sk"))
    expect(card).to_contain_text("no job like it has run here yet")
    assert inaccessible(page) == []
    assert httpx.get(f"{server.url}/jobs").json()["data"] == []
    page.get_by_label("Batch size").fill("9")
    expect(card).to_be_hidden()  # it was about another job
