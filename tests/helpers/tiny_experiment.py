"""An experiment of four arms on a few tiny images, small enough to be run from end to end."""

import json
from pathlib import Path
from typing import Any

import numpy
import run as runner
import yaml
from PIL import Image

TINY: dict[str, Any] = {
    "model": "resnet20",
    "pretrained": False,
    "epoch_images": 10,
    "corrupted": {"images": 8, "corruptions": ["fog", "contrast"], "severities": [1, 5]},
    "sizes": [12],
    "preset": "cifar",
    "recipe": {
        "size": 8, "epochs": 2, "batch_size": 6, "warmup_epochs": 0.5, "anneal_epochs": 1, "crop_padding": 1,
        "checkpoint_steps": 1, "log_steps": 1, "anneal": "warmup", "conversion": {"content_heads": 0},
    },
    "adapt": {"epochs": 4, "lr": 2e-3},
    "arms": {
        "start": {"train": False},
        "cnn": {"label": "CNN, fine-tuned", "convert": False},
        "t-cnn": {"control": "cnn"},
        "again": {"control": "cnn", "convert": False},
    },
    "reference": "cnn",
    "seeds": [0, 1],
}  # fmt: skip


def images(root: Path) -> Path:
    """Thirty images to train on, twenty to be measured on, of two classes of colours that overlap."""
    generator = numpy.random.default_rng(0)
    for split, images in (("train", 15), ("val", 10)):
        for name, red in (("cat", 90), ("dog", 130)):
            (root / split / name).mkdir(parents=True)
            for number in range(images):
                colour = numpy.array([red, 100, 220 - red]) + generator.normal(0, 30, 3)
                pixels = (colour + generator.normal(0, 30, (10, 12, 3))).clip(0, 255).astype(numpy.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


def write(file: Path, **changes: Any) -> Path:
    file.write_text(yaml.safe_dump({**TINY, **changes}, sort_keys=False), encoding="utf-8")
    return file


def call(file: Path, data: Path, out: Path, *more: str) -> int:
    return runner.main(
        [str(file), "--data", str(data), "--work", str(out / "work"), "--out", str(out / "r.json"), *more]
    )


def read(out: Path) -> dict[str, Any]:
    """All that was written."""
    found: dict[str, Any] = json.loads((out / "r.json").read_text())
    return found


def summaries(out: Path) -> dict[str, dict[str, Any]]:
    """What is told of each arm."""
    return {entry["arm"]: entry for entry in read(out)["summary"]}


def rows(out: Path) -> list[dict[str, Any]]:
    """What was found, without what depends on the clock."""
    clock = ("train_seconds", "images_per_second")
    if not (out / "r.json").is_file():
        return []
    return [{key: value for key, value in row.items() if key not in clock} for row in read(out)["rows"]]


def right(out: Path) -> dict[str, list[int]]:
    with numpy.load(out / "r.npz") as content:
        return {key: bits.tolist() for key, bits in content.items()}
