"""Apply a choice of what every head becomes: the folded model, its error, and the report from which it is rebuilt."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tcnn.checkpoints.architecture import source_of
from tcnn.checkpoints.layers import still_there
from tcnn.config import VerificationConfig
from tcnn.config.base import ErrorStats
from tcnn.conversion.carry import copy_with
from tcnn.conversion.report import ConversionReport, FoldRecord
from tcnn.errors import NothingToConvertError, RequestError
from tcnn.folding.foldable import Head
from tcnn.folding.report import FoldedLayer, FoldReport, PrunedHead
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.filters import load_filter
from tcnn.layers.folded import FoldedGPSA2d, HeadKind, keeps_value
from tcnn.layers.gpsa import GPSA2d
from tcnn.models.checks import not_converted, refuse_computed, refuse_prepared
from tcnn.models.difference import output_errors, top1_agreement
from tcnn.models.outputs import Outputs
from tcnn.models.precision import exact_arithmetic
from tcnn.models.running import gpsa_layers, in_dtype, logits_of, place_of, replacements, told_in_one_line
from tcnn.models.trace import evaluating, parameter_count

Kinds = dict[str, tuple[HeadKind, ...]]
"""What every head of every GPSA layer becomes, by the layer's dotted name."""


def checked(model: nn.Module, max_error: float | None) -> ConversionReport:
    """The report of what of the conversion is still there; raises `RequestError` for a model that cannot be folded."""
    record = getattr(model, "conversion_report", None)
    if not isinstance(record, ConversionReport):
        raise not_converted(model)
    refuse_prepared(model, "fold")
    refuse_computed(model, "fold")
    record = still_there(model, record)
    tied = next((layer for layer in record.layers if layer.tied), None)
    if tied is not None:
        own, other = next(iter(tied.tied.items()))
        raise RequestError(
            f"{tied.name}: its {own} is {other} as well, and folding would give each its own; give it a copy before "
            "the conversion"
        )
    if not gpsa_layers(model):
        raise NothingToConvertError(f"{record.base_model}: nothing in it is converted, so there is nothing to fold")
    if max_error is not None and not 0 <= max_error < torch.inf:
        raise RequestError(f"max_error: expected a relative error of 0 or more, found {max_error}")
    return record


def convolutions_of(
    model: nn.Module, record: ConversionReport, source: nn.Module | None, layers: dict[str, GPSA2d]
) -> dict[str, nn.Conv2d]:
    """The convolution that each layer was converted from, without its weights; with its stride if that was removed."""
    base = source_of(model, record, source)
    plain = dict(base.named_modules())
    found = {}
    for name in layers:
        conv = plain.get(name)
        if not isinstance(conv, nn.Conv2d):
            raise RequestError(
                f"source: expected the CNN that was converted, with a convolution {name}; found "
                f"{'none' if conv is None else type(conv).__name__} there in {type(base).__name__}"
            )
        found[name] = conv
    return found


def kinds_at(heads: dict[str, tuple[Head, ...]], tolerance: float) -> Kinds:
    return {name: tuple(head.kind(tolerance) for head in found) for name, found in heads.items()}


def fold_layers(
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


def compare(expected: Outputs, folded: nn.Module, batch: Tensor, float64: bool = True) -> tuple[ErrorStats, float]:
    found = logits(folded, batch, float64)
    return output_errors(expected, found), top1_agreement(expected, found)


def precision(model: nn.Module, float64: bool) -> torch.dtype:
    """Float64 where the device has it, so that a difference is caused by folding and not by rounding."""
    return torch.float64 if float64 and place_of(model).type != "mps" else torch.float32


def logits(model: nn.Module, batch: Tensor, float64: bool = True) -> Outputs:
    """Logits in `precision`."""
    dtype = precision(model, float64)
    wide = in_dtype(model, dtype)
    with evaluating(wide), told_in_one_line(wide, batch, dtype):
        return logits_of(wide, batch, dtype)


def images_told(batch: Tensor, images: Tensor | None) -> str:
    """What a model was compared on, in words: noise, unless images were given, and its shape."""
    return f"{'noise' if images is None else 'images'} {'×'.join(map(str, batch.shape))}"


def pruning_report(
    model: nn.Module,
    pruned: nn.Module,
    batch: Tensor,
    images: Tensor | None,
    config: VerificationConfig,
    layers: tuple[FoldedLayer, ...],
    removed: Sequence[PrunedHead],
) -> FoldReport:
    """The report of a pruning: what became of every layer, the heads that were removed, and the error on a batch.

    Args:
        images: those of the batch, None where it is noise. config: seed of the noise, and precision.
    """
    # The attention runs, never a shortcut through a convolution: that would compare like with like.
    with exact_arithmetic(), use_backend("fused"):
        error, agreement = compare(logits(model, batch, config.float64), pruned, batch, config.float64)
    return FoldReport(
        complete=all(layer.becomes == "convolution" for layer in layers),
        tolerance=0.0,
        max_error=None,
        layers=layers,
        logits=error,
        top1_agreement=agreement,
        images=images_told(batch, images),
        float64=config.float64,
        seed=config.seed,
        statistics_randomised=False,
        parameters_before=parameter_count(model),
        parameters_after=parameter_count(pruned),
        pruned=tuple(removed),
    )


def entry(
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


def attach_report(
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
