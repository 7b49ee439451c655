"""Small CNNs with real knowledge, for weights that others have trained: a ResNet-20 of CIFAR-10, and Tiny Darknet."""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

PLAN = (
    (16, 3), (32, 3), (16, 1), (128, 3), (16, 1), (128, 3), (32, 1), (256, 3), (32, 1), (256, 3), (64, 1), (512, 3),
    (64, 1), (512, 3), (128, 1),
)  # fmt: skip
"""Channels and kernel of every layer but the last, which has a channel for every class and kernel 1."""
POOLED = (0, 1, 5, 9)
"""Layers that are followed by 2×2 max pooling."""


class Subsample(nn.AvgPool2d):
    """Every s-th pixel: a pool of one pixel, as a module, so that a stage can be rebuilt without its stride."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., :: self.stride, :: self.stride]


class Block(nn.Module):
    """Two 3×3 convolutions; where the shape changes, shortcut A: every other pixel, and zeros for the new channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.subsample = Subsample(1, stride)
        self.new = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        if self.new:
            x = F.pad(self.subsample(x), (0, 0, 0, 0, self.new // 2, self.new // 2))
        return (x + y).relu()


class ResNet20(nn.Module):
    """The CIFAR-10 ResNet-20 of He et al. 2016, §4.2.

    Three stages of 16, 32 and 64 channels, three blocks each; the last works on 8×8 maps of a 32×32 image.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(Block(16, 16, 1) for _ in range(3)))
        self.layer2 = nn.Sequential(Block(16, 32, 2), *(Block(32, 32, 1) for _ in range(2)))
        self.layer3 = nn.Sequential(Block(32, 64, 2), *(Block(64, 64, 1) for _ in range(2)))
        self.linear = nn.Linear(64, 10)
        self.num_classes = 10
        # The stages by name, where timm looks for them: they stay what they are on a dilated stage's larger map.
        self.feature_info = [
            {"num_chs": 16 * 2**stage, "reduction": 2**stage, "module": f"layer{stage + 1}"} for stage in range(3)
        ]
        # How images are prepared, where timm looks for it: whole images, ImageNet's mean and standard deviation.
        self.pretrained_cfg = self.default_cfg = {
            "input_size": (3, 32, 32), "crop_pct": 1.0, "interpolation": "bilinear", "num_classes": 10,
            "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225),
        }  # fmt: skip

    def get_classifier(self) -> nn.Module:
        return self.linear

    def reset_classifier(self, classes: int) -> None:
        """A new head, as timm's models can make one."""
        self.linear, self.num_classes = nn.Linear(64, classes), classes

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu())))
        return self.linear(x.mean((2, 3)))


def pretrained(weights: Path) -> nn.Module:
    """The ResNet-20 with its published weights, in evaluation mode."""
    model = ResNet20()
    model.load_state_dict(load_file(weights))
    return model.eval()


class TinyDarknet(nn.Module):
    """Tiny Darknet (J. Redmon, pjreddie.com/darknet/tiny-darknet): ImageNet in 4 MB.

    Sixteen convolutions and the mean over the map. The last 3×3 ones, `conv11` and `conv13`, see 14×14 at 224.
    """

    def __init__(self) -> None:
        super().__init__()
        width = 3
        for index, (channels, kernel) in enumerate(PLAN):
            self.add_module(f"conv{index}", nn.Conv2d(width, channels, kernel, padding=kernel // 2, bias=False))
            self.add_module(f"bn{index}", nn.BatchNorm2d(channels, eps=1e-6))
            self.add_module(f"act{index}", nn.LeakyReLU(0.1))
            if index in POOLED:
                self.add_module(f"pool{index}", nn.MaxPool2d(2))
            width = channels
        self.conv15 = nn.Conv2d(width, 1000, 1)
        self.num_classes = 1000
        # How images are prepared, where timm looks for it: pixels in 0…1, neither mean nor standard deviation.
        self.pretrained_cfg = self.default_cfg = {
            "input_size": (3, 224, 224), "crop_pct": 0.875, "interpolation": "bilinear", "num_classes": 1000,
            "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0),
        }  # fmt: skip

    def get_classifier(self) -> nn.Module:
        return self.conv15

    def reset_classifier(self, classes: int) -> None:
        """A new head, as timm's models can make one."""
        self.conv15, self.num_classes = nn.Conv2d(self.conv15.in_channels, classes, 1), classes

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x.mean((2, 3))
