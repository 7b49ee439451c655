"""`tcnn.inspect`: gates, spans, centres, non-locality, entropy and attention maps of every head."""

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from tcnn.analysis.attention import AttentionAt, Encoded, encode
from tcnn.analysis.images import Images, Pictures, pictures_of
from tcnn.analysis.measures import Measures, Parts, circle, measure
from tcnn.analysis.recorded import RecordedLayer
from tcnn.analysis.records import Head, Inspection, Layer, LayerMaps, Measure, NonLocality, Picture
from tcnn.arguments import typed
from tcnn.checkpoints.opening import open_model
from tcnn.config.values import sides_of
from tcnn.errors import RequestError
from tcnn.formatting import unused
from tcnn.layers.terms import positions
from tcnn.layers.terms.positions import Pair
from tcnn.models.checks import unwrapped
from tcnn.models.running import architecture_name, usable_device
from tcnn.models.trace import input_shape

BATCH = 4
"""Images per forward pass."""
NOTHING = "expected images, but none can be read; only what does not depend on images is told"
DIGITS = 6
"""Decimals of the weights of a written map."""


@typed()
def inspect(
    model: nn.Module | str | Path,
    images: Images | None = None,
    query: tuple[float, float] = (0.5, 0.5),
    *,
    against: Sequence[nn.Module | str | Path] = (),
    limit: int = 32,
    shown: int = 3,
    size: int | Pair | None = None,
    device: str = "cpu",
) -> Inspection:
    """Inspect a model's attention: measures of every head, and attention maps on images.

    Args:
        model: a converted model, a checkpoint, or a timm model with attention (ViT, DeiT, ConViT) or its name.
        images: an image or a folder of them, images of PIL, several of either, or model inputs, (B, C, H, W). Without
            any, only what does not depend on images is measured.
        query: (y, x) in shares of the image's height and width, where attention maps are taken.
        against: further models whose layers are measured on the same images.
        limit: number of images of a folder that are measured.
        shown: number of images whose maps are kept.
        size: pixels, or (height, width); the model's own by default.

    Unreadable files are named in the result and left out; if all of them are, the rest is measured nevertheless.

    Raises: `RequestError` when the model has no attention, or `images` contains no file that may be an image.
    """
    place = usable_device(device)
    if limit < 1 or shown < 0:
        raise RequestError(f"expected at least 1 image and 0 shown, found limit {limit} and shown {shown}")
    if not all(0 <= share <= 1 for share in query):
        raise RequestError(f"query: expected shares (y, x) of the image between 0 and 1, found {query}")
    sides = None if size is None else sides_of(size)
    if sides is not None and isinstance(images, Tensor) and images.shape[-2:] != sides:
        raise RequestError("size: the images are a tensor, of a size of their own; leave one of the two out")
    name, opened = _opened(model, place)
    pictures = pictures_of(opened, images, limit, sides)
    encoded, layers = _layers(opened, pictures, sides)
    notes = [] if pictures is None or pictures.names else [f"{images}: {NOTHING}"]
    notes += encoded.notes
    others: list[NonLocality] = []
    for other in against:
        other_name, other_model = _opened(other, place)
        other_encoded, other_layers = _layers(other_model, pictures_of(other_model, images, limit, sides), sides)
        other_name = unused(other_name, [name, *(one.model for one in others)])
        others.append(NonLocality(model=other_name, layers=other_layers))
        notes += [f"{other_name}: {note}" for note in other_encoded.notes]
    return Inspection(
        model=name,
        size=encoded.size,
        images=0 if pictures is None else len(pictures.names),
        unreadable=[] if pictures is None else list(pictures.unreadable),
        query=query,
        layers=layers,
        pictures=[] if pictures is None else _maps(opened, pictures, query, shown),
        against=others,
        notes=notes,
    )


def _opened(model: nn.Module | str | Path, device: torch.device) -> tuple[str, nn.Module]:
    if not isinstance(model, str | Path):
        model = unwrapped(model)
        report = getattr(model, "conversion_report", None)
        return getattr(report, "base_model", None) or architecture_name(model), model
    return str(model), open_model(str(model)).to(device)


def _blank(model: nn.Module, size: Pair | None) -> Tensor:
    """A zero image, for layers whose positional attention does not depend on it."""
    return torch.zeros(1, *input_shape(model, size), device="cpu")


def _layers(model: nn.Module, pictures: Pictures | None, size: Pair | None) -> tuple[Encoded, list[Layer]]:
    """Measures of every layer on all images, `BATCH` at a time; without any, of what does not depend on them."""
    real = pictures is not None and len(pictures.names) > 0
    batch = pictures.tensors if pictures is not None and real else _blank(model, size)
    sums: dict[str, list[Tensor]] = {}
    for part in batch.split(BATCH):
        encoded = encode(model, part)
        for name, layer in encoded.layers.items():
            share = len(part) / len(batch)
            found = [share * values for values in _flat(measure(layer))]
            sums[name] = [a + b for a, b in zip(sums[name], found, strict=True)] if name in sums else found
    rows = []
    for name, layer in encoded.layers.items():
        measures = _unflat(sums[name], layer.factors is not None)
        rows.append(_layer(layer, measures, real))
    return encoded, rows


def _flat(measures: Measures) -> list[Tensor]:
    parts = (*measures.non_locality, *measures.entropy, measures.prefix)
    return [values for values in parts if values is not None]


def _unflat(values: list[Tensor], positional: bool) -> Measures:
    count = 3 if positional else 2
    far, wide = (
        Parts(part[0], part[1], part[2] if positional else None) for part in (values[:count], values[count : 2 * count])
    )
    return Measures(far, wide, values[-1])


def _layer(layer: RecordedLayer, measures: Measures, real: bool) -> Layer:
    geometry = layer.geometry
    heads = [_head(layer, measures, number, real) for number in range(layer.heads)]
    return Layer(
        name=layer.name,
        kind=layer.kind,
        map=layer.grid.size,
        padding=layer.grid.padding,
        queries=layer.grid.queries,
        kernel_size=geometry.kernel_size if geometry else None,
        dilation=geometry.dilation if geometry else None,
        temperature=layer.temperature if layer.gate is not None else None,
        gate_temperature=layer.gate_temperature if layer.gate is not None else None,
        gate=_mean([head.gate for head in heads]),
        span=_mean([head.span for head in heads]),
        non_locality=_over_heads([head.non_locality for head in heads]),
        entropy=_over_heads([head.entropy for head in heads]),
        prefix=measures.prefix.mean().item() if real else None,
        heads=heads,
    )


def _head(layer: RecordedLayer, measures: Measures, number: int, real: bool) -> Head:
    facts: dict[str, Any] = {}
    geometry = layer.geometry
    if geometry is not None and number < geometry.heads:
        facts["tap"] = divmod(number, geometry.kernel_size[1])
        facts["tap_offset"] = positions.tap_offsets(geometry)[number].tolist()
    positional = layer.strength is not None and number < len(layer.strength)
    if layer.gates is not None:
        facts["gate"] = layer.gates[number]
    if positional and layer.strength is not None and layer.spans is not None and layer.centres is not None:
        strength = layer.strength[number].item()
        if strength > 0:
            facts["span"] = layer.spans[number].item()
            facts["centre"] = layer.centres[number].tolist()
            facts["radius_50"], facts["radius_90"] = (circle(strength, share) for share in (0.5, 0.9))
        if layer.precision is not None:
            facts["precision"] = layer.precision[number].tolist()
    return Head(
        head=number,
        non_locality=_measure(measures.non_locality, number, real, positional),
        entropy=_measure(measures.entropy, number, real, positional),
        **facts,
    )


def _measure(parts: Parts, head: int, real: bool, positional: bool) -> Measure:
    return Measure(
        total=parts.total[head].item() if real else None,
        content=parts.content[head].item() if real else None,
        positional=parts.positional[head].item() if positional and parts.positional is not None else None,
    )


def _over_heads(measures: Sequence[Measure]) -> Measure:
    return Measure(**{part: _mean([getattr(m, part) for m in measures]) for part in Measure.model_fields})


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _maps(model: nn.Module, pictures: Pictures, query: tuple[float, float], shown: int) -> list[Picture]:
    found = []
    count = min(shown, len(pictures.names))
    for number in (place * len(pictures.names) // count for place in range(count)):  # files are in order of class
        layers = encode(model, pictures.tensors[number : number + 1]).at(query)
        buffer = io.BytesIO()
        Image.fromarray(pictures.seen[number]).save(buffer, format="PNG")
        found.append(
            Picture(
                name=pictures.names[number],
                png=base64.b64encode(buffer.getvalue()).decode(),
                layers=[layer_maps(layer) for layer in layers],
            )
        )
    return found


def layer_maps(at: AttentionAt) -> LayerMaps:
    """The attention maps of the first image as plain numbers."""

    def plain(maps: Tensor) -> list[list[list[float]]]:
        return [[[round(w, DIGITS) for w in row] for row in head] for head in maps.cpu().double().tolist()]

    return LayerMaps(
        layer=at.name,
        padding=at.padding,
        query=at.query,
        gates=at.gates,
        content=plain(at.content[0]),
        positional=None if at.positional is None else plain(at.positional_of(0)),
        combined=plain(at.combined[0]),
    )
