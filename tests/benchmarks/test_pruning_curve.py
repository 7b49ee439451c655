"""Accuracy by pruned heads: what is removed, in which order, and what is drawn of it."""

import json
from pathlib import Path
from typing import Any

import pruning
import pytest
import timm
import tiny_runs
import torch
from networks.building import OWN

import tcnn


@pytest.fixture
def network() -> Any:
    torch.manual_seed(0)
    model = timm.create_model("cordonnier_gaussian_tiny", heads=3, depth=2, embed_dim=8, mlp_dim=8, num_classes=3)
    with torch.no_grad():
        for layer in model.attention_layers().values():
            layer.attention_centers.copy_(torch.tensor([[1.0, 0.0], [-3.0, 1.0], [0.0, 0.0]]))
            layer.proj.weight.unflatten(1, (3, -1)).mul_(torch.tensor([5.0, 1.0, 2.0])[:, None])
    return model.eval()


def test_orders(network: Any) -> None:
    layer = pruning.layers_of(network)[0]
    assert pruning.order(layer, "far") == [1, 0, 2] and pruning.order(layer, "near") == [2, 0, 1]
    assert pruning.order(layer, "light") == [1, 2, 0]
    lots = {tuple(pruning.order(layer, "lot", lot)) for lot in range(20)}
    assert len(lots) > 3 and all(sorted(lot) == [0, 1, 2] for lot in lots)


def test_without_heads_it_is_the_pruned_network(network: Any) -> None:
    x = torch.randn(2, 3, 16, 16)
    pruned, report = tcnn.prune(network, far=2.0)
    assert {head.head for head in report.pruned} == {1}
    made = pruning.without(network, "far", 1)
    torch.testing.assert_close(made(x), pruned(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(made(x), network(x), atol=1e-3)


@pytest.mark.slow
def test_a_t_cnn_is_measured_and_drawn(tmp_path: Path) -> None:
    """The script as it is called, on a converted ResNet-20 with attention at τ = 1."""
    torch.manual_seed(0)
    data = tmp_path / "data"
    for part in ("train", "val"):
        tiny_runs.colours(data / part, images=4)
    source = OWN["resnet20"]()
    source.linear, source.num_classes = torch.nn.Linear(64, 3), 3
    model = tcnn.convert(source, position="quadratic", temperature=1.0, target="layer3.2.*", head_dim=1).model
    tcnn.save(model, tmp_path / "t.safetensors")
    rows = [json.loads(json.dumps(row)) for row in _measured(model, source, str(data))]
    assert rows[0]["order"] == "none" and rows[0]["heads"] == 18 and "renewed" in rows[0]
    assert [row["pruned"] for row in rows if row["order"] == "light"] == [2, 4, 6, 8, 10, 12, 14, 16]
    refused = [row for row in rows if "refused" in row]
    assert refused and all(row["refused"].startswith("no head to prune") for row in refused)
    (command,) = [row for row in rows if row["order"] == "command" and "pruned" in row]
    assert command["far"] == 1.2 and command["reasons"] == {"far": 8}  # the corners of two kernels
    out = tmp_path / "pruning.json"
    out.write_text(json.dumps({"t": {"title": "T", "rows": rows}}))
    pruning.main(["--out", str(out), "--picture", str(tmp_path / "drawn.png")])
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
    pruning.draw_centres(model, pruning.read(str(data), model, 3, 3), tmp_path / "centres.png")
    assert (tmp_path / "centres.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match="x: expected NAME=CHECKPOINT"):
        pruning.main(["x", "--data", str(data), "--out", str(tmp_path / "no.json")])


def _measured(model: torch.nn.Module, source: torch.nn.Module, data: str) -> list[dict[str, Any]]:
    images = pruning.read(data, model, 6, 6)
    assert len(images.pixels) == len(images.targets) == 6
    return list(pruning.curve(model, source, images, statistics=True))
