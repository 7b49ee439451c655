"""`convert`: a T-CNN from a CNN. The source is never changed."""

from typing import NamedTuple

import torch
from torch import nn

from tcnn.config import ConversionConfig, build
from tcnn.conversion import select, stride
from tcnn.conversion.carry import copy_with
from tcnn.conversion.notes import map_sizes, notes
from tcnn.conversion.reparameterise import keep_attending_blocks
from tcnn.conversion.report import ConversionReport, FoldRecord, LayerReport, SkippedLayer
from tcnn.conversion.stride import Unstriding
from tcnn.conversion.ties import tie, ties
from tcnn.conversion.weight_decay import exempt_positions
from tcnn.errors import NothingToConvertError, RequestError, UnsupportedLayerError
from tcnn.layers.filters import geometry_of
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.gpsa import GPSA2d
from tcnn.models.prepared import refuse_prepared
from tcnn.models.trace import Step, input_shape, meta_copy, trace
from tcnn.zoo.catalogue import registered_name


class Conversion(NamedTuple):
    """The converted model and the report of what was done; unpacks as `model, report`."""

    model: nn.Module
    report: ConversionReport


def convert(model: nn.Module, config: ConversionConfig | None = None, **options: object) -> Conversion:
    """Replace the k×k convolutions of a CNN's last stage by GPSA layers that compute the same function.

    Args:
        model: any `nn.Module`; it is left as it was, and shares no memory with the result.
        config: what to convert and how. Fields given as keywords go over it: ``convert(model, stride="remove")``.

    Returns: `Conversion(model, report)`. At the default temperature the result equals the source (or, with
    ``stride="remove"`` or ``"dilate"``, `without_stride(source, stride=…)`); prove it with `tcnn.verify`.

    Raises: `NothingToConvertError`, `UnsupportedLayerError`, `RequestError`.

    Source: d'Ascoli et al. 2021, §2, Eq. 5 and 6 (W_val = I, W_out = filter, one head per tap, padding preserved).
    """
    config = build(ConversionConfig, options, config)
    refuse_prepared(model, "convert")
    if any(isinstance(module, GPSA2d) for module in model.modules()):
        raise NothingToConvertError(f"{type(model).__name__} has GPSA layers already: it was converted before")
    steps = trace(model, config.input_size)
    selection = select.select(model, steps, config)
    unstriding, swaps, steps = _without_stride(model, steps, selection, config)
    report = _report(model, config, steps, selection, swaps).model_copy(
        update={"strides_removed": unstriding.removed, "dilated": unstriding.dilated}
    )
    converted = rebuild(model, report)
    report = report.model_copy(update={"parameters_after": _count(converted)})
    converted.conversion_report = report  # type: ignore[assignment]
    return Conversion(converted, report)


def without_stride(model: nn.Module, config: ConversionConfig | None = None, **options: object) -> nn.Module:
    """The same CNN with the stride of its last stage removed: the reference for a conversion that removes it.

    `config` and keywords are those of the conversion, with ``stride="remove"`` (the default here) or ``"dilate"``;
    raises what `convert` raises.
    """
    if options.get("stride") == "keep":
        raise RequestError("stride: without_stride removes it, got 'keep'; leave the keyword out, or give 'dilate'")
    way = "dilate" if config is not None and config.stride == "dilate" else "remove"
    config = build(ConversionConfig, {"stride": way, **options}, config)
    steps = trace(model, config.input_size)
    return copy_with(model, _without_stride(model, steps, select.select(model, steps, config), config)[1])


def rebuild(model: nn.Module, report: ConversionReport) -> nn.Module:
    """Apply a recorded conversion to (a fresh copy of) its source architecture."""
    config = report.config
    swaps: dict[str, nn.Module] = {}
    if config.stride != "keep":
        swaps = stride.unstrided(model, Unstriding(report.strides_removed, report.dilated), config.stride)
    generator = torch.Generator().manual_seed(config.seed)
    modules = dict(model.named_modules())
    for layer in report.layers:
        source = swaps.get(layer.name) or modules.get(layer.name)
        if not isinstance(source, nn.Conv2d):
            raise UnsupportedLayerError(f"{layer.name}: expected a convolution in {report.base_model}, found none")
        if layer.fold is not None:
            swaps[layer.name] = _folded(source, layer, layer.fold)
            continue
        swaps[layer.name] = GPSA2d.from_conv2d(
            source, layer.head_dim, config.temperature, generator, layer.content, layer.content_heads, config.query_key
        )
    made = copy_with(model, swaps)
    tie(made, {layer.name: layer.tied for layer in report.layers})
    return _signed(made, report)


def _folded(source: nn.Conv2d, layer: LayerReport, fold: FoldRecord) -> FoldedGPSA2d:
    """The layer that folding left in the place of a convolution; its parameters are for the file to bring."""
    geometry = geometry_of(source)
    if len(fold.heads) != geometry.heads + layer.content_heads:
        expected = geometry.heads + layer.content_heads
        raise UnsupportedLayerError(f"{layer.name}: expected {expected} heads, found {len(fold.heads)}")
    return FoldedGPSA2d(
        source.in_channels, source.out_channels, geometry, source.groups, source.bias is not None, layer.head_dim,
        fold.heads, fold.value, source.weight.device, source.weight.dtype, layer.content,
    )  # fmt: skip


def unconverted(model: nn.Module) -> nn.Module:
    """Leave on a CNN, in place, an empty report, so that it can be saved and loaded like its conversion."""
    model.conversion_report = _record(model, ConversionConfig())  # type: ignore[assignment]
    return model


def _signed(model: nn.Module, report: ConversionReport) -> nn.Module:
    """Leave on the model what saving it needs, what timm asks it, and its name in timm's registry (`t_resnet50d`)."""
    model.conversion_report = report  # type: ignore[assignment]
    if not report.layers:
        return model
    exempt_positions(model)
    keep_attending_blocks(model)
    cfg = getattr(model, "pretrained_cfg", None)
    if cfg and cfg.get("architecture"):
        architecture = registered_name(cfg["architecture"])
        model.pretrained_cfg = model.default_cfg = {**cfg, "architecture": architecture}  # type: ignore[assignment]
        options = report.config.model_dump(exclude_defaults=True)
        model._model_args = {**getattr(model, "_model_args", {}), **options}  # type: ignore[assignment]
    return model


def _without_stride(
    model: nn.Module, steps: list[Step], selection: select.Selection, config: ConversionConfig
) -> tuple[Unstriding, dict[str, nn.Module], list[Step]]:
    """What becomes of the layers of the stage, what replaces them, and the model's steps after that."""
    if config.stride == "keep":
        return Unstriding((), {}), {}, steps
    stage = [steps[i] for i in selection.span]
    unstriding = stride.plan(model, stage, _at_twice_the_size(model, selection, config, stage), config.stride)
    swaps = stride.unstrided(model, unstriding, config.stride)
    try:
        after = trace(copy_with(meta_copy(model), swaps), config.input_size)
    except Exception as error:
        raise UnsupportedLayerError(
            f"stride={config.stride}: {type(model).__name__} does not run without its last stride; use stride=keep"
        ) from error
    stride.check_kept(steps, after, selection.names, config.stride)
    return unstriding, swaps, after


def _at_twice_the_size(
    model: nn.Module, selection: select.Selection, config: ConversionConfig, stage: list[Step]
) -> list[Step]:
    """The steps of the stage on an image of twice the height and width, as far as dilation has to know them."""
    if config.stride != "dilate":
        return stage
    _, height, width = input_shape(model, config.input_size)
    try:
        steps = trace(model, (2 * height, 2 * width))
    except RequestError as error:
        raise UnsupportedLayerError(
            f"stride=dilate: {type(model).__name__} runs at one size only, so nothing tells how its maps grow; use "
            "stride=keep or remove"
        ) from error
    return steps[selection.span.start : selection.span.stop]


def _report(
    model: nn.Module,
    config: ConversionConfig,
    steps: list[Step],
    selection: select.Selection,
    swaps: dict[str, nn.Module],
) -> ConversionReport:
    sizes, tied = map_sizes(steps), ties(model, selection.names)
    layers = []
    for name in selection.names:
        conv = meta_copy(model.get_submodule(name))
        assert isinstance(conv, nn.Conv2d)  # noqa: S101 - selection chooses nothing else
        source = meta_copy(swaps[name]) if name in swaps else conv
        assert isinstance(source, nn.Conv2d)  # noqa: S101 - it is the same convolution with another geometry
        layer = GPSA2d.from_conv2d(source, config.head_dim, content=config.content, content_heads=config.content_heads)
        g = layer.geometry
        layers.append(
            LayerReport(
                name=name,
                source=type(model.get_submodule(name)).__name__,
                in_channels=layer.in_channels,
                out_channels=layer.out_channels,
                kernel_size=g.kernel_size,
                stride=g.stride,
                dilation=g.dilation,
                groups=layer.groups,
                padding=g.padding,
                padding_mode=g.padding_mode,
                bias=layer.bias is not None,
                heads=layer.heads,
                head_dim=layer.head_dim,
                content=layer.content,
                content_heads=layer.content_heads,
                parameters_before=_count(conv),
                parameters_after=_count(layer),
                tied=tied[name],
                note="; ".join(notes(conv, layer, sizes.get(name), tied[name])) or None,
            )
        )
    return _record(model, config).model_copy(
        update={
            "stage": selection.stage,
            "layers": tuple(layers),
            "skipped": tuple(SkippedLayer(name=name, reason=reason) for name, reason in selection.skipped),
        }
    )


def _record(model: nn.Module, config: ConversionConfig) -> ConversionReport:
    """What is known of a model apart from its layers."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    architecture, tag = cfg.get("architecture"), cfg.get("tag")
    return ConversionReport(
        base_model=".".join(filter(None, (architecture, tag))) if architecture else type(model).__name__,
        model_args=dict(getattr(model, "_model_args", {})),
        config=config,
        stage="",
        layers=(),
        parameters_before=_count(model),
        parameters_after=_count(model),
    )


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
