"""`fold` and `fuse`: merge heads that are convolutions into one, so that an unchanged T-CNN is its CNN; fuse layers.

`foldable` decides what each head can become; here the model is folded and the error of its logits measured. Where an
error is allowed, the largest tolerance whose measured error is within it is searched for.

`fuse` prepares a model's attention layers for inference, as timm's `reparameterize_model` prepares convolutions.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tcnn.arguments import typed
from tcnn.config import VerificationConfig, build
from tcnn.config.base import ErrorStats
from tcnn.conversion.carry import attributes_of, copy_with, put_into, taken
from tcnn.errors import NothingToConvertError, RequestError, VerificationError
from tcnn.folding.apply import (
    Kinds,
    attach_report,
    checked,
    compare,
    convolutions_of,
    entry,
    fold_layers,
    images_told,
    kinds_at,
    logits,
    precision,
)
from tcnn.folding.foldable import Head, heads_of, largest_within, tolerances
from tcnn.folding.report import FoldReport
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.base import AttentionLayer
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.fused import FusedGPSA2d
from tcnn.models.checks import refuse_other_images, refuse_prepared, refuse_without_values, unwrapped
from tcnn.models.precision import exact_arithmetic
from tcnn.models.randomise import noise_images, randomised
from tcnn.models.running import replacements
from tcnn.models.trace import evaluating, parameter_count
from tcnn.verification.judging import unsteady

Progress = Callable[[str], None]


class Folding(NamedTuple):
    """The folded model and its report; unpacks as `model, report`."""

    model: nn.Module
    report: FoldReport


@torch.inference_mode(False)
@typed()
def fold(
    model: nn.Module,
    max_error: float | None = None,
    images: Tensor | None = None,
    randomise: bool = False,
    source: nn.Module | None = None,
    config: VerificationConfig | None = None,
    progress: Progress = lambda step: None,
) -> Folding:
    """Fold a T-CNN: heads become a convolution, lose their position, or are removed.

    Args:
        model: what `tcnn.convert` or `tcnn.load` returned, trained further or not; it is not changed.
        max_error: the largest relative error of the logits that is accepted; as much is folded as stays within. By
            default only what changes nothing is folded.
        images: (B, C, H, W), normalised as the model expects, on which the error is measured; noise when None.
        randomise: for random weights: make the models look trained while they are compared, as in `tcnn.verify`.
        source: the architecture that was converted, for models that timm does not know.
        config: size and seed of the noise, the tolerance of a fold that changes nothing, and whether the error is
            measured in float64.

    Returns: `Folding(model, report)`. When every layer became a convolution again the model is a plain CNN with the
    state dict of its source architecture.

    Raises: `NothingToConvertError` when no head can be folded, `VerificationError` when none can within `max_error`.
    """
    config = build(VerificationConfig, {}, config)
    model = unwrapped(model)
    refuse_without_values(model, "fold")
    record = checked(model, max_error)
    if images is not None:
        refuse_other_images(images)
    layers = replacements(model)
    heads = {name: heads_of(layer) for name, layer in layers.items()}
    convolutions = convolutions_of(model, record, source, layers)
    batch = noise_images(model, config) if images is None else images
    steps = tolerances(head for found in heads.values() for head in found) if max_error is not None else [0.0]
    found: dict[int, tuple[ErrorStats, float]] = {}

    def error(step: int) -> float:
        progress(f"measuring at tolerance {steps[step]:.1e}")
        candidate = fold_layers(model, kinds_at(heads, steps[step]), heads, convolutions)[0]
        found[step] = compare(expected, candidate, batch, config.float64)
        return found[step][0].worst

    changing = [step for step, tolerance in enumerate(steps) if _folds(kinds_at(heads, tolerance))]
    if not changing:
        raise NothingToConvertError(_refusal(heads, max_error))
    looks_trained = randomised(model, model, batch, config.seed, enabled=randomise)
    # The T-CNN's attention runs, never a shortcut through a convolution: that would compare like with like.
    with exact_arithmetic(), torch.no_grad(), use_backend("fused"), looks_trained:
        expected = logits(model, batch, config.float64)
        bound = config.tolerance_float32 if max_error is None else max_error
        chosen = largest_within(len(changing), lambda i: error(changing[i]), bound)
        advice = "allow more" if max_error is not None else "give --max-error"
        if chosen is None:
            advice = unsteady(model, batch, expected, bound, precision(model, config.float64)) or advice
    if chosen is None:
        nearest = found[changing[0]][0]
        raise VerificationError(
            f"fold: the least that can be folded changes the logits by {nearest.worst:.1e}{nearest.where}, expected at "
            f"most {bound:.1e}; nothing was folded, {advice}"
        )
    step = changing[chosen]
    progress("folding")
    kinds = kinds_at(heads, steps[step])
    folded, notes = fold_layers(model, kinds, heads, convolutions)
    entries = tuple(entry(name, layers[name], folded.get_submodule(name), kinds[name], notes) for name in layers)
    complete = all(entry.becomes == "convolution" for entry in entries)
    report = FoldReport(
        complete=complete,
        tolerance=steps[step],
        max_error=max_error,
        layers=entries,
        logits=found[step][0],
        top1_agreement=found[step][1],
        images=images_told(batch, images),
        float64=config.float64,
        seed=config.seed,
        statistics_randomised=randomise,
        parameters_before=parameter_count(model),
        parameters_after=parameter_count(folded),
    )
    return Folding(attach_report(folded, record, entries, kinds), report)


def _folds(kinds: Kinds) -> bool:
    return any(kind != "attention" for found in kinds.values() for kind in found)


def _refusal(heads: dict[str, tuple[Head, ...]], max_error: float | None) -> str:
    every = [head for found in heads.values() for head in found]
    nearest = min(head.outside for head in every)
    return (
        f"no head to fold: expected one of {len(every)} to look at one pixel of its kernel only, at content only, or "
        f"to have no output weight; the nearest looks elsewhere with {nearest:.1%} of its attention"
        + ("; accept an error with --max-error" if max_error is None else "")
    )


def fuse(model: nn.Module) -> nn.Module:
    """Fuse a T-CNN for inference: a copy in evaluation mode, the same function, faster, and no longer trainable.

    In every layer W_val is multiplied into W_out, matrices are packed into the processor's layout, and the positional
    attention of a map size is computed once; a layer in the hard limit becomes a convolution. An unfused model caches
    nothing and computes this in every call.

    Raises: `RequestError` for a model without attention layers, or one that was fused before; `UnsupportedLayerError`
    for a layer with hooks, or with somebody's module as `attn.attn_drop`, which its replacement would lose.
    """
    model = unwrapped(model)
    refuse_prepared(model, "fuse", but=(FoldedGPSA2d,))
    refuse_without_values(model, "fuse")
    if not any(isinstance(module, AttentionLayer) for module in model.modules()):
        raise RequestError(f"{type(model).__name__}: expected a model with GPSA layers, found none; convert it first")
    layers = {name: m for name, m in model.named_modules() if isinstance(m, AttentionLayer)}
    with evaluating(model):
        return copy_with(model, {name: FusedGPSA2d(layer) for name, layer in layers.items()})


@contextmanager
def fused(model: nn.Module) -> Iterator[None]:
    """Context in which a model in evaluation mode has fused layers; afterwards it has its own again and can be trained.

    Layers with hooks stay, since the hooks are meant for them, and layers whose attention weights pass somebody's
    module (`attn.attn_drop`). So does a model that is a single layer, and a layer with an attribute that a fused one
    has itself.
    """
    layers = [module for module in model.modules() if isinstance(module, AttentionLayer)]
    made = {id(layer): twin for layer in layers if (twin := _stand_in(layer)) is not None}
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if id(child) in made
    ]
    try:
        for parent, name, layer in places:
            parent._modules[name] = made[id(layer)]
        yield
    finally:
        for parent, name, layer in places:
            parent._modules[name] = layer


def _stand_in(layer: AttentionLayer) -> FusedGPSA2d | None:
    """A fused layer with the attributes that were set on this one; None where nothing can stand in for it."""
    if layer._forward_hooks or layer._forward_pre_hooks or put_into(layer):
        return None
    made, attributes = FusedGPSA2d(layer), attributes_of(layer)
    if taken(attributes, made):
        return None
    for key, value in attributes.items():
        setattr(made, key, value)
    return made
