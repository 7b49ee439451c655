"""Attention maps for any query: encode images once, then get the maps of every head of every layer at a pixel.

Shapes: B images, K heads, H×W a layer's padded map.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tcnn.analysis.recorded import Grid, Kind, RecordedLayer, Recording, record_gpsa2d, record_self_attention
from tcnn.analysis.timm_attention import record_timm, tokens_of
from tcnn.conversion.report import refuse_folded
from tcnn.errors import NoAttentionError, RequestError
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.layers.terms.positions import Pair, Quad
from tcnn.models.checks import refuse_other_images, refuse_prepared, refuse_without_values, unwrapped
from tcnn.models.running import place_of, told_in_one_line, watch_layers, weights_dtype
from tcnn.models.state import same_start
from tcnn.models.trace import evaluating


@dataclass(frozen=True)
class AttentionAt:
    """Attention maps of one layer for one query. All maps are of the padded map, weights that sum to 1."""

    name: str
    kind: Kind
    size: Pair
    """Size (H, W) of the padded map."""
    padding: Quad
    """Padding (left, right, top, bottom) in pixels of the map."""
    query: Pair
    """Position (row, column) of the query on the padded map: the nearest to the requested one."""
    gate: Tensor | None
    """Gate σ(λ/τ), (K,): 1 is positional attention only, 0 content only. None where a layer has no positional part."""
    gates: list[float | None] | None
    """The same as numbers, None for content heads, which have no gate and are as one of 0."""
    content: Tensor
    """Content attention, (B, K, H, W)."""
    positional: Tensor | None
    """Positional attention, (K, H, W): the same for all images; (B, K, H, W) where it depends on them."""
    combined: Tensor
    """Attention weights (1 − gate)·content + gate·positional, (B, K, H, W)."""
    prefix: Tensor
    """Weight on class tokens and other prefix tokens, which have no position on the map, (B, K)."""

    def positional_of(self, image: int) -> Tensor:
        """Positional attention on one of the images, (K, H, W)."""
        assert self.positional is not None  # noqa: S101 - asked of layers that have one
        return self.positional[image] if self.positional.dim() == 4 else self.positional

    def image_part(self, maps: Tensor) -> Tensor:
        """Crop the padding of a map (…, H, W), so that it covers exactly the image."""
        left, right, top, bottom = self.padding
        return maps[..., top : self.size[0] - bottom, left : self.size[1] - right]


@dataclass(frozen=True)
class Encoded:
    """Images after a forward pass, with the queries and keys of every attention layer."""

    size: Pair
    """Size (height, width) of the images in pixels."""
    output: Any
    """Output of the model."""
    layers: Mapping[str, RecordedLayer] = field(repr=False)
    """The attention layers by dotted name, in the order in which they run; further passes of one as `name (2)`, …."""
    notes: Sequence[str] = ()
    """Layers that were left out, and why."""

    def at(self, query: tuple[float, float]) -> list[AttentionAt]:
        """Attention maps of every layer for a query at (y, x), in shares of the image's height and width.

        Raises `RequestError` for a position outside of the image.
        """
        y, x = query
        if not (0 <= y <= 1 and 0 <= x <= 1):
            raise RequestError(f"query: expected shares (y, x) of the image between 0 and 1, found ({y}, {x})")
        return [_at(layer, y, x) for layer in self.layers.values()]


def encode(model: nn.Module, images: Tensor) -> Encoded:
    """Run a forward pass in evaluation mode and record queries and keys of every attention layer.

    Args:
        model: one with `GPSA2d` or `SelfAttention2d` layers, or with timm attention over a map of patches; it is not
            changed.
        images: (B, C, height, width), preprocessed as the model expects them.

    Raises: `RequestError` if the model has no such layer, was folded or fused, or does not run on images of this size,
        or for images that are not finite.
    """
    model = unwrapped(model)
    refuse_without_values(model, "inspect")
    refuse_other_images(images)
    record = getattr(model, "conversion_report", None)
    if record is not None:  # heads that went into a convolution cannot be seen any more
        refuse_folded(record, record.base_model, "inspect")
    refuse_prepared(model, "inspect")
    recording = Recording()
    own = [name for name, module in model.named_modules() if isinstance(module, GPSA2d | SelfAttention2d)]
    size = images.shape[-2], images.shape[-1]

    def keep_own(name: str, layer: nn.Module, x: Tensor, _: Tensor) -> None:
        if isinstance(layer, GPSA2d):
            recording.keep(record_gpsa2d(name, layer, x))
        elif isinstance(layer, SelfAttention2d):
            recording.keep(record_self_attention(name, layer, x))

    with (
        torch.no_grad(),
        evaluating(model),
        same_start(model),
        watch_layers(model, own, keep_own),
        record_timm(model, tokens_of(model, size), recording),
        told_in_one_line(model, images),
    ):
        output = model(images.to(device=place_of(model), dtype=weights_dtype(model)))
    if not recording.layers:
        expected = (
            "expected GPSA layers (tcnn convert makes them), those of cordonnier_…, or timm's attention over a map of "
            "patches (ViT, DeiT, ConViT)"
        )
        told = "; ".join([expected, *recording.notes])
        raise NoAttentionError(f"{type(model).__name__} has no attention to look at: {told}")
    return Encoded(size, output, recording.layers, recording.notes)


def attention_at(model: nn.Module, images: Tensor, query: tuple[float, float] = (0.5, 0.5)) -> list[AttentionAt]:
    """Attention maps for one query: `encode` and `Encoded.at`; for several queries call `encode` once."""
    return encode(model, images).at(query)


@torch.no_grad()
def _at(layer: RecordedLayer, y: float, x: float) -> AttentionAt:
    grid: Grid = layer.grid
    i, j = grid.nearest(y, x)
    number = torch.tensor([i * grid.queries[1] + j], device=layer.query.device)
    maps = layer.maps(number)

    def on_map(weights: Tensor) -> Tensor:
        return weights[..., 0, layer.prefix :].unflatten(-1, grid.size)

    return AttentionAt(
        name=layer.name,
        kind=layer.kind,
        size=grid.size,
        padding=grid.padding,
        query=grid.place((i, j)),
        gate=layer.gate,
        gates=layer.gates,
        content=on_map(maps.content),
        positional=None if maps.positional is None else on_map(maps.positional),
        combined=on_map(maps.total),
        prefix=maps.total[..., 0, : layer.prefix].sum(-1),
    )
