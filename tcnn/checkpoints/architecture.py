"""What a file says of its model's architecture, and the architecture that is built from it: timm's, or one's own.

A file has a name and arguments, from which timm builds the network. Where that is another network than the one that is
saved, because somebody changed it by hand, the file says what differs (`edited`), and is loaded with its source only.
"""

import json
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import timm
import torch
from timm.models._input import get_model_args
from torch import Tensor, nn

from tcnn.checkpoints.edits import GEOMETRY, Edits, edits, in_words, remedy, unlike
from tcnn.checkpoints.files import refuse_in_files
from tcnn.checkpoints.layers import as_converted, as_they_are, moved, refuse_none_left, still_there
from tcnn.checkpoints.merging import Merging, can_merge, merged_before, mergings, rebuilt_and_merged
from tcnn.config.conversion import OF_TRAINING
from tcnn.conversion.report import ConversionReport
from tcnn.conversion.surgery import rebuild
from tcnn.errors import (
    CheckpointError,
    RequestError,
    UnsupportedLayerError,
    one_line,
    out_of_memory,
    shorten,
)
from tcnn.layers.base import AttentionLayer
from tcnn.models.checks import refuse_without_shapes, unwrapped
from tcnn.models.trace import meta_copy
from tcnn.zoo.own_network import GIVE_SOURCE
from tcnn.zoo.sources import own_network, without_data


class Described(NamedTuple):
    """What a file says of its model's architecture."""

    report: ConversionReport
    cfg: dict[str, Any]
    """timm's `pretrained_cfg`."""
    edited: Edits
    """What is not as the report and timm say, by the names of modules."""
    merging: Merging | None = None
    """What timm's `reparameterize_model` merged."""


def describe_model(model: nn.Module, report: ConversionReport) -> Described:
    """What a model is to be rebuilt from: its report as it is now, and what in it that would not give.

    Raises `RequestError` for a model that is wrapped around the layers of its report, or has none of them left, and for
    arguments that no file can hold.
    """
    refuse_none_left(model, report)
    report = still_there(model, report)
    cfg = {k: v for k, v in (getattr(model, "pretrained_cfg", None) or {}).items() if k != "state_dict"}
    args, now = _model_args(model, report), as_they_are(model, report.layers)
    try:
        json.dumps(args)
    except TypeError as error:
        raise RequestError(
            f"a model argument cannot be stored in the file ({error}); build the model with plain values"
        ) from error
    past = as_converted(now, report)
    report = report.model_copy(update={"model_args": args, "layers": now})
    if not timm.is_model(report.base_model.partition(".")[0]):
        return Described(report, cfg, moved(model, now, past))
    found = _compared(model, report.model_copy(update={"layers": past}), cfg)
    if found.classes is not None:
        kept = len(cfg.get("label_names") or ()) in (0, found.classes)
        own = {key: value for key, value in cfg.items() if kept or not key.startswith("label_")}
        cfg = own | {"num_classes": found.classes}
        report = report.model_copy(update={"model_args": {**args, "num_classes": found.classes}})
    return Described(report, cfg, found.edited, found.merging)


def note_of(described: Described) -> str | None:
    """What is said of a model that its name does not give, or None: what differs, and what its file needs."""
    if not described.edited:
        return None
    return (
        f"the model is not as {described.report.base_model} is built ({in_words(described.edited)}), so its file loads "
        f"with its architecture only: tcnn.load(FILE, source=MODEL){remedy(described.edited)}"
    )


def edits_in(section: str | None, name: str) -> Edits:
    """The edits that a file's metadata tell of; raises `CheckpointError` for what tcnn has not written."""
    try:
        found = json.loads(section or "{}")
    except ValueError:
        found = None
    if isinstance(found, dict) and all(isinstance(one, dict) for one in found.values()):
        return found
    raise CheckpointError(f"{name}: what it says of changes to its model is damaged; copy or download it again")


def refuse_without_source(edited: Edits, report: ConversionReport, name: str) -> None:
    """Raise `CheckpointError` for a file whose architecture neither timm nor a given network has."""
    if edited:
        raise CheckpointError(
            f"{name}: made from a {report.base_model} that was changed by hand ({in_words(edited)}), which timm does "
            f"not build; {GIVE_SOURCE}{remedy(edited)}"
        )


def refuse_other_source(model: nn.Module, edited: Edits, name: str) -> None:
    """Raise `CheckpointError` for a source without the changes that the model of the file had."""
    for module, found in unlike(model, edited):
        expected = {module: {key: edited[module][key] for key in found}}
        raise CheckpointError(
            f"{name}: does not fit the source: expected {in_words(expected)}, as it was saved, found "
            f"{in_words({module: found})}{remedy(expected)}"
        )


def architecture(
    report: ConversionReport, name: str, model_args: dict[str, object], classes: int | None = None
) -> nn.Module:
    """Build the source architecture of a report, with arbitrary weights: the network named for all files, or timm's.

    Args:
        classes: of a network of one's own, where known; the report has those of timm's.
    """
    if (own := own_network(classes)) is not None:
        return unwrapped(own)
    return _of_timm(report, name, model_args)


def source_of(model: nn.Module, report: ConversionReport, source: nn.Module | None = None) -> nn.Module:
    """The CNN that a model was converted from, without data; with its stride, or without if the conversion removed it.

    Args:
        source: its architecture, where it is not timm's; merged as the model's, or not.
    """
    base = architecture(report, report.base_model, {}) if source is None else unwrapped(source)
    refuse_without_shapes(base)
    base, merging = meta_copy(base), None
    if can_merge(base) and timm.is_model(report.base_model.partition(".")[0]):
        past = as_converted(as_they_are(model, report.layers), report)
        as_built = report.model_copy(update={"model_args": _model_args(model, report), "layers": past})
        merging = _compared(model, as_built, getattr(model, "pretrained_cfg", None) or {}).merging
    return rebuild(merged_before(base, merging), report.model_copy(update={"layers": ()}))


def rebuilt(
    base: nn.Module, report: ConversionReport, merging: Merging | None = None, given: Container[str] = ()
) -> nn.Module:
    """The model of a report from its source architecture, or from a model that is converted already.

    It has no data but buffers, some of which are computed, and parameters that no file gives: a module may keep them
    under names of its own.

    Args:
        merging: as in `Described`; to merge is to compute, so that the model then has data.
        given: names of the tensors in the file.

    Raises `UnsupportedLayerError` for an architecture that the report does not fit.
    """
    modules = dict(base.named_modules())
    converted = [isinstance(modules.get(layer.name), AttentionLayer) for layer in report.layers]
    if not converted or not all(converted):
        return rebuilt_and_merged(base if merging else _to_fill(base, report, given), report, merging)
    for layer, now in zip(report.layers, as_they_are(base, report.layers), strict=True):
        for key in (*GEOMETRY, "content", "heads", "content_heads", "head_dim", "position"):
            if getattr(now, key) != (wanted := getattr(layer, key)):
                raise UnsupportedLayerError(f"{layer.name}: expected {key} {wanted}, found {getattr(now, key)}")
    made = _to_fill(base, report, given)
    made.conversion_report = report  # type: ignore[assignment]
    return made


def _to_fill(base: nn.Module, report: ConversionReport, given: Container[str]) -> nn.Module:
    """A copy of an architecture without the data that a file gives, or that are those of converted layers."""
    layers = {layer.name for layer in report.layers}
    own = (one for name, one in base.named_parameters() if name not in given and name.rpartition(".")[0] not in layers)
    return meta_copy(base, but=(*base.buffers(), *own))


def fit_classifier(model: nn.Module, classes: object, tensors: Mapping[str, Tensor]) -> None:
    """Give a source's copy a classifier of the file's width, in place, where training has replaced it."""
    others = (name for name, own in model.state_dict().items() if name in tensors and own.shape != tensors[name].shape)
    reset = getattr(model, "reset_classifier", None)
    if isinstance(classes, int) and classes and callable(reset) and next(others, None) is not None:
        with without_data():
            reset(classes)


def way_out(report: ConversionReport, tensors: Mapping[str, Tensor], cfg: Mapping[str, Any] | None) -> str:
    """What to do about a file that does not fit what timm builds of it."""
    weight = tensors.get(f"{(cfg or {}).get('classifier')}.weight")
    width = "" if weight is None or len(weight) == report.model_args.get("num_classes") else len(weight)
    return f"give num_classes={width}, or {GIVE_SOURCE}" if width else GIVE_SOURCE


def _of_timm(report: ConversionReport, name: str, model_args: dict[str, object]) -> nn.Module:
    base, args = report.base_model, {**report.model_args, **model_args}
    refuse_in_files(name, report.model_args)
    if not timm.is_model(base.partition(".")[0]):
        raise CheckpointError(f"{name}: made from {base}, which timm does not know; {GIVE_SOURCE}")
    try:
        return timm.create_model(base, pretrained=False, **args)
    except Exception as error:
        told, reason = shorten(str(args), 160), "no memory" if out_of_memory(error) else one_line(error)
        raise CheckpointError(f"{name}: timm {timm.__version__} cannot build {base} with {told}: {reason}") from error


class _Comparison(NamedTuple):
    """A model beside what loading its file would build."""

    edited: Edits
    merging: Merging | None = None
    classes: int | None = None
    """Outputs of its classifier, where they are others than those of its arguments."""


def _compared(model: nn.Module, report: ConversionReport, cfg: dict[str, Any]) -> _Comparison:
    edited, merging = _edited(model, report)
    if edited and (classes := _classifier_width(model, cfg)) is not None:
        fitting = report.model_copy(update={"model_args": {**report.model_args, "num_classes": classes}})
        others, merging_too = _edited(model, fitting)
        if not others:
            return _Comparison({}, merging_too, classes)
    return _Comparison(edited, merging)


def _edited(model: nn.Module, report: ConversionReport) -> tuple[Edits, Merging | None]:
    """What in a model is not as loading a file of this report builds it, and what timm has to merge there."""

    def compared(merging: Merging | None) -> Edits:
        try:
            return edits(model, rebuilt_and_merged(meta_copy(base), report, merging))
        except Exception as error:  # whatever timm stumbles over
            return {"": {"module": shorten(one_line(error), 160)}}

    try:
        with without_data(), torch.random.fork_rng(devices=[]):
            base = _of_timm(report, report.base_model, {})
        found = compared(None)
        if not found:
            return {}, None
        merging = next((one for one in mergings(model, meta_copy(base), report) if not compared(one)), None)
        return ({} if merging else found), merging
    except Exception as error:  # likewise
        return {"": {"module": shorten(one_line(error), 160)}}, None


def _classifier_width(model: nn.Module, cfg: dict[str, Any]) -> int | None:
    """Outputs of the module that timm calls the classifier, 0 where it does nothing; None where that is not clear."""
    names = cfg.get("classifier") or ()
    modules = dict(model.named_modules())
    widths = set()
    for name in (names,) if isinstance(names, str) else names:
        weight = getattr(modules.get(name), "weight", None)
        widths.add(0 if isinstance(modules.get(name), nn.Identity) else None if weight is None else len(weight))
    return widths.pop() if len(widths) == 1 else None


def _model_args(model: nn.Module, report: ConversionReport) -> dict[str, object]:
    """Arguments that build the *source* architecture, as timm recorded them."""
    if not getattr(model, "pretrained_cfg", None):
        return report.model_args
    ours = {*type(report.config).model_fields, *OF_TRAINING}
    return {k: v for k, v in get_model_args(model).items() if k not in ours}
