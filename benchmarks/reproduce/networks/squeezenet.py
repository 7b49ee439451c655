"""torchvision's SqueezeNet 1.1 (Iandola et al. 2016), which says as timm's models do how its images are prepared."""

from torch import nn
from torchvision.models import SqueezeNet


class SqueezeNet11(SqueezeNet):
    """Version 1.1; the 3×3 convolutions of its last two stages see 27×27 and 13×13 pixels at 224."""

    def __init__(self) -> None:
        super().__init__("1_1")
        self.pretrained_cfg = self.default_cfg = {
            "input_size": (3, 224, 224), "crop_pct": 0.875, "interpolation": "bilinear", "num_classes": 1000,
            "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225),
        }  # fmt: skip

    def get_classifier(self) -> nn.Module:
        return self.classifier[1]

    def reset_classifier(self, classes: int) -> None:
        """A new head, as timm's models can make one."""
        self.classifier[1], self.num_classes = nn.Conv2d(512, classes, 1), classes
