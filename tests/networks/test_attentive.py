"""Cordonnier's network: its sizes are the paper's, timm knows its names, it is trained, saved and loaded, and
inspected: every map of every layer is what the layer itself applies, and every head is told.
"""

import json
from pathlib import Path

import pytest
import timm
import tiny_runs
import torch
from sampled import sampled
from torch import Tensor, nn

import tcnn
from tcnn.analysis.attention import encode
from tcnn.analysis.inspect import inspect
from tcnn.analysis.measures import non_locality
from tcnn.config import PositionKind
from tcnn.errors import NothingToConvertError
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.networks.attentive import NETWORKS, AttentiveNet
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


KINDS: list[tuple[PositionKind, bool]] = [
    ("isotropic", False), ("quadratic", False), ("relative", False), ("relative", True),
]  # fmt: skip


def network(position: PositionKind, content: bool) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"depth": 2, "heads": 3, "embed_dim": 8, "mlp_dim": 8}
    return AttentiveNet(num_classes=4, position=position, content=content, **sizes).eval().double()  # type: ignore[arg-type]


@pytest.mark.parametrize(("position", "content"), KINDS)
@torch.no_grad()
def test_maps_are_those_that_are_applied(position: PositionKind, content: bool) -> None:
    model, images = network(position, content), torch.randn(2, 3, 12, 16, dtype=torch.float64)
    inputs: list[Tensor] = []
    layers = [module for module in model.modules() if isinstance(module, SelfAttention2d)]
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    encoded = encode(model, images)
    for query in ((0.0, 0.0), (0.4, 0.7), (1.0, 1.0)):
        for at, layer, x in zip(encoded.at(query), layers, inputs, strict=True):
            assert at.size == (6, 8)
            maps = layer.attention(x).expand(2, 3, 48, 48)[:, :, at.query[0] * 8 + at.query[1]]
            assert torch.allclose(at.combined.flatten(-2), maps, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("position", "content"), KINDS)
@torch.no_grad()
def test_measures_of_every_head(position: PositionKind, content: bool) -> None:
    model, images = network(position, content), torch.randn(2, 3, 12, 16, dtype=torch.float64)
    found = inspect(model, images, shown=0).layers[0]
    assert (found.kind, found.map, len(found.heads)) == ("cordonnier", (6, 8), 3)
    layer = next(module for module in model.modules() if isinstance(module, SelfAttention2d))
    inputs: list[Tensor] = []
    layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model(images)
    grid = torch.cartesian_prod(torch.arange(6.0), torch.arange(8.0)).double()
    far = non_locality(layer.attention(inputs[0]), torch.cdist(grid, grid)).mean(-1)
    for head, expected in zip(found.heads, far if far.dim() == 1 else far.mean(0), strict=True):
        assert head.non_locality.total == pytest.approx(expected.item(), rel=1e-12)
        assert (head.gate is None) == content
        assert (head.centre is None) == (position == "relative" and content)
