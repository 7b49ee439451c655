"""What forms offer to begin with: all models and uploads, however many jobs are newer, by the names that people gave
them; and a word where there are more than a list has. No worker.
"""

import re
from typing import Any

import pytest
from browsing import Open, inaccessible, sync_api
from serving import Server
from story import SET, Story

from tcnn_jobs.database import schema
from tcnn_jobs.model.jobs import Artifact, Claim, Kind, Result
from tcnn_jobs.model.naming import Labels

expect = sync_api.expect
NEWER = 120
"""Jobs without a model: more than a page of the server's has."""
UPLOADS = 1001
"""Data sets, one more than a list offers."""


class Busy(Story):
    """The story, of which the newest models are older than many a cancelled job."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        store = self.house.store
        store.cancel(self.queued.id)
        self.named = self._tune(self.succeeded.job)
        store.label(self.named.job, "local", Labels(name="the one that I named"))
        self.nameless = self._tune(self.named.job)
        for _ in range(NEWER):
            store.cancel(self.house.submit().id)
        rows = [
            {"id": f"ds_{number:024}", "owner": "local", "kind": "dataset", "name": f"images {number}", "path": "x",
             "size": 1, "sha256": "0" * 64, "created_at": 1.0,
             "details": {"classes": ["a", "b"], "images": 2, "splits": {}}}
            for number in range(1, UPLOADS + 1)
        ]  # fmt: skip
        with store.writing() as connection:
            connection.execute(schema.uploads.insert(), rows)

    def _tune(self, source: str) -> Claim:
        claim = self._taken(kind=Kind.FINETUNE, request={"job": source, "dataset": SET})
        file = Artifact(name="best.safetensors", path=f"{claim.job}/1/run/best.safetensors", size=9, sha256="0" * 64)
        self.house.store.finish(claim, Result(checkpoint=file))
        return claim


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Busy(tmp_path_factory.mktemp("pickers") / "home")


@pytest.mark.parametrize(
    ("address", "label"), [pytest.param("finetune", "Job", marks=pytest.mark.slow), ("evaluate", "Model")]
)
def test_models_are_offered_however_many_jobs_are_newer(
    server: Server, story: Busy, open_page: Open, address: str, label: str
) -> None:
    page = open_page(f"{server.url}/#/{address}")
    models = page.get_by_label(label, exact=True)
    expect(models.locator("option")).to_have_count(4 if address == "finetune" else 3)
    words = models.locator("option").all_inner_texts()
    assert [word.partition(" · ")[0] for word in words[:3]] == ["the one that I named"] * 2 + ["test_resnet"]
    assert models.input_value() == story.nameless.job
    if address == "finetune":
        assert re.fullmatch("resnet18 · finetune, running: starts when it is done", words[3])


def test_a_list_says_that_it_has_not_all(server: Server, story: Busy, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/finetune?job={story.named.job}")
    data = page.get_by_label("Data set", exact=True)
    expect(data.locator("option")).to_have_count(1002)
    expect(data.locator("option").nth(999)).to_contain_text("images 2 ·")
    expect(data.locator("option:disabled")).to_have_text(
        ["Only the newest 1,000 are listed; older ones: from their own pages"]
    )
    expect(data.locator("option").last).to_have_text("Another one, by name…")
    assert data.input_value() == f"ds_{UPLOADS:024}"
    expect(page.get_by_label("Job", exact=True)).to_have_value(story.named.job)
    assert inaccessible(page) == []
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}/attention")
    expect(page.get_by_label("Pictures from").locator("option")).to_have_count(1001)
