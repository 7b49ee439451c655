"""The report of a conversion, layer by layer: the record that goes to the terminal, the API and the file."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tcnn.config import ConversionConfig, PositionKind
from tcnn.config.base import Record
from tcnn.config.conversion import as_kept
from tcnn.errors import RequestError
from tcnn.formatting import Printed, some

STANDARDISATION_ENDED = "weight standardisation ended: the standardised filter was loaded"
"""The note of a layer whose convolution standardised its weight."""


class FoldRecord(Record):
    """What `tcnn.fold` made of a layer's heads, in their order, and whether W_val is still a parameter."""

    heads: tuple[Literal["convolution", "content", "attention", "dropped"], ...]
    value: bool


class LayerReport(Record):
    """One convolution and the GPSA layer in its place: geometry, heads, parameters, ties."""

    name: str
    source: str
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    padding: tuple[int, int, int, int] | str
    padding_mode: str
    bias: bool
    heads: int
    head_dim: int
    content: str = "global"
    content_heads: int = 0
    """How many of `heads`, the last, have no positional part."""
    position: PositionKind = "isotropic"
    position_reach: int | None = None
    """Largest shift with a relative embedding of its own, pixels."""
    parameters_before: int
    parameters_after: int
    tied: dict[str, str] = Field(default={})
    """Which of its parameters is one with which other of the model."""
    note: str | None = None
    fold: FoldRecord | None = None


class SkippedLayer(Record):
    """A convolution that was considered and not converted, with the reason."""

    name: str
    reason: str


class ConversionReport(Printed, Record):
    """One conversion: enough to rebuild the architecture, and what a person wants to know of it."""

    base_model: str
    model_args: dict[str, object] = Field(default={})
    config: Annotated[ConversionConfig, BeforeValidator(lambda kept: as_kept(kept) if isinstance(kept, dict) else kept)]
    stage: str
    layers: tuple[LayerReport, ...]
    skipped: tuple[SkippedLayer, ...] = ()
    strides_removed: tuple[str, ...] = ()
    dilated: dict[str, tuple[int, int]] = Field(default={})
    """The factors, along rows and columns, by which ``stride="dilate"`` spread the kernels, by dotted name."""
    whole_windows: bool = False
    """Whether ``stride="dilate"`` gave pools maps that are s times the old ones, not a window smaller."""
    parameters_before: int
    parameters_after: int

    def __str__(self) -> str:
        """What became attention, a line each; then what was left alone, and the parameters."""
        lines = [f"{self.base_model}: {self.stage if self.config.target else f'stage {self.stage}'}"]
        for layer in self.layers:
            kernel = "×".join(map(str, layer.kernel_size))
            width = f"{some(layer.heads, 'head')} of width {layer.head_dim}"
            lines.append(f"{layer.name}: {layer.source} {kernel}, {layer.in_channels} → {layer.out_channels}, {width}")
        lines += [f"left alone: {skipped.name}: {skipped.reason}" for skipped in self.skipped]
        return "\n".join([*lines, f"parameters: {self.parameters_before:,} → {self.parameters_after:,}"])

    @property
    def folded(self) -> bool:
        """Whether some layer is part convolution and part attention: it was folded, and not to the end."""
        return any(layer.fold for layer in self.layers)

    @property
    def standardised(self) -> bool:
        """Whether a weight-standardised filter was baked in (and so rounded to the weight's dtype)."""
        return any(STANDARDISATION_ENDED in (layer.note or "") for layer in self.layers)


def refuse_folded(report: ConversionReport, name: str, verb: str) -> None:
    """Raise `RequestError` for a model that is only partly attention: folding is the last step before inference."""
    if report.folded:
        raise RequestError(f"{name}: was folded, for inference only; {verb} the checkpoint that it was folded from")
