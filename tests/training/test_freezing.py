"""Freezing the trunk: what runs before the converted stage neither learns nor counts, be it a T-CNN or its CNN."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from tiny_runs import COLOURS, colours, run, tiny
from torch import nn

import tcnn
from tcnn.config import ConversionConfig
from tcnn.training.distributed import Processes
from tcnn.training.preparing.prepare import prepare
from tcnn.training.recipe.annealing import batch_norms
from tcnn.training.recipe.freezing import trunk_of
from tcnn.training.updates.learner import Learner
from tcnn.training.updates.step import MixedPrecision

CHANGED = ("layer4.", "fc.")


@pytest.mark.parametrize(
    ("name", "trunk"),
    [
        ("test_resnet", ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2", "layer3")),
        pytest.param("vgg11", tuple(f"features.{i}" for i in range(16)), marks=pytest.mark.slow),
        pytest.param("test_convnext", ("stem", "stages.0", "stages.1", "stages.2"), marks=pytest.mark.slow),
        ("test_efficientnet", ("conv_stem", "bn1", "blocks.0", "blocks.1", "blocks.2", "blocks.3")),
    ],
)
def test_the_trunk_is_what_runs_before_the_stage(name: str, trunk: tuple[str, ...]) -> None:
    cnn = timm.create_model(name)
    config = ConversionConfig()
    assert trunk_of(cnn, config, (64, 64)) == trunk
    converted = tcnn.convert(cnn, config).model
    assert trunk_of(converted, config, (64, 64)) == trunk


class Nested(nn.Module):
    """A branch that begins before the stage and is used behind it, and a layer that runs on both sides of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.stage, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)
        self.act, self.scale = nn.PReLU(), nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.first(x)) * self.scale
        found: torch.Tensor = self.head(self.act(self.stage(x) + x).mean((2, 3)))
        return found


def test_a_layer_that_runs_again_later_is_no_trunk() -> None:
    assert trunk_of(Nested(), ConversionConfig(), (16, 16)) == ("first",)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"convert": False}, marks=pytest.mark.slow),
        {"bn_reestimate": 1, "ema": 0.5},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"convert_at": 1}, marks=pytest.mark.slow),
    ],
)
def test_a_run_leaves_the_trunk_as_it_was(tmp_path: Path, options: dict[str, Any]) -> None:
    torch.manual_seed(3)
    cnn = timm.create_model("test_resnet", num_classes=3)
    before = cnn.state_dict()
    result = run(cnn, colours(tmp_path / "data", images=4), tmp_path / "run", epochs=2, freeze="trunk", **options)
    assert any(note.startswith("frozen: conv1, bn1, ") for note in result.notes)
    after = load_file(result.last)
    kept = [name for name in before if name in after and not name.startswith(CHANGED)]
    assert len(kept) > 20
    assert all(torch.equal(before[name], after[name]) for name in kept), "weights and statistics"
    assert not torch.equal(before["fc.weight"], after["fc.weight"])
    assert not torch.equal(before["layer4.0.bn1.running_mean"], after["layer4.0.bn1.running_mean"])


def test_the_rest_gets_the_gradients_of_a_whole_model() -> None:
    """Those of a run in which the trunk's normalisation rests: nothing is cut off that reaches further."""
    torch.manual_seed(0)
    start = prepare(timm.create_model("test_resnet", num_classes=3), tiny(freeze="trunk", smoothing=0), COLOURS)
    whole = prepare(start.model, tiny(), COLOURS).model
    for name in start.trunk:
        whole.get_submodule(name).requires_grad_(True).eval()
    config = tiny(freeze="trunk", smoothing=0)
    precision = MixedPrecision(config, torch.device("cpu"))
    own = Learner(start.model, config, steps=3, precision=precision, processes=Processes(), trunk=start.trunk)
    images, targets = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 0])
    own.accumulate([(images, targets)], None)
    nn.functional.cross_entropy(whole(images), targets).backward()
    learned = 0
    for name, parameter in own.model.named_parameters():
        expected = whole.get_parameter(name).grad
        if parameter.requires_grad:
            assert parameter.grad is not None and expected is not None
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-6)
            learned += 1
        else:
            assert parameter.grad is None and not name.startswith(CHANGED)
    assert learned == sum(name.startswith(CHANGED) for name, _ in own.model.named_parameters())
    assert not any(norm.training for norm in batch_norms(own.model) if norm not in batch_norms(own.model, start.trunk))
    assert all(norm.training for norm in batch_norms(own.model, start.trunk))


def test_nothing_before_the_stage_is_said(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    result = run(
        model, colours(tmp_path / "data"), tmp_path / "run", epochs=1, size=12, freeze="trunk",
        conversion={"target": "0"},
    )  # fmt: skip
    assert any("nothing runs before the converted stage" in note for note in result.notes)
