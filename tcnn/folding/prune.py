"""`prune`: remove heads by where they look: too far away, where another looks, everywhere alike, or along a line.

What content attention brings is not asked: only heads that are more positional than not are removed. The error is
whatever it is; measure it. Of a network of attention alone (Cordonnier et al. 2020, App. E) what is left can be trained
further.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tcnn.arguments import typed
from tcnn.config import VerificationConfig, build
from tcnn.conversion.report import ConversionReport
from tcnn.conversion.surgery import unconverted
from tcnn.errors import RequestError
from tcnn.folding.apply import (
    attach_report,
    checked,
    convolutions_of,
    entry,
    fold_layers,
    kinds_at,
    pruning_report,
)
from tcnn.folding.degenerate import (
    SAME,
    Looking,
    degenerate,
    hand_over,
    looking,
    nothing_left,
    nothing_to_prune,
)
from tcnn.folding.fold import Folding
from tcnn.folding.foldable import heads_of
from tcnn.folding.report import FoldedLayer, PrunedHead
from tcnn.layers.folded import HeadKind
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.layers.terms import positions
from tcnn.layers.terms.positions import Pair
from tcnn.models.checks import refuse_other_images, refuse_without_values, unwrapped
from tcnn.models.copying import copied
from tcnn.models.randomise import noise_images
from tcnn.models.running import place_of, replacements, told_in_one_line, watch_layers, weights_dtype
from tcnn.models.state import same_start
from tcnn.models.trace import evaluating, parameter_count
from tcnn.networks.attentive import AttentiveNet

POSITIONAL = 0.5
"""Gate from which a head is more positional than not."""


@torch.inference_mode(False)
@torch.no_grad()
@typed()
def prune(
    model: nn.Module,
    far: float | None = None,
    same: float = SAME,
    images: Tensor | None = None,
    source: nn.Module | None = None,
    config: VerificationConfig | None = None,
) -> Folding:
    """Remove heads whose centres are too far away or coincide, or whose attention is degenerate.

    Args:
        model: what `tcnn.convert` or `tcnn.load` returned, trained further or not, or a network of attention alone
            (`cordonnier_*`); it is not changed.
        far: pixels from the query beyond which a centre is too far; by default, beyond the whole of the layer's map.
        same: pixels within which two centres of a layer are the same.
        images: (B, C, H, W), normalised as the model expects, on which the error is measured; noise when None.
        source: the architecture that was converted, for models that timm does not know.
        config: size and seed of the noise.

    Returns: the pruned model and the report, whose `pruned` names every head and why. Heads that are exactly a tap of a
    convolution are folded into it, as `fold` does, and a T-CNN is for inference then; a network of attention alone has
    fewer heads and can be trained further.

    Raises: `NothingToConvertError` where no head is removed, `RequestError` where all heads of a layer would be.
    """
    if far is not None and not far > 0:
        raise RequestError(f"far: expected a distance in pixels above 0, found {far:g}")
    if not 0 <= same < torch.inf:
        raise RequestError(f"same: expected a distance in pixels of 0 or more, found {same:g}")
    config = build(VerificationConfig, {}, config)
    model = unwrapped(model)
    refuse_without_values(model, "prune")
    if images is not None:
        refuse_other_images(images)
    if isinstance(model, AttentiveNet):
        return prune_attentive(model, far, same, images, config)
    record = checked(model, None)
    layers = replacements(model)
    batch = noise_images(model, config) if images is None else images
    sizes = _map_sizes(model, layers, batch[:1])
    heads = {name: heads_of(layer) for name, layer in layers.items()}
    kinds = kinds_at(heads, 0.0)
    removed: list[PrunedHead] = []
    merged = copied(model)
    for name, layer in replacements(merged).items():
        parts = layer.proj.unflatten(1, (layer.heads, -1))
        own = degenerate(name, _looking(layer, parts, sizes[name]), _spared(layer, kinds[name]), far, same)
        hand_over(parts, own)
        gone = {head.head for head in own}
        kinds[name] = tuple("dropped" if head in gone else kind for head, kind in enumerate(kinds[name]))
        if own and set(kinds[name]) == {"dropped"}:
            raise nothing_left(name, layer.heads, own, far)
        removed += own
    if not removed:
        taps = sum(own.count("convolution") for own in kinds.values())
        raise nothing_to_prune(far, same, taps, sum(map(len, kinds.values())))
    pruned, notes = fold_layers(merged, kinds, heads, convolutions_of(model, record, source, layers))
    entries = tuple(entry(name, layers[name], pruned.get_submodule(name), kinds[name], notes) for name in layers)
    report = pruning_report(model, pruned, batch, images, config, entries, removed)
    return Folding(attach_report(pruned, record, entries, kinds), report)


def _spared(layer: GPSA2d, kinds: tuple[HeadKind, ...]) -> set[int]:
    """Heads that stay: more content than position, or no longer attention, as those that are a tap exactly."""
    gate = layer.gate.tolist()
    return {head for head, kind in enumerate(kinds) if kind != "attention" or gate[head] < POSITIONAL}


def _looking(layer: GPSA2d, proj: Tensor, size: Pair) -> Looking:
    term = layer.positional_term
    assert term is not None  # noqa: S101 - a layer that was converted has taps
    return looking(term, layer.position_temperature, proj, size)


def _map_sizes(model: nn.Module, layers: Mapping[str, GPSA2d], image: Tensor) -> dict[str, Pair]:
    """(H, W) of the largest padded map that each layer gets in a forward pass of an image."""
    sizes: dict[str, Pair] = {}

    def keep(name: str, layer: nn.Module, x: Tensor, _: Tensor) -> None:
        assert isinstance(layer, GPSA2d)  # noqa: S101 - nothing else is watched
        sizes[name] = max(sizes.get(name, (0, 0)), positions.padded_size(x.shape[-2:], layer.geometry))

    with evaluating(model), same_start(model), told_in_one_line(model, image), watch_layers(model, layers, keep):
        model(image.to(place_of(model), weights_dtype(model)))
    if missing := [name for name in layers if name not in sizes]:
        raise RequestError(f"{missing[0]}: never ran, so that the size of its map is not known; give a distance (far)")
    return sizes


def prune_attentive(
    model: AttentiveNet, far: float | None, same: float, images: Tensor | None, config: VerificationConfig
) -> Folding:
    """Remove heads of every layer, as `prune` does. Called without gradients.

    Raises: `NothingToConvertError`, `RequestError` where a layer would have no head, or where heads look by content.
    """
    layers = model.attention_layers()
    if looks := next((name for name, layer in layers.items() if layer.content), None):
        raise RequestError(
            f"{looks}: its heads look by content for where to look, so that they have no centre to be pruned by; "
            "expected a network without content, as cordonnier_learned"
        )
    batch = noise_images(model, config) if images is None else images
    sizes = _own_map_sizes(model, layers, batch[:1])
    merged = copied(model)
    kept: list[list[int]] = []
    removed: list[PrunedHead] = []
    for name, layer in merged.attention_layers().items():
        parts = layer.proj.weight.unflatten(1, (layer.heads, -1))
        seen = looking(layer.term, layer.proj.weight.new_ones(()), parts, sizes[name])
        own = degenerate(name, seen, (), far, same)
        if len(own) == layer.heads:
            raise nothing_left(name, layer.heads, own, far)
        hand_over(parts, own)
        kept.append(sorted(set(range(layer.heads)) - {head.head for head in own}))
        removed += own
    if not removed:
        raise nothing_to_prune(far, same)
    pruned = merged.with_heads(kept)
    record = getattr(pruned, "conversion_report", None)
    if isinstance(record, ConversionReport):
        pruned.conversion_report = record.model_copy(update={"parameters_after": parameter_count(pruned)})  # type: ignore[assignment]
    else:
        unconverted(pruned)
    entries = tuple(
        FoldedLayer(
            name=name, becomes="attention", convolution=0, content=0, attention=made.heads,
            dropped=layers[name].heads - made.heads, parameters_before=parameter_count(layers[name]),
            parameters_after=parameter_count(made),
        )
        for name, made in pruned.attention_layers().items()
    )  # fmt: skip
    return Folding(pruned, pruning_report(model, pruned, batch, images, config, entries, removed))


def _own_map_sizes(model: AttentiveNet, layers: dict[str, SelfAttention2d], image: Tensor) -> dict[str, Pair]:
    """(H, W) of the map that each layer gets in a forward pass of an image."""
    sizes: dict[str, Pair] = {}

    def keep(name: str, _: object, x: Tensor, __: Tensor) -> None:
        sizes[name] = x.shape[1], x.shape[2]

    with evaluating(model), watch_layers(model, layers, keep):
        model(image.to(place_of(model), weights_dtype(model)))
    return sizes
