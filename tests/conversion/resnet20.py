"""The CIFAR-10 ResNet-20 of He et al. 2016, §4.2, and the validation images, read where they lie. No timm model."""

import io
import os
import tarfile
from pathlib import Path

import numpy
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

DATA = Path(os.environ.get("TCNN_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
ARCHIVE = DATA / "cifar10.tar.xz"
WEIGHTS = DATA / "resnet20-cifar10.safetensors"

MEAN = torch.tensor([0.485, 0.456, 0.406])
STD = torch.tensor([0.229, 0.224, 0.225])


class Block(nn.Module):
    """Two 3×3 convolutions; where the shape changes, shortcut A: every other pixel, and zeros for the new channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.new = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        if self.new:
            x = F.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, self.new // 2, self.new // 2))
        return (x + y).relu()


class ResNet20(nn.Module):
    """Three stages of 16, 32 and 64 channels, three blocks each, for 32×32 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(Block(16, 16, 1) for _ in range(3)))
        self.layer2 = nn.Sequential(Block(16, 32, 2), *(Block(32, 32, 1) for _ in range(2)))
        self.layer3 = nn.Sequential(Block(32, 64, 2), *(Block(64, 64, 1) for _ in range(2)))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu())))
        return self.linear(x.mean((2, 3)))


def load_model() -> nn.Module:
    model = ResNet20()
    model.load_state_dict(load_file(WEIGHTS))
    return model.eval()


def load_validation_images() -> tuple[Tensor, Tensor]:
    """All 5,000 images, normalised, (5000, 3, 32, 32), and their classes: the class folders in alphabetical order."""
    pixels, names = [], []
    with tarfile.open(ARCHIVE, "r:xz") as archive:
        for member in archive:
            folder, _, rest = member.name.partition("/val/")
            if folder == "cifar10" and member.isfile() and rest:
                content = archive.extractfile(member)
                assert content is not None
                pixels.append(numpy.asarray(Image.open(io.BytesIO(content.read())).convert("RGB")))
                names.append(rest.split("/")[0])
    classes = sorted(set(names))
    images = torch.from_numpy(numpy.stack(pixels)).float() / 255
    images = ((images - MEAN) / STD).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor([classes.index(name) for name in names])
