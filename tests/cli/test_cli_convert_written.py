"""`tcnn convert` verifies the written file once more before it says done: what the disk made of it counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tcnn.checkpoints import checkpoint

Run = Callable[..., Any]


def spoil(monkeypatch: pytest.MonkeyPatch, with_digest: bool) -> None:
    def save(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        tensors["layer4.0.conv1.proj"][5, 7] += 1
        if with_digest:
            metadata = {**metadata, "digest": checkpoint.digest(tensors, metadata)}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)

    monkeypatch.setattr(checkpoint, "save_file", save)


def test_it_is_compared_with_the_source_again(
    tcnn: Run, monkeypatch: pytest.MonkeyPatch, listing: Callable[[], list[str]]
) -> None:
    spoil(monkeypatch, with_digest=True)
    error = tcnn("convert", "test_resnet", "out.safetensors", "--no-pretrained").error(3)
    assert error.startswith("out.safetensors: equivalence error")
    assert "worst layer layer4.0.conv1" in error
    assert listing() == []


def test_it_is_refused_when_it_was_altered(
    tcnn: Run, monkeypatch: pytest.MonkeyPatch, listing: Callable[[], list[str]]
) -> None:
    spoil(monkeypatch, with_digest=False)
    error = tcnn("convert", "test_resnet", "out.safetensors", "--no-pretrained").error(2)
    assert "altered since it was written" in error
    assert listing() == []
