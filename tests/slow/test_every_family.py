"""Every family of timm's that converts: `tcnn finetune` takes a step on one model of each, while it is still a
convolution, and where blocks merge for inference the converted model merges too, if it can.

A step is where an in-place activation behind a converted layer meets what stands in for its frozen attention.
"""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from sampled import smallest_of_every_family
from timm.models import reparameterize_model
from tiny_runs import colours, run
from torch import nn

import tcnn
from benchmarks.zoo.check import plan_for
from tcnn.layers.base import AttentionLayer
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


FAMILIES = {
    "byobnet": "mobileone_s0",
    "efficientvim": "efficientvim_m1",
    "efficientvit_msra": "efficientvit_m0",
    "fastvit": "fastvit_t8",
    "ghostnet": "ghostnetv3_050",
    "iformer": "iformer_t",
    "lcnetv2": "lcnetv2_small",
    "nextvit": "nextvit_small",
    "repghost": "repghostnet_050",
    "repvit": "repvit_m1",
    "shvit": "shvit_s1",
    "tiny_vit": "tiny_vit_5m_224",
}


@pytest.mark.parametrize("name", FAMILIES.values())
@torch.no_grad()
def test_it_merges_and_computes_the_same(name: str, lively: Callable[..., nn.Module]) -> None:
    source = lively(name)
    model = tcnn.convert(source).model.eval()
    x = torch.randn(1, *source.pretrained_cfg["input_size"])
    expected = copy.deepcopy(model)(x)
    merged = reparameterize_model(model)
    found = merged(x)
    assert (found - expected).norm() < 1e-5 * expected.norm()
    layers = [isinstance(module, AttentionLayer) for module in merged.modules()]
    assert sum(layers) == len(model.conversion_report.layers)
    before = sum(1 for _ in model.modules())
    fewer = sum(1 for _ in source.modules()) - sum(1 for _ in reparameterize_model(source).modules())
    assert len(layers) < before if fewer else len(layers) == before
