"""The plan of a conversion: every replacement with its place and geometry, and how the stage loses its stride.

It is made by selection (`selection`) and stride removal (`stride`), or read from the report of a conversion, and is
applied in `surgery`. The report follows from it and the two models. It holds no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from tcnn.config import ConversionConfig
from tcnn.conversion.notes import map_sizes, notes
from tcnn.conversion.report import ConversionReport, FoldRecord, LayerReport, SkippedLayer
from tcnn.conversion.selection import select
from tcnn.conversion.stride import remove_stride
from tcnn.conversion.stride_one import NONE, StrideRemoval
from tcnn.conversion.ties import ties
from tcnn.layers.filters import geometry_of
from tcnn.layers.gpsa import default_head_dim
from tcnn.layers.terms import scopes
from tcnn.layers.terms.positions import Geometry
from tcnn.models.trace import trace


@dataclass(frozen=True)
class Replacement:
    """One convolution of the source that a GPSA layer takes the place of."""

    name: str
    """Its dotted name, and that of the layer in its place."""
    geometry: Geometry
    """Of both; after the stride removal, if there is one."""
    head_dim: int
    content: str
    """What the content part sees: `global`, `window:W` or `pooled:R`."""
    content_heads: int
    tied: Mapping[str, str]
    """Which of the layer's parameters is one with which other of the converted model, by full name."""
    note: str | None = None
    fold: FoldRecord | None = None
    """What `tcnn.fold` made of the layer since."""

    @classmethod
    def of_record(cls, layer: LayerReport) -> "Replacement":
        """The replacement that a report tells of."""
        padding: Any = layer.padding
        mode: Any = layer.padding_mode
        geometry = Geometry(layer.kernel_size, layer.stride, layer.dilation, padding, mode)
        return cls(
            layer.name, geometry, layer.head_dim, layer.content, layer.content_heads, layer.tied, layer.note, layer.fold
        )

    def record(self, source: nn.Module, converted: nn.Module) -> LayerReport:
        """What the report tells of it, given both models."""
        conv, layer = source.get_submodule(self.name), converted.get_submodule(self.name)
        assert isinstance(conv, nn.Conv2d)  # noqa: S101 - nothing else was replaced
        return LayerReport(
            name=self.name,
            source=type(conv).__name__,
            in_channels=conv.in_channels,
            out_channels=conv.out_channels,
            kernel_size=self.geometry.kernel_size,
            stride=self.geometry.stride,
            dilation=self.geometry.dilation,
            groups=conv.groups,
            padding=self.geometry.padding,
            padding_mode=self.geometry.padding_mode,
            bias=conv.bias is not None,
            heads=self.geometry.heads + self.content_heads,
            head_dim=self.head_dim,
            content=self.content,
            content_heads=self.content_heads,
            parameters_before=_count(conv),
            parameters_after=_count(layer),
            tied=dict(self.tied),
            note=self.note,
            fold=self.fold,
        )


@dataclass(frozen=True)
class Plan:
    """One conversion of one architecture: everything that is done to a model, and what was passed over."""

    base_model: str
    """The timm name of the source, with its tag, or the name of its class."""
    config: ConversionConfig
    stage: str = ""
    skipped: tuple[SkippedLayer, ...] = ()
    stride: StrideRemoval = NONE
    replacements: tuple[Replacement, ...] = ()
    """In running order, in which their weights are drawn."""

    @classmethod
    def of_report(cls, report: ConversionReport) -> "Plan":
        """The plan that was followed in a conversion; with it the same can be done to a fresh copy of the source."""
        return cls(
            base_model=report.base_model,
            config=report.config,
            stage=report.stage,
            skipped=report.skipped,
            stride=StrideRemoval(report.config.stride, report.strides_removed, report.dilated),
            replacements=tuple(Replacement.of_record(layer) for layer in report.layers),
        )

    def report(self, source: nn.Module, converted: nn.Module) -> ConversionReport:
        """The report of a conversion that followed this plan; parameters are counted in both models."""
        return ConversionReport(
            base_model=self.base_model,
            model_args=dict(getattr(source, "_model_args", {})),
            config=self.config,
            stage=self.stage,
            layers=tuple(replacement.record(source, converted) for replacement in self.replacements),
            skipped=self.skipped,
            strides_removed=self.stride.removed,
            dilated=dict(self.stride.dilated),
            parameters_before=_count(source),
            parameters_after=_count(converted),
        )


def plan_conversion(model: nn.Module, config: ConversionConfig) -> Plan:
    """Decide what a conversion does to a model, which is left as it is: only traced, without data where that goes.

    Raises: `NothingToConvertError` when no convolution is left to convert, `UnsupportedLayerError` when the stride
    cannot be removed, `RequestError` when the model does not run on an image of the given size.
    """
    steps = trace(model, config.input_size)
    selection = select(model, steps, config)
    removal, steps = remove_stride(model, steps, selection, config)
    layers, sizes, tied = {step.name: step.module for step in steps}, map_sizes(steps), ties(model, selection.names)
    replacements = []
    for name in selection.names:
        conv = layers[name]
        assert isinstance(conv, nn.Conv2d)  # noqa: S101 - selection chooses nothing else
        geometry, scope = geometry_of(conv), scopes.parse(config.content)
        replacements.append(
            Replacement(
                name=name,
                geometry=geometry,
                head_dim=config.head_dim or default_head_dim(conv.in_channels, geometry.heads),
                content=str(scope),
                content_heads=config.content_heads,
                tied=tied[name],
                note="; ".join(notes(conv, geometry, scope, sizes.get(name), tied[name])) or None,
            )
        )
    skipped = tuple(SkippedLayer(name=name, reason=reason) for name, reason in selection.skipped)
    return Plan(base_model_of(model), config, selection.stage, skipped, removal, tuple(replacements))


def base_model_of(model: nn.Module) -> str:
    """What a report calls a source: `resnet50.a1_in1k` for timm's models, else the name of the class."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    architecture, tag = cfg.get("architecture"), cfg.get("tag")
    return ".".join(filter(None, (architecture, tag))) if architecture else type(model).__name__


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
