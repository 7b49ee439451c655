"""`tcnn finetune` takes a step on one model of every family of timm's that converts, while it is still a convolution.

That is where an in-place activation behind a converted layer meets what stands in for its frozen attention.
"""

import json
import math
from pathlib import Path

import pytest
import timm
from families import smallest_of_every_family
from tiny_runs import colours, run

from benchmarks.zoo.check import plan_for
from tcnn.models.trace import meta_copy

MODELS = smallest_of_every_family()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images to train with, three to validate."""
    return colours(tmp_path_factory.mktemp("images"), images=3)


@pytest.mark.parametrize("name", MODELS)
def test_it_takes_a_step(name: str, data: Path, tmp_path: Path) -> None:
    plan = plan_for(name, meta_copy(timm.create_model(name)))
    model = timm.create_model(name, **plan.arguments)
    result = run(
        model, data, tmp_path / "run", epochs=1, warmup_epochs=0, anneal_epochs=100, batch_size=6, repeats=1,
        size=plan.size, val_split=0.34,
    )  # fmt: skip
    assert (result.updates, result.layers) == (1, len(plan.names))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (epoch,) = [row for row in rows if row["kind"] == "epoch"]
    assert epoch["temperature"] < 1 / 40, "a convolution still"
    assert math.isfinite(epoch["train_loss"]) and epoch["train_loss"] > 0


def test_every_family_is_there() -> None:
    assert len(MODELS) >= 68
