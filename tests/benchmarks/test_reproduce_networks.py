"""The networks of experiments: a head for some of a thousand classes, the control of a dilated T-CNN, one that is
known by its name to every process, and accuracy by pruned heads.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pruning
import pytest
import timm
import tiny_runs
import torch
from networks.building import OWN, network, shaped

import tcnn
from benchmarks.drawing import dogs
from tcnn.config import FinetuneConfig
from tcnn.training.preparing.converted import conversion_at
from tcnn.training.recipe.freezing import trunk_of


def test_a_head_for_some_of_imagenets_classes_keeps_what_it_knows() -> None:
    """Imagewoof's ten breeds are rows of a head of a thousand; other classes get a new head."""
    dogs = ("n02086240", "n02115641")
    config = FinetuneConfig()
    thousand = network("tiny_darknet", None, [str(n) for n in range(1000)], config, pretrained=False)
    with torch.no_grad():
        some = network("tiny_darknet", None, dogs, config, pretrained=False)
        image = torch.rand(1, 3, 64, 64)
        assert torch.allclose(some(image)[0], thousand(image)[0, [155, 273]], atol=1e-6)
        other = network("squeezenet1_1", None, ("cat", "dog"), config, pretrained=False)
        assert other(image).shape == (1, 2)


@pytest.mark.parametrize("name", ["resnet20", "tiny_darknet"])
def test_the_control_of_a_dilated_t_cnn_is_the_cnn_that_it_equals(name: str) -> None:
    """ResNet-20's last stage loses its stride; Tiny Darknet's has none, so nothing changes."""
    conversion = {"stride": "dilate", "content_heads": 2, **({"target": "conv1[13]"} if name == "tiny_darknet" else {})}
    config = FinetuneConfig.model_validate({"convert": False, "conversion": conversion})
    kept = network(name, None, [str(n) for n in range(10)], config, pretrained=False)
    dilated = shaped(kept, config, (32, 32))
    image = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        t_cnn = tcnn.convert(kept, conversion_at(config, (32, 32))).model.eval()
        assert torch.allclose(t_cnn(image), dilated(image), atol=1e-5)
        assert torch.allclose(kept(image), dilated(image), atol=1e-6) == (name == "tiny_darknet")
    assert trunk_of(dilated, config.conversion, (32, 32)) == trunk_of(kept, config.conversion, (32, 32)) != ()
    assert {key: value.shape for key, value in kept.state_dict().items()} == {
        key: value.shape for key, value in dilated.state_dict().items()
    }


@pytest.mark.slow
def test_it_is_built_by_a_process_that_first_reads_checkpoints(tmp_path: Path) -> None:
    """As the explorer's does. What registers it must not need tcnn, which is only half imported then."""
    program = (
        "import gc, os; gc.disable(); from tcnn.checkpoints import checkpoint; import timm; "
        "print(timm.create_model('tiny_darknet').num_classes, flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **dogs.environment(tmp_path)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr


@pytest.fixture
def attentive() -> Any:
    torch.manual_seed(0)
    model = timm.create_model("cordonnier_gaussian_tiny", heads=3, depth=2, embed_dim=8, mlp_dim=8, num_classes=3)
    with torch.no_grad():
        for layer in model.attention_layers().values():
            layer.attention_centers.copy_(torch.tensor([[1.0, 0.0], [-3.0, 1.0], [0.0, 0.0]]))
            layer.proj.weight.unflatten(1, (3, -1)).mul_(torch.tensor([5.0, 1.0, 2.0])[:, None])
    return model.eval()


def test_orders(attentive: Any) -> None:
    layer = pruning.layers_of(attentive)[0]
    assert pruning.order(layer, "far") == [1, 0, 2] and pruning.order(layer, "near") == [2, 0, 1]
    assert pruning.order(layer, "light") == [1, 2, 0]
    lots = {tuple(pruning.order(layer, "lot", lot)) for lot in range(20)}
    assert len(lots) > 3 and all(sorted(lot) == [0, 1, 2] for lot in lots)


def test_without_heads_it_is_the_pruned_network(attentive: Any) -> None:
    x = torch.randn(2, 3, 16, 16)
    pruned, report = tcnn.prune(attentive, far=2.0)
    assert {head.head for head in report.pruned} == {1}
    made = pruning.without(attentive, "far", 1)
    torch.testing.assert_close(made(x), pruned(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(made(x), attentive(x), atol=1e-3)


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
