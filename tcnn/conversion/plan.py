"""The plan of a conversion: every replacement with its place and geometry, and how the stage loses its stride.

It is made by selection (`selection`) and stride removal (`stride`), or read from the report of a conversion, and is
applied in `surgery`. The report follows from it and the two models. It holds no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from tcnn.config import ConversionConfig, PositionKind
from tcnn.conversion.report import STANDARDISATION_ENDED, ConversionReport, FoldRecord, LayerReport, SkippedLayer
from tcnn.conversion.selection import select
from tcnn.conversion.strides.layers import NONE, StrideRemoval
from tcnn.conversion.strides.removal import remove_stride
from tcnn.conversion.ties import ties
from tcnn.errors import RequestError
from tcnn.formatting import some
from tcnn.layers.filters import geometry_of, is_standardised
from tcnn.layers.gpsa import default_head_dim
from tcnn.layers.terms import kinds, positions, scopes
from tcnn.layers.terms.positions import Geometry, Pair
from tcnn.layers.terms.scopes import GLOBAL, Scope
from tcnn.models.trace import Step, parameter_count, trace


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
    position: PositionKind
    position_reach: int | None
    """Largest shift with a relative embedding of its own; None where there are no embeddings."""
    tied: Mapping[str, str]
    """Which of the layer's parameters is one with which other of the converted model, by full name."""
    note: str | None = None
    fold: FoldRecord | None = None
    """What `tcnn.fold` made of the layer since."""

    @classmethod
    def of_record(cls, layer: LayerReport) -> "Replacement":
        """Read it back from a conversion's report."""
        padding: Any = layer.padding
        mode: Any = layer.padding_mode
        geometry = Geometry(layer.kernel_size, layer.stride, layer.dilation, padding, mode)
        return cls(
            layer.name, geometry, layer.head_dim, layer.content, layer.content_heads, layer.position,
            layer.position_reach, layer.tied, layer.note, layer.fold,
        )  # fmt: skip

    def record(self, source: nn.Module, converted: nn.Module) -> LayerReport:
        """Its entry in the report; parameters are counted in both models."""
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
            position=self.position,
            position_reach=self.position_reach,
            parameters_before=parameter_count(conv),
            parameters_after=parameter_count(layer),
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
        """Read the plan back from a conversion's report, to apply it to a fresh copy of the source."""
        return cls(
            base_model=report.base_model,
            config=report.config,
            stage=report.stage,
            skipped=report.skipped,
            stride=StrideRemoval(report.config.stride, report.strides_removed, report.dilated, report.whole_windows),
            replacements=tuple(Replacement.of_record(layer) for layer in report.layers),
        )

    def report(self, source: nn.Module, converted: nn.Module) -> ConversionReport:
        """The report of a conversion by this plan; parameters are counted in both models."""
        return ConversionReport(
            base_model=self.base_model,
            model_args=dict(getattr(source, "_model_args", {})),
            config=self.config,
            stage=self.stage,
            layers=tuple(replacement.record(source, converted) for replacement in self.replacements),
            skipped=self.skipped,
            strides_removed=self.stride.removed,
            dilated=dict(self.stride.dilated),
            whole_windows=self.stride.whole_windows,
            parameters_before=parameter_count(source),
            parameters_after=parameter_count(converted),
        )


def plan_conversion(model: nn.Module, config: ConversionConfig) -> Plan:
    """Decide what a conversion does to a model, from a trace of one forward pass; the model is left as it is.

    Raises: `NothingToConvertError` when no convolution is left to convert, `UnsupportedLayerError` when the stride
    cannot be removed, `RequestError` when the model does not run on an image of the given size.
    """
    steps = trace(model, config.input_size)
    selection = select(model, steps, config)
    removal, steps = remove_stride(model, steps, selection, config)
    layers, sizes, tied = {step.name: step.module for step in steps}, _map_sizes(steps), ties(model, selection.names)
    replacements = []
    for name in selection.names:
        conv = layers[name]
        assert isinstance(conv, nn.Conv2d)  # noqa: S101 - selection chooses nothing else
        geometry, scope = geometry_of(conv), scopes.parse(config.content)
        term = kinds.of_convolution(config.position, geometry, 1, config.position_reach)
        if config.head_dim is not None and config.head_dim > max(conv.in_channels, 8):
            raise RequestError(
                f"head_dim: {name} reads {some(conv.in_channels, 'channel')}, and a wider head tells nothing more; "
                f"expected at most {max(conv.in_channels, 8)}, got {config.head_dim}"
            )
        replacements.append(
            Replacement(
                name=name,
                geometry=geometry,
                head_dim=config.head_dim or default_head_dim(conv.in_channels, geometry.heads),
                content=str(scope),
                content_heads=config.content_heads,
                position=config.position,
                position_reach=kinds.reach_of(term),
                tied=tied[name],
                note="; ".join(_notes(conv, geometry, scope, sizes.get(name), tied[name])) or None,
            )
        )
    skipped = tuple(SkippedLayer(name=name, reason=reason) for name, reason in selection.skipped)
    return Plan(base_model_of(model), config, selection.stage, skipped, removal, tuple(replacements))


def base_model_of(model: nn.Module) -> str:
    """What a report calls a source: `resnet50.a1_in1k` for timm's models, else the name of the class."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    architecture, tag = cfg.get("architecture"), cfg.get("tag")
    return ".".join(filter(None, (architecture, tag))) if architecture else type(model).__name__


def _notes(conv: nn.Module, geometry: Geometry, scope: Scope, size: Pair | None, tied: Mapping[str, str]) -> list[str]:
    """What a person should know of the replacement of `conv` beside its numbers.

    That weight standardisation ended, that its content scope is the whole map, which parameters are tied.

    Args:
        geometry, scope: of the GPSA layer. size: (h, w) of the largest map that it gets, where that is known.
        tied: which of its parameters is one with which other of the model.
    """
    found = [STANDARDISATION_ENDED] if is_standardised(conv) else []
    if scope.kind != "global" and size is not None:
        left, right, top, bottom = positions.padding_of(size, geometry)
        height, width = top + size[0] + bottom, left + size[1] + right
        if scope.covers((height, width), size):
            whole = GLOBAL if scope.padding else Scope(padding=False)
            found.append(f"content {scope} acts as {whole}: the map is {height}×{width}, padding included")
    found += [f"its {own} is {other} as well, as it was before" for own, other in tied.items()]
    return found


def _map_sizes(steps: list[Step]) -> dict[str, Pair]:
    """(h, w) of the largest map that each layer gets in one forward pass, by dotted name."""
    sizes: dict[str, Pair] = {}
    for step in steps:
        if step.input_shape is not None and len(step.input_shape) >= 3:
            size = step.input_shape[-2], step.input_shape[-1]
            sizes[step.name] = max(size, sizes.get(step.name, size), key=max)
    return sizes
