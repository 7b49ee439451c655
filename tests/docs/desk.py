"""What lies on the desk of somebody who follows a page: small images, models and runs under the names that pages use.

The names of the documentation are large models and data sets. `smaller` puts small ones in their place and keeps all
that a command says; a hub on the loopback has the weights of the small models, so downloads are downloads.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pages
import pytest
import torch
from data_pictures import draw, draw_classes
from hub_server import TOKEN, Hub, serving
from safetensors.torch import save, save_file
from torch import nn

import tcnn
from tcnn.evaluation.imagenet_variants import synsets

MODELS = {
    "resnet18": "test_resnet", "resnet50": "test_resnet", "resnet50d": "test_resnet", "resnetrs50": "test_resnet",
    "deit_small_patch16_224": "test_vit", "convit_small": "test_vit",
}  # fmt: skip
"""The models of the pages, and what stands for each."""
TAG = "r160_in1k"
SETTINGS: dict[str, dict[str, str]] = {
    "finetune": {"--epochs": "1", "--batch-size": "8", "--size": "32", "--workers": "0", "--device": "cpu"},
    "plan": {"--batch-size": "8", "--size": "32", "--workers": "0", "--device": "cpu", "--seconds": "0"},
    "evaluate": {"--size": "32", "--limit": "4", "--batch-size": "4", "--workers": "0", "--device": "cpu"},
    "predict": {"--size": "32", "--device": "cpu"},
    "inspect": {"--size": "64", "--limit": "2", "--device": "cpu"},
    "export": {"--size": "64"},
    "convert": {"--device": "cpu"},
    "verify": {},
}  # fmt: skip
"""What makes a command quick; in the place of what it says, where it says something of these."""
SPELLINGS = {"--img-size": "--size", "-b": "--batch-size", "-j": "--workers"}
OUTPUTS = ("output", "out", "--out", "--csv", "--figure", "--explain", "--results-csv", "--results-file", "--file")
"""Where a command writes: what it names there need not be there before."""
FILES = {
    "t.safetensors": "t_resnet50d.safetensors", "tuned.safetensors": "tuned.safetensors",
    "trained.safetensors": "trained.safetensors",
    "t_resnet50d.safetensors": "t_resnet50d.safetensors", "t_resnet18.safetensors": "t_resnet50d.safetensors",
    "my_cats.pth": "weights.pth", "other.pth": "weights.pth", "w.pth": "t_weights.pth",
    "output/mine/model_best.pth.tar": "model_best.pth.tar",
    "output/train/mine/model_best.pth.tar": "model_best.pth.tar",
    "runs/photos": "run", "runs/again": "run", "runs/flowers": "run", "runs/cnn": "run",
    "accuracy.json": "evaluation.json", "corrupted.json": "evaluation.json",
}  # fmt: skip
"""The files and runs that pages begin from, and what of the desk is given for them."""


def smaller(arguments: list[str]) -> list[str]:
    """A command with small models, and with what makes it quick; all else that it says stays."""
    command, *rest = [_named(word.replace("~", os.environ["HOME"], word.startswith("~/"))) for word in arguments]
    wanted = dict(SETTINGS.get({"train": "finetune", "eval": "evaluate"}.get(command, command), {}))
    if command == "inspect" and "--images" not in rest:
        wanted.pop("--limit")
    if "--shape-bias" in rest:
        wanted.pop("--limit")
        wanted.pop("--workers")
    if any(word.startswith("--corruption") for word in rest):
        wanted |= {"--severities": "1", "--limit": "2"}
    made = [command]
    for word in ("num_classes=2" if each.startswith("num_classes=") else each for each in rest):
        option = SPELLINGS.get(made[-1], made[-1])
        several = option == "--size" and "," in word
        made.append("1" if option == "--nproc" else "32,40" if several else wanted.get(option, word))
        wanted.pop(option, None)
    return [*made, *(word for pair in wanted.items() for word in pair)]


def _named(word: str) -> str:
    prefix, _, name = word.rpartition("timm/")
    architecture, _, tag = name.partition(".")
    plain = architecture.removeprefix("t_")
    if plain not in MODELS or "/" in name or (tag and not tag.endswith("_in1k")):
        return word
    start = f"{prefix}timm/" if prefix or word.startswith("timm/") else ""
    return f"{start}{architecture.removesuffix(plain)}{MODELS[plain]}{f'.{TAG}' if tag else ''}"


class Desk:
    """A directory that has everything; each page gets one of its own with what it asks for."""

    def __init__(self, root: Path, lively: Callable[..., nn.Module]) -> None:
        self.root = root
        draw_classes(root / "photos", ["cat", "dog"], 24)
        draw(root / "new.jpg")
        draw_classes(root / "flowers", ["cat", "dog"], 6)
        for split in ("train", "val"):
            draw_classes(root / "imagenet" / split, synsets()[:3], 24 if split == "train" else 4)
        for name in ("cifar10", "test"):
            draw_classes(root / name, ["cat", "dog"], 24)
        draw_classes(root / "imagenet-r", synsets("imagenet-r")[:2], 2)
        draw_classes(root / "imagenet-c" / "fog" / "1", synsets()[:2], 2)
        for name in ("cat/cat1-dog1", "dog/dog1-car1"):
            draw(root / "cue-conflict" / f"{name}.png")
        source = lively("test_resnet")
        save_file(source.state_dict(), root / "weights.safetensors")
        torch.save(source.state_dict(), root / "weights.pth")
        converted, _ = tcnn.convert(source)
        verdict = tcnn.verify(source, converted, input_size=(64, 64))
        tcnn.save(converted, root / "t_resnet50d.safetensors", verdict)
        tcnn.save(tcnn.convert(source, content_heads=1).model, root / "tuned.safetensors")
        two = lively("t_test_resnet", num_classes=2, content_heads=4)
        tcnn.save(two, root / "trained.safetensors")
        t_cnn = two.state_dict()
        torch.save(t_cnn, root / "t_weights.pth")
        torch.save({"arch": "t_test_resnet", "state_dict": t_cnn, "args": _arguments()}, root / "model_best.pth.tar")

    def lay(self, place: Path) -> None:
        """Put the images of the desk where a page is followed: links, for they are only read."""
        for folder in self.root.iterdir():
            if folder.is_dir() and folder.name != "run":
                (place / folder.name).symlink_to(folder)
        (place / "new.jpg").symlink_to(self.root / "new.jpg")

    def give(self, place: Path, given: dict[str, Any]) -> None:
        """Put there what a command is to read and nothing on the page has made."""
        for option, value in given.items():
            for word in map(str, value if isinstance(value, list | tuple) else [value]):
                kept = FILES.get(word.rstrip("/").removesuffix("/best.safetensors"))
                if option in OUTPUTS or kept is None or (place / word).exists():
                    continue
                target = place / word.rstrip("/").removesuffix("/best.safetensors")
                target.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if (self.root / kept).is_dir() else shutil.copy)(self.root / kept, target)


def _arguments() -> Any:
    import argparse

    return argparse.Namespace(num_classes=2, model_kwargs={"content_heads": 4}, img_size=64)


@contextmanager
def hub_of_weights(patch: pytest.MonkeyPatch, lively: Callable[..., nn.Module], cache: Path) -> Iterator[Hub]:
    """A hub on the loopback that has timm's weights of the small models, and takes what is pushed."""
    with serving() as hub:
        patch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        patch.setattr(
            huggingface_hub.constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        patch.setenv("HF_TOKEN", TOKEN)
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"):
            patch.delenv(name, raising=False)
        for name in sorted(set(MODELS.values())):
            model = lively(name)
            config = f'{{"architecture": "{name}", "num_classes": 1000, "pretrained_cfg": {{"tag": "{TAG}"}}}}'
            hub.repositories[f"timm/{name}.{TAG}"] = {
                "model.safetensors": save(model.state_dict()), "config.json": config.encode(),
            }  # fmt: skip
        yield hub


def run_once(desk: Desk, place: Path) -> None:
    """The run that pages begin from, and an evaluation of it."""
    code, said = pages.run(smaller(["finetune", "resnet50d", "--data", "photos/", "--preset", "quick", "--out", "run"]))
    assert code == 0, said
    code, said = pages.run(smaller(["evaluate", "run", "--json", "--quiet"]))
    assert code == 0, said
    (place / "evaluation.json").write_text(said, encoding="utf-8")
