"""Files that come from elsewhere: from an earlier commit, with the same output, and into a process that has never seen
the model and imports nothing but tcnn.

The two older files were written by 758d618. Both are timm's test_resnet with few channels, random weights and random
statistics of batch normalisation; in the folded one, one head of one layer has a gate of 0.01. A change that breaks
them needs another way to load old files, and not other files.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.checkpoints.opening import open_checkpoint, open_model
from tcnn.conversion.plan import Plan
from tcnn.errors import CheckpointError, RequestError, UnknownModelError
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.models.running import gpsa_layers
from tcnn.state import unshared

WRITTEN = Path(__file__).parent / "written"
CONVOLUTIONS = ["layer4.0.conv1", "layer4.0.conv2", "layer4.1.conv1", "layer4.1.conv2"]
LOGITS = {
    "dilated": [0.23358410596847534, -0.7338109016418457, -0.5799177289009094, 0.581088662147522],
    "folded": [0.31533050537109375, -0.798171877861023, -0.6072828769683838, 0.6797820329666138],
}
"""What the commit that wrote the files gave for an image that rises evenly from -2 to 2, on a CPU."""


@pytest.mark.parametrize("name", LOGITS)
def test_it_computes_what_it_did(name: str) -> None:
    model = tcnn.load(WRITTEN / f"{name}.safetensors")
    with torch.no_grad():
        found = model(torch.linspace(-2, 2, 3 * 48 * 64).reshape(1, 3, 48, 64))
    assert torch.allclose(found, torch.tensor([LOGITS[name]]), rtol=1e-4, atol=1e-5)


def test_its_layers_are_those_that_it_was_written_with() -> None:
    dilated, folded = (tcnn.load(WRITTEN / f"{name}.safetensors") for name in LOGITS)
    assert list(gpsa_layers(dilated)) == CONVOLUTIONS
    assert {dilated.get_submodule(name).heads for name in CONVOLUTIONS} == {10}
    assert {str(dilated.get_submodule(name).scope) for name in CONVOLUTIONS} == {"window:4,unpadded"}
    attending = [name for name, module in folded.named_modules() if isinstance(module, FoldedGPSA2d)]
    assert attending == ["layer4.0.conv2"]
    assert folded.layer4[0].conv1.stride == (1, 1), "its stride was removed, and it is a convolution again"


def test_what_is_no_t_cnn_is_opened_as_none() -> None:
    with pytest.raises(CheckpointError, match="test_resnet: a CNN, in which nothing is converted; its T-CNN is t_test"):
        open_checkpoint("test_resnet")
    with pytest.raises(UnknownModelError, match="test_resnot: no timm model of this name"):
        open_checkpoint("test_resnot")
    with pytest.raises(RequestError, match=r"--model-kwargs: .* records what its model was built with"):
        open_checkpoint(WRITTEN / "folded.safetensors", in_chans=1)


def test_weights_of_a_file_in_a_model_of_timms(lively: Callable[..., nn.Module], tmp_path: Path) -> None:
    """A CNN's in a CNN, a T-CNN's in a T-CNN, which is a checkpoint then."""
    source = lively(num_classes=3, in_chans=1)
    save_file(source.state_dict(), tmp_path / "cnn.safetensors")
    cnn = open_model("test_resnet", tmp_path / "cnn.safetensors", num_classes=3, in_chans=1)
    images = torch.randn(2, 1, 32, 32)
    assert torch.equal(cnn(images), source(images))
    model = tcnn.convert(source, content_heads=1).model
    save_file(unshared(model.state_dict()), tmp_path / "t.safetensors")
    options = {"num_classes": 3, "in_chans": 1, "content_heads": 1}
    found = open_checkpoint("t_test_resnet", tmp_path / "t.safetensors", **options)
    assert found.section("weights") == "file" and found.tensors.keys() == model.state_dict().keys()
    assert all(torch.equal(found.tensors[name], value) for name, value in model.state_dict().items())
    with pytest.raises(
        CheckpointError, match="test_resnet: nothing in it is converted; convert it first: tcnn convert"
    ):
        open_checkpoint("test_resnet", tmp_path / "cnn.safetensors", num_classes=3, in_chans=1)


def test_its_report_gives_the_plan_back() -> None:
    found = Plan.of_report(checkpoint.read(WRITTEN / "dilated.safetensors").conversion)
    assert [replacement.name for replacement in found.replacements] == CONVOLUTIONS
    assert found.stride.removed == ("layer4.0.conv1", "layer4.0.downsample.0")
    assert found.stride.dilated == dict.fromkeys(CONVOLUTIONS[1:], (2, 2))
    assert [replacement.geometry.dilation for replacement in found.replacements] == [(1, 1), (2, 2), (2, 2), (2, 2)]


ELSEWHERE = """
import json
import sys

import tcnn

names = [name for name in ("torch", "timm") if name in sys.modules]
model = tcnn.load("model.safetensors")

import torch
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
image = load_file("image.safetensors")["image"]
with torch.no_grad():
    found = {"file": model(image)}

import timm

hub = timm.create_model("local-dir:hub", pretrained=True).eval()
with torch.no_grad():
    found["hub"] = hub(image)
save_file(found, "logits.safetensors")
print(json.dumps({"loaded by import tcnn": names, "training": model.training, "classes": model.num_classes}))
"""


@pytest.mark.slow
@torch.no_grad()
def test_a_fresh_process_gives_the_same_bits(lively: Callable[..., nn.Module], tmp_path: Path) -> None:
    model = tcnn.convert(lively(num_classes=10)).model
    tcnn.save(model, tmp_path / "model.safetensors")
    tcnn.save_directory(model, tmp_path / "hub")
    image = torch.randn(1, *model.pretrained_cfg["input_size"], generator=torch.Generator().manual_seed(0))
    save_file({"image": image}, tmp_path / "image.safetensors")

    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"loaded by import tcnn": [], "training": False, "classes": 10}
    logits = load_file(tmp_path / "logits.safetensors")
    assert torch.equal(logits["file"], model(image))
    assert torch.equal(logits["hub"], logits["file"])
    assert not torch.equal(logits["file"], timm.create_model("test_resnet", num_classes=10).eval()(image))
