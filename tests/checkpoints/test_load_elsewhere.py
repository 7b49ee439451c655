"""A file written here is the same model in a process that has never seen it and imports nothing but tcnn."""

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
