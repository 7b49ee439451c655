"""Tiny Darknet under timm's names, registered as timm's documentation says: what makes models by name can make it."""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

from benchmarks.reproduce.networks.published import TinyDarknet

default_cfgs = generate_default_cfgs({
    "tiny_darknet": {
        "num_classes": 1000, "input_size": (3, 224, 224), "crop_pct": 0.875, "interpolation": "bilinear",
        "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "first_conv": "conv0", "classifier": "conv15",
    }
})  # fmt: skip


class Network(TinyDarknet):
    """With as many classes as are asked for."""

    def __init__(self, num_classes: int = 1000, in_chans: int = 3) -> None:
        super().__init__()
        assert in_chans == 3
        if num_classes != self.num_classes:
            self.reset_classifier(num_classes)


@register_model  # type: ignore[untyped-decorator]
def tiny_darknet(pretrained: bool = False, **given: Any) -> Network:
    model: Network = build_model_with_cfg(Network, "tiny_darknet", pretrained, **given)
    return model
