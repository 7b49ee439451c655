"""`fold`: merge heads that are still convolutions into one; a T-CNN that never changed becomes its CNN again.

`foldable` decides what each head can become; here the model is folded and the error of its logits measured. Where an
error is allowed, the largest tolerance whose measured error is within it is searched for.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tcnn.checkpoints import checkpoint
from tcnn.config import VerificationConfig, build
from tcnn.conversion.carry import copy_with
from tcnn.conversion.report import ConversionReport, FoldRecord
from tcnn.conversion.surgery import rebuild
from tcnn.errors import NothingToConvertError, RequestError, VerificationError
from tcnn.folding.foldable import Head, heads_of, largest_within, tolerances
from tcnn.folding.report import FoldedLayer, FoldReport
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.folded import FoldedGPSA2d, HeadKind, keeps_value
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.standardise import load_filter
from tcnn.models.differences import errors, top1_agreement
from tcnn.models.noise import noise_images
from tcnn.models.parameters import parameter_count
from tcnn.models.precision import exact_arithmetic
from tcnn.models.prepared import refuse_prepared
from tcnn.models.randomise import randomised
from tcnn.models.running import in_dtype, logits_of, replacements
from tcnn.models.trace import evaluating, meta_copy
from tcnn.records import ErrorStats

Progress = Callable[[str], None]
Kinds = dict[str, tuple[HeadKind, ...]]
"""What every head of every GPSA layer becomes, by the layer's dotted name."""


class Folding(NamedTuple):
    """The folded model and its report; unpacks as `model, report`."""

    model: nn.Module
    report: FoldReport


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
        config: size and seed of the noise, and the tolerance of a fold that changes nothing.

    Returns: `Folding(model, report)`. When every layer became a convolution again the model is a plain CNN with the
    state dict of its source architecture.

    Raises: `NothingToConvertError` when no head can be folded, `VerificationError` when none can within `max_error`.
    """
    config = build(VerificationConfig, {}, config)
    record = _check(model, max_error)
    layers = replacements(model)
    heads = {name: heads_of(layer) for name, layer in layers.items()}
    convolutions = _convolutions(record, source, layers)
    batch = noise_images(model, config) if images is None else images
    steps = tolerances(head for found in heads.values() for head in found) if max_error is not None else [0.0]
    found: dict[int, tuple[ErrorStats, float]] = {}

    def error(step: int) -> float:
        progress(f"measuring at tolerance {steps[step]:.1e}")
        candidate = _fold_layers(model, _kinds(heads, steps[step]), heads, convolutions)[0]
        found[step] = _compare(expected, candidate, batch)
        return found[step][0].worst

    changing = [step for step, tolerance in enumerate(steps) if _folds(_kinds(heads, tolerance))]
    if not changing:
        raise NothingToConvertError(_refusal(heads, max_error))
    looks_trained = randomised(model, model, batch, config.seed, enabled=randomise)
    # The T-CNN's attention runs, never a shortcut through a convolution: that would compare like with like.
    with exact_arithmetic(), torch.no_grad(), use_backend("fused"), looks_trained:
        expected = _logits(model, batch)
        bound = config.tolerance_float32 if max_error is None else max_error
        chosen = largest_within(len(changing), lambda i: error(changing[i]), bound)
    if chosen is None:
        raise VerificationError(
            f"fold: the least that can be folded changes the logits by {found[changing[0]][0].worst:.1e}, expected at "
            f"most {bound:.1e}; nothing was folded, " + ("allow more" if max_error is not None else "give --max-error")
        )
    step = changing[chosen]
    progress("folding")
    kinds = _kinds(heads, steps[step])
    folded, notes = _fold_layers(model, kinds, heads, convolutions)
    entries = tuple(_entry(name, layers[name], folded.get_submodule(name), kinds[name], notes) for name in layers)
    complete = all(entry.becomes == "convolution" for entry in entries)
    report = FoldReport(
        complete=complete,
        tolerance=steps[step],
        max_error=max_error,
        layers=entries,
        logits=found[step][0],
        top1_agreement=found[step][1],
        images=f"{'noise' if images is None else 'images'} {'×'.join(map(str, batch.shape))}",
        seed=config.seed,
        statistics_randomised=randomise,
        parameters_before=parameter_count(model),
        parameters_after=parameter_count(folded),
    )
    return Folding(_attach_report(folded, record, entries, kinds), report)


def _check(model: nn.Module, max_error: float | None) -> ConversionReport:
    """The model's conversion report; raises `RequestError` for a model that cannot be folded."""
    record = getattr(model, "conversion_report", None)
    if not isinstance(record, ConversionReport):
        raise RequestError(
            f"{type(model).__name__} was not converted by tcnn: expected a T-CNN; call tcnn.convert first"
        )
    refuse_prepared(model, "fold")
    tied = next((layer for layer in record.layers if layer.tied), None)
    if tied is not None:
        own, other = next(iter(tied.tied.items()))
        raise RequestError(
            f"{tied.name}: its {own} is {other} as well, and folding would give each its own; give it a copy before "
            "the conversion"
        )
    if not any(isinstance(module, GPSA2d) for module in model.modules()):
        raise NothingToConvertError(f"{record.base_model}: has no GPSA layer, it is a CNN; there is nothing to fold")
    if max_error is not None and not 0 <= max_error < torch.inf:
        raise RequestError(f"max_error: expected a relative error of 0 or more, found {max_error}")
    return record


def _convolutions(
    record: ConversionReport, source: nn.Module | None, layers: dict[str, GPSA2d]
) -> dict[str, nn.Conv2d]:
    """The convolution that each layer was converted from, without its weights; with its stride if that was removed."""
    base = checkpoint.architecture(record, record.base_model, {}) if source is None else source
    plain = rebuild(meta_copy(base, buffers=False), record.model_copy(update={"layers": ()}))
    found = {}
    for name in layers:
        conv = plain.get_submodule(name)
        assert isinstance(conv, nn.Conv2d)  # noqa: S101 - it was converted, and so is one
        found[name] = conv
    return found


def _kinds(heads: dict[str, tuple[Head, ...]], tolerance: float) -> Kinds:
    return {name: tuple(head.kind(tolerance) for head in found) for name, found in heads.items()}


def _folds(kinds: Kinds) -> bool:
    return any(kind != "attention" for found in kinds.values() for kind in found)


def _fold_layers(
    model: nn.Module, kinds: Kinds, heads: dict[str, tuple[Head, ...]], convolutions: dict[str, nn.Conv2d]
) -> tuple[nn.Module, dict[str, str]]:
    """A copy of the model with its layers folded, and notes on some of them."""
    swaps: dict[str, nn.Module] = {}
    notes: dict[str, str] = {}
    for name, layer in replacements(model).items():
        targets = [head.tap for head in heads[name]]
        own = kinds[name]
        if set(own) == {"attention"}:
            continue
        swaps[name] = swap = FoldedGPSA2d.from_gpsa2d(layer, own, targets)
        if swap.heads:
            continue
        if keeps_value(layer):
            notes[name] = "its 1×1 W_val mixes the groups, so it stays before the convolution"
            continue
        conv = copy.deepcopy(convolutions[name])
        if load_filter(conv, swap.weight.detach(), layer.bias):  # type: ignore[union-attr]  # without heads it convolves
            swaps[name] = conv.train(layer.training)
        else:
            notes[name] = f"its filter is none that a {type(conv).__name__} can standardise to, so it stays as it is"
    for name, made in swaps.items():
        for key, parameter in made.named_parameters():
            origin = {"weight": "proj", "gain": "proj"}.get(key, key)
            parameter.requires_grad_(model.get_parameter(f"{name}.{origin}".lstrip(".")).requires_grad)
    return copy_with(model, swaps), notes


def _compare(expected: Tensor, folded: nn.Module, batch: Tensor) -> tuple[ErrorStats, float]:
    found = _logits(folded, batch)
    return errors(expected, found), top1_agreement(expected, found)


def _logits(model: nn.Module, batch: Tensor) -> Tensor:
    """Logits in float64, so that a difference is caused by folding and not by rounding."""
    dtype = torch.float32 if next(model.parameters()).device.type == "mps" else torch.float64
    wide = in_dtype(model, dtype)
    with evaluating(wide):
        return logits_of(wide, batch, dtype)


def _entry(
    name: str, before: GPSA2d, after: nn.Module, kinds: tuple[HeadKind, ...], notes: dict[str, str]
) -> FoldedLayer:
    plain = isinstance(after, nn.Conv2d)
    return FoldedLayer(
        name=name,
        becomes="convolution" if plain else "folded" if isinstance(after, FoldedGPSA2d) else "attention",
        convolution=kinds.count("convolution"),
        content=kinds.count("content"),
        attention=kinds.count("attention"),
        dropped=kinds.count("dropped"),
        parameters_before=parameter_count(before),
        parameters_after=parameter_count(after),
        note=notes.get(name),
    )


def _attach_report(
    model: nn.Module, record: ConversionReport, entries: tuple[FoldedLayer, ...], kinds: Kinds
) -> nn.Module:
    """Attach the report that rebuilds the folded model; a layer that is a convolution again is not in it."""
    remaining = []
    became = {entry.name: entry.becomes for entry in entries}
    for layer in record.layers:
        module = model.get_submodule(layer.name)
        if isinstance(module, FoldedGPSA2d):
            own = FoldRecord(heads=kinds[layer.name], value=module.value is not None)
            remaining.append(layer.model_copy(update={"fold": own, "parameters_after": parameter_count(module)}))
        elif became.get(layer.name) != "convolution":
            remaining.append(layer)
    update = {"layers": tuple(remaining), "parameters_after": parameter_count(model)}
    model.conversion_report = record.model_copy(update=update)  # type: ignore[assignment]
    cfg = getattr(model, "pretrained_cfg", None)
    if not remaining and cfg and cfg.get("architecture"):
        own_cfg = {**cfg, "architecture": record.base_model.partition(".")[0]}
        model.pretrained_cfg = model.default_cfg = own_cfg  # type: ignore[assignment]
        fields = type(record.config).model_fields
        args = getattr(model, "_model_args", {})
        model._model_args = {key: value for key, value in args.items() if key not in fields}  # type: ignore[assignment]
    return model


def _refusal(heads: dict[str, tuple[Head, ...]], max_error: float | None) -> str:
    every = [head for found in heads.values() for head in found]
    nearest = min(head.outside for head in every)
    return (
        f"no head to fold: expected one of {len(every)} to look at one pixel of its kernel only, at content only, or "
        f"to have no output weight; the nearest looks elsewhere with {nearest:.1%} of its attention"
        + ("; accept an error with --max-error" if max_error is None else "")
    )
