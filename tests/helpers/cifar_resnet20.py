"""The CIFAR-10 ResNet-20 of `benchmarks/reproduce`, and the validation images, read where they lie. No timm model."""

import importlib.util
import io
import lzma
import os
import tarfile
from pathlib import Path
from types import ModuleType

import numpy
import torch
from PIL import Image
from torch import Tensor, nn

DATA = Path(os.environ.get("TCNN_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
ARCHIVE = DATA / "cifar10.tar.xz"
WEIGHTS = DATA / "resnet20-cifar10.safetensors"

MEAN = torch.tensor([0.485, 0.456, 0.406])
STD = torch.tensor([0.229, 0.224, 0.225])


def _script() -> ModuleType:
    """The network of the benchmark, which is a script beside the package, not a part of it."""
    path = Path(__file__).parents[2] / "benchmarks" / "reproduce" / "networks" / "resnet20.py"
    spec = importlib.util.spec_from_file_location("reproduce_resnet20", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# At import, so that a script that has moved is noticed also where the images and weights are absent.
SCRIPT = _script()


def load_model() -> nn.Module:
    return SCRIPT.pretrained(WEIGHTS)


def load_validation_images(every: int = 1) -> tuple[Tensor, Tensor]:
    """One of so many of the 5,000 images, normalised, (N, 3, 32, 32), and their classes: the class folders in
    alphabetical order.
    """
    pixels, names = [], []
    unpacked = lzma.decompress(ARCHIVE.read_bytes())
    # Of 55,000 files the last 5,000: to look at the headers of the others takes longer than to unpack them.
    with tarfile.open(fileobj=io.BytesIO(unpacked[unpacked.index(b"cifar10/val/") :])) as archive:
        for member in [member for member in archive if member.isfile()][::every]:
            content = archive.extractfile(member)
            assert content is not None
            pixels.append(numpy.asarray(Image.open(io.BytesIO(content.read())).convert("RGB")))
            names.append(member.name.split("/")[-2])
    classes = sorted(set(names))
    images = torch.from_numpy(numpy.stack(pixels)).float() / 255
    images = ((images - MEAN) / STD).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor([classes.index(name) for name in names])
