"""The networks that are compared: timm's by name, and three small ones for weights that others have published."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import timm
import timm.data
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models.convmixer import ConvMixer
from torch import nn
from torchvision.models import SqueezeNet

import tcnn
from tcnn.config import FinetuneConfig
from tcnn.errors import RequestError, WeightsError, one_line
from tcnn.training.preparing.converted import conversion_at
from tcnn.training.preparing.settings import drop_path_for
from tcnn.zoo.sources import create_source, create_structure

from .published import ResNet20, TinyDarknet


class SqueezeNet11(SqueezeNet):
    """torchvision's SqueezeNet 1.1 (Iandola et al. 2016), which says as timm's models do how its images are prepared.

    The 3×3 convolutions of its last two stages see 27×27 and 13×13 pixels at 224.
    """

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


OWN: dict[str, Callable[[], nn.Module]] = {
    "resnet20": ResNet20, "squeezenet1_1": SqueezeNet11, "tiny_darknet": TinyDarknet,
    "convit_32": lambda: timm.create_model(
        "convit_tiny", img_size=32, patch_size=4, depth=6, num_heads=9, embed_dim=12, local_up_to_layer=4
    ),
    "deit_32": lambda: timm.create_model(
        "convit_tiny", img_size=32, patch_size=4, depth=6, num_heads=9, embed_dim=12, local_up_to_layer=0
    ),
    "convmixer_32": lambda: ConvMixer(64, 8, kernel_size=5, patch_size=4, num_classes=10),
    "resnet18_32": lambda: _for_small_images(timm.create_model("resnet18")),
    "vit_tiny_32": lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, depth=6),
}  # fmt: skip
"""Of the last five nobody has published weights."""


def _for_small_images(model: Any) -> nn.Module:
    """A ResNet whose stem neither strides nor pools, as He et al. 2016, §4.2, have it for 32 pixels."""
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    found: nn.Module = model
    return found


def network(
    name: str, weights: Path | None, class_names: Sequence[str], config: FinetuneConfig, *, pretrained: bool
) -> nn.Module:
    """A CNN for these classes, in evaluation mode, its random parts drawn by the configuration's seed.

    `weights` is a file; without one timm fetches its own. Raises `WeightsError`, `RequestError`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = _own(name, weights, config, pretrained) if name in OWN else _timm(name, weights, config, pretrained)
        if getattr(model, "num_classes", None) != len(class_names):
            _fit(model, class_names)
    return model.eval()


def shaped(model: nn.Module, config: FinetuneConfig, size: tuple[int, int]) -> nn.Module:
    """The CNN with the geometry that an arm asks for, traced at the size (height, width) that it is trained at."""
    if config.convert or config.conversion.stride == "keep":
        return model
    return tcnn.without_stride(model, conversion_at(config, size))


def _own(name: str, weights: Path | None, config: FinetuneConfig, pretrained: bool) -> nn.Module:
    if config.drop_path:
        raise RequestError(f"drop_path: {name} has no stochastic depth; leave it at 0")
    model = OWN[name]()
    if not pretrained:
        return model
    if weights is None:
        raise WeightsError(
            f"{name}: give the file of its weights with --weights; docs/results.md says where it is from"
        )
    try:
        model.load_state_dict(load_file(weights))
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{weights}: not readable as safetensors ({one_line(error)})") from error
    except RuntimeError as error:
        raise WeightsError(f"{weights}: does not fit {name} ({one_line(error)})") from error
    return model


def _timm(name: str, weights: Path | None, config: FinetuneConfig, pretrained: bool) -> nn.Module:
    parameters = sum(p.numel() for p in create_structure(name).parameters())
    rate = drop_path_for(config, name.partition(".")[0], parameters)
    try:
        return create_source(name, pretrained, weights, drop_path_rate=rate)
    except WeightsError as error:
        if "drop_path_rate" not in str(error) or config.drop_path:
            raise
        return create_source(name, pretrained, weights)


def _fit(model: nn.Module, class_names: Sequence[str]) -> None:
    """A head for other classes. Where they are some of ImageNet's thousand, it keeps what the old one knows of them."""
    if not hasattr(model, "reset_classifier"):
        raise RequestError(f"{type(model).__name__} has no reset_classifier to give it {len(class_names)} classes")
    before = model.get_classifier()  # type: ignore[operator]
    model.reset_classifier(len(class_names))  # type: ignore[operator]
    after = model.get_classifier()  # type: ignore[operator]
    known = {name: index for index, name in enumerate(timm.data.ImageNetInfo().label_names())}
    if _of_imagenet(before) and set(class_names) <= set(known):
        rows = [known[name] for name in class_names]
        after.load_state_dict({key: value[rows] for key, value in before.state_dict().items()})


def _of_imagenet(head: nn.Module) -> bool:
    """Whether a head has an output for each of ImageNet's thousand classes."""
    return getattr(head, "out_features", getattr(head, "out_channels", None)) == 1000
