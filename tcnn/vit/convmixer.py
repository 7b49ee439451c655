"""ConvMixer with random impulse filters: every channel is moved by one random offset, and only channels are mixed.

Zheng, Li and Lucey, *Convolutional Initialization for Data-Efficient Vision Transformers*, §3 and §5.1: spatial filters
need not be learned as long as they are linearly independent and there are enough of them. So filters that are 1 at one
random tap and 0 elsewhere, and never trained, do nearly as well as learned ones. Such a filter is an attention map with
one 1 in each row, which is what `impulse` makes of a transformer's heads.
"""

import torch
from timm.models.convmixer import ConvMixer
from torch import nn

from tcnn.errors import RequestError
from tcnn.vit.positions import draw_offsets
from tcnn.vit.report import InitialisationReport, InitialisedLayer


def spatial_filters(model: nn.Module) -> list[tuple[str, nn.Conv2d]]:
    """The depthwise k×k convolutions of a model, by dotted name."""
    return [
        (name, module) for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and module.groups == module.in_channels > 1 and max(module.kernel_size) > 1
    ]  # fmt: skip


@torch.no_grad()
def initialise_convmixer(
    model: ConvMixer, kind: str, window: int | None, seed: int, generator: torch.Generator
) -> InitialisationReport:
    """Set the spatial filters to random impulses, in place, and freeze them: `requires_grad` is off, and biases are 0.

    Args:
        kind: `impulse`, or `default`, which leaves them as timm drew them, to be learned.
        window: taps lie in a window of so many pixels, odd; default the whole kernel.

    Raises: `RequestError` for another kind, or a window that is larger than the kernel.
    """
    if kind not in ("impulse", "default"):
        raise RequestError(f"init: a ConvMixer takes impulse or default, found {kind!r}: it has no attention")
    layers = []
    for name, conv in spatial_filters(model) if kind == "impulse" else []:
        side = conv.kernel_size[0]
        own = side if window is None else window
        if own > side or own % 2 != side % 2:
            raise RequestError(f"window: expected an odd number of pixels up to the kernel's {side}, found {own}")
        offsets = draw_offsets(conv.out_channels, own, generator)
        conv.weight.zero_()
        for channel, (down, right) in enumerate(offsets):
            conv.weight[channel, 0, side // 2 + down, side // 2 + right] = 1
        conv.weight.requires_grad_(False)
        if conv.bias is not None:
            conv.bias.zero_().requires_grad_(False)
        layers.append(InitialisedLayer(name=name, offsets=tuple(offsets), hits=1.0, weight=1.0))
    height, width = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))[1:]
    patch = model.stem[0].kernel_size
    return InitialisationReport(
        model=type(model).__name__, initialisation=kind, positions="keep", grid=(height // patch[0], width // patch[1]),  # type: ignore[arg-type]
        prefix_tokens=0, seed=seed, layers=tuple(layers),
    )  # fmt: skip
