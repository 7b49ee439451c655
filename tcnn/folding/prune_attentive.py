"""Pruning of a network of attention alone (Cordonnier et al. 2020, App. E): what is left can be trained further."""

import copy

from torch import Tensor

from tcnn.config import VerificationConfig
from tcnn.conversion.report import ConversionReport
from tcnn.conversion.surgery import unconverted
from tcnn.errors import RequestError
from tcnn.folding.apply import pruning_report
from tcnn.folding.degenerate import degenerate, hand_over, looking, nothing_left, nothing_to_prune
from tcnn.folding.fold import Folding
from tcnn.folding.report import FoldedLayer, PrunedHead
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.layers.terms.positions import Pair
from tcnn.models.randomise import noise_images
from tcnn.models.running import watch_layers
from tcnn.models.trace import evaluating, parameter_count
from tcnn.networks.attentive import AttentiveNet


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
    sizes = _map_sizes(model, layers, batch[:1])
    merged = copy.deepcopy(model)
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
    return Folding(pruned, pruning_report(model, pruned, batch, images, config.seed, entries, removed))


def _map_sizes(model: AttentiveNet, layers: dict[str, SelfAttention2d], image: Tensor) -> dict[str, Pair]:
    """(H, W) of the map that each layer gets in a forward pass of an image."""
    sizes: dict[str, Pair] = {}

    def keep(name: str, _: object, x: Tensor, __: Tensor) -> None:
        sizes[name] = x.shape[1], x.shape[2]

    weight = next(model.parameters())
    with evaluating(model), watch_layers(model, layers, keep):
        model(image.to(weight.device, weight.dtype))
    return sizes
