"""Tiny Darknet (J. Redmon, pjreddie.com/darknet/tiny-darknet): ImageNet in 4 MB, with weights that others trained."""

from torch import Tensor, nn

PLAN = (
    (16, 3), (32, 3), (16, 1), (128, 3), (16, 1), (128, 3), (32, 1), (256, 3), (32, 1), (256, 3), (64, 1), (512, 3),
    (64, 1), (512, 3), (128, 1),
)  # fmt: skip
"""Channels and kernel of every layer but the last, which has a channel for every class and kernel 1."""
POOLED = (0, 1, 5, 9)
"""Layers that are followed by 2×2 max pooling."""


class TinyDarknet(nn.Module):
    """Sixteen convolutions and the mean over the map. The last 3×3 ones, `conv11` and `conv13`, see 14×14 at 224."""

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
