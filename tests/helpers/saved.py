"""Saving and loading as tests look at it."""

from pathlib import Path

import torch
from nets import image, same_state, snapshot
from torch import nn

import tcnn


@torch.no_grad()
def comes_back(model: nn.Module, folder: Path) -> None:
    """Assert that a folded model is the same after saving and loading, bit for bit."""
    tcnn.save(model, folder / "folded.safetensors")
    again = tcnn.load(folder / "folded.safetensors")
    assert same_state(again, snapshot(model))
    x = image((64, 64))
    assert torch.equal(again(x), model(x))
