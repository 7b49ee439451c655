"""Cordonnier's network: its sizes are the paper's, timm knows its names, and it is trained, saved and loaded."""

import json
from pathlib import Path

import pytest
import timm
import tiny_runs
import torch
from sampled import sampled

import tcnn
from tcnn.errors import NothingToConvertError
from tcnn.networks.attentive import NETWORKS
from tcnn.zoo import catalogue

PAPER = {"quadratic": 12.1, "gaussian": 12.1, "learned": 12.3, "learned_content": 29.5}
"""Millions of parameters (Tables 1 and 4)."""


@pytest.mark.parametrize("name", NETWORKS)
def test_sizes_are_the_papers_and_the_catalogues(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    count = sum(p.numel() for p in model.parameters())
    assert catalogue.ATTENTIVE[name] == count == catalogue.entries()[name].parameters
    if not name.endswith("_tiny"):  # they have further embeddings than the 31 that 16 positions need
        assert count / 1e6 == pytest.approx(PAPER[name.removeprefix("cordonnier_")], rel=0.011)
    assert catalogue.ATTENTIVE.keys() == NETWORKS.keys()


def test_timm_knows_their_names_and_lists_them_when_asked() -> None:
    assert timm.is_model("cordonnier_learned") and set(timm.list_models("cordonnier_*")) == NETWORKS.keys()
    assert not NETWORKS.keys() & set(timm.list_models())
    with pytest.raises(NothingToConvertError, match=r"attention throughout.*--no-convert --no-pretrained"):
        catalogue.check("cordonnier_learned")


@pytest.mark.parametrize(
    "name", sampled(["cordonnier_quadratic_tiny", "cordonnier_learned_content_tiny"], ["cordonnier_quadratic_tiny"])
)
def test_it_is_trained_saved_and_loaded(name: str, tmp_path: Path) -> None:
    data = tiny_runs.colours(tmp_path / "photos", images=4)
    config = tiny_runs.tiny(convert=False, epochs=1, size=16, position_lr=0.05)
    run = tcnn.finetune(name, str(data), None, config, tmp_path / "run", pretrained=False)
    loaded = tcnn.load(run.last)
    x = torch.randn(2, 3, 16, 24)
    assert loaded(x).shape == (2, 3)
    assert torch.equal(tcnn.load(run.last)(x), loaded(x))
    row = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()][-1]
    assert row["looking"].keys() == {f"blocks.{number}.attn" for number in range(6)}
    assert len(row["looking"]["blocks.3.attn"]["centres"]) == 9


def test_it_is_one_of_timms() -> None:
    model = timm.create_model("cordonnier_gaussian_tiny", num_classes=3, in_chans=1, drop_path_rate=0.1, depth=2).eval()
    x = torch.randn(2, 1, 12, 8)
    assert model.forward_features(x).shape == (2, 6, 4, 64)
    assert model.forward_head(model.forward_features(x), pre_logits=True).shape == (2, 64)
    assert model(x).shape == (2, 3)
    model.reset_classifier(0)
    assert model(x).shape == (2, 64)
    assert model.no_weight_decay() == {
        f"blocks.{n}.attn.{own}" for n in (0, 1) for own in ("precision_raw", "attention_centers")
    }
