"""What a local file is to a server: a checkpoint of ours, a CNN's weights, or images."""

import json
from enum import StrEnum
from pathlib import Path

OF_TORCH = (".pth", ".pt", ".bin", ".ckpt", ".pth.tar")
"""What files of `torch.save` are called; the last is timm's, and `.tar` alone an archive of images."""


class FileKind(StrEnum):
    """Kinds of uploads."""

    CHECKPOINT = "checkpoint"
    WEIGHTS = "weights"
    DATASET = "dataset"


def kind_of(path: Path) -> FileKind:
    """By its name, and of a safetensors file by its header; what is damaged the server says."""
    if path.suffix == ".safetensors":
        return FileKind.CHECKPOINT if _is_ours(path) else FileKind.WEIGHTS
    return FileKind.WEIGHTS if path.is_file() and path.name.lower().endswith(OF_TORCH) else FileKind.DATASET


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as handle:
            header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
        return "conversion" in header.get("__metadata__", {})
    except (OSError, ValueError, AttributeError, MemoryError, OverflowError):
        return True  # is it there, and whole? whoever takes checkpoints tells
