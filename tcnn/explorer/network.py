"""The network of the page: a T-CNN that also returns its content attention, and what else its layers' maps take.

Shapes: B images, K heads, Ho×Wo queries, M = Ho·Wo, H×W a layer's padded map, N = H·W keys.
"""

import base64
from typing import Any

import torch
from torch import Tensor, nn

from tcnn.analysis.measures import circles
from tcnn.analysis.recorded import RecordedLayer, Recording, record_gpsa2d
from tcnn.conversion.report import ConversionReport, refuse_folded
from tcnn.errors import RequestError
from tcnn.layers.gpsa import GPSA2d
from tcnn.models.checks import refuse_prepared
from tcnn.models.running import gpsa_layers, watch_layers
from tcnn.models.trace import evaluating

MOST_BYTES = 2**28
"""Bytes of all maps of an image: they are in the page's memory twice, beside all that the network takes."""


class WithAttention(nn.Module):
    """A T-CNN, (B, C, height, width) to a dict of `logits` (B, classes) and of `content_N` (B, K, M, N) of layer N.

    Layers count in the order in which they run. Without `logits` where the model returns something else. Positional
    attention that is no product of rows and columns is `positional_N`, (B, K, M, N), or (1, K, M, N) for all images.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        output, layers = run(self.model, images)
        found = {"logits": output} if isinstance(output, Tensor) and output.dim() == 2 else {}
        for number, layer in enumerate(layers):
            queries = torch.arange(layer.query.shape[2], device=images.device)
            maps = layer.maps(queries)
            found[f"content_{number}"] = maps.content
            if maps.positional is not None and not _is_product(layer):
                found[f"positional_{number}"] = maps.positional if maps.positional.dim() == 4 else maps.positional[None]
        return found


def run(model: nn.Module, images: Tensor) -> tuple[Any, list[RecordedLayer]]:
    """The output of a model, and its GPSA layers with their queries and keys, in the order in which they ran."""
    recording = Recording()

    def keep(name: str, layer: nn.Module, x: Tensor, _: Tensor) -> None:
        if isinstance(layer, GPSA2d):
            recording.keep(record_gpsa2d(name, layer, x))

    with watch_layers(model, gpsa_layers(model), keep):
        output = model(images)
    return output, list(recording.layers.values())


def check_attention(model: nn.Module) -> None:
    """Raise `RequestError` for a model whose heads cannot be seen: none, folded or fused ones."""
    record = getattr(model, "conversion_report", None)
    if isinstance(record, ConversionReport):
        refuse_folded(record, record.base_model, "explore")
    refuse_prepared(model, "explore")
    if not gpsa_layers(model):
        raise RequestError(
            f"{type(model).__name__} has no GPSA layers, and so no heads to look at; convert it first: tcnn convert"
        )


def describe_layers(model: nn.Module, example: Tensor) -> list[dict[str, Any]]:
    """What the page must know of every layer to draw its maps on images of the example's size.

    Raises: `RequestError` where the maps take more memory than a page should.
    """
    with torch.no_grad(), evaluating(model):
        _, layers = run(model, example)
    maps = [1 if _is_product(layer) else 2 for layer in layers]
    size = sum(
        n * layer.heads * layer.query.shape[2] * layer.key.shape[2] * 4 for n, layer in zip(maps, layers, strict=True)
    )
    if size > MOST_BYTES:
        raise RequestError(
            f"the attention maps of one image take {size / 2**20:,.0f} MiB, a page should hold "
            f"{MOST_BYTES / 2**20:.0f} at most; choose a smaller --size, or convert fewer layers"
        )
    return [_described(layer) for layer in layers]


def _is_product(layer: RecordedLayer) -> bool:
    """Whether its positional attention is a product of a row factor and a column factor, the same for all images."""
    return layer.factors is not None and layer.factors[1] is not None


def _described(layer: RecordedLayer) -> dict[str, Any]:
    assert layer.factors is not None and layer.gate is not None and layer.geometry is not None  # noqa: S101 - of GPSA2d
    rows, columns = layer.factors if _is_product(layer) else (None, None)
    grid, geometry = layer.grid, layer.geometry
    return {
        "name": layer.name,
        "heads": layer.heads,
        "kernel": geometry.kernel_size if layer.heads == geometry.heads else None,
        "size": grid.size,
        "padding": grid.padding,
        "queries": grid.queries,
        "first": grid.first,
        "stride": grid.stride,
        "gate": layer.gates,
        "temperature": layer.temperature,
        **circles(layer),
        "rows": _packed(rows),
        "columns": _packed(columns),
    }


def _packed(factor: Tensor | None) -> str | None:
    """A factor of the positional attention as base64 of little-endian float32; None where the network gives maps."""
    if factor is None:
        return None
    return base64.b64encode(factor.detach().float().contiguous().numpy().astype("<f4").tobytes()).decode()
