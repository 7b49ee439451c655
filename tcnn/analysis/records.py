"""Inspection records: what `tcnn inspect` measures, as plain numbers, so that plots and pages need no torch.

Shapes: K heads, H×W a layer's padded map.
"""

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from tcnn.config.base import Record
from tcnn.formatting import Printed, columns, some

Pair = tuple[int, int]
Map = list[list[float]]
"""H rows of W weights."""
COLUMNS = ("layer", "map", "heads", "gate", "span 1/α", "non-locality", "content", "position", "entropy")
"""Of the table of layers."""
UNITS = "Non-locality: pixels of the layer's map. Span: pixels² at τ = 1. Entropy: nats."


class _Record(Record):
    model_config: ClassVar[ConfigDict] = ConfigDict(ser_json_inf_nan="null")


class Measure(_Record):
    """One measure of an attention, and of its content and positional parts."""

    total: float | None = Field(None, description="Of the attention as it is; null without images.")
    content: float | None = Field(None, description="Of softmax(QKᵀ/√d) alone; null without images.")
    positional: float | None = Field(None, description="Of the positional part alone; null where there is none.")


class Head(_Record):
    """Measures of one head. Positions are (row, column)."""

    head: int = Field(description="From 0, row by row over the kernel's taps.")
    tap: Pair | None = Field(None, description="The kernel's tap that the head was made from.")
    tap_offset: tuple[float, float] | None = Field(None, description="That tap from the kernel's centre, pixels.")
    centre: tuple[float, float] | None = Field(None, description="Δ: the centre of attention from the query, pixels.")
    gate: float | None = Field(
        default=None, description="σ(λ/τ): 1 attends by position only, 0 by content only; null for content heads."
    )
    span: float | None = Field(None, description="1/α, pixels² at τ = 1.")
    radius_50: float | None = Field(None, description="Half of the positional attention is so near to Δ, pixels, at τ.")
    radius_90: float | None = Field(None, description="The same for 90 %.")
    precision: tuple[tuple[float, float], tuple[float, float]] | None = Field(
        default=None,
        description="M of a Gaussian of any shape, (row, column), 1/pixel² at τ = 1; null for other kinds.",
    )
    non_locality: Measure = Field(description="ConViT Eq. 8: mean distance of query and key, pixels of the map.")
    entropy: Measure = Field(description="Mean entropy of a row, nats.")


class Layer(_Record):
    """Measures of one attention layer; means are over those of its heads that have the measure."""

    name: str
    kind: Literal["gpsa2d", "convit", "cordonnier", "attention"] = Field(
        description="gpsa2d: tcnn's layer. convit: timm's GPSA. cordonnier: self-attention of cordonnier_…. "
        "attention: timm's attention by content."
    )
    map: Pair = Field(description="(H, W) of the map that is attended to, padding included, pixels.")
    padding: tuple[int, int, int, int] = Field(description="(left, right, top, bottom) of it, pixels.")
    queries: Pair = Field(description="(rows, columns) of the map that asks.")
    kernel_size: Pair | None = Field(None, description="Of the convolution that it was.")
    dilation: Pair | None = None
    temperature: float | None = Field(None, description="τ of the positions.")
    gate_temperature: float | None = Field(None, description="τ of the gates.")
    gate: float | None = None
    span: float | None = None
    non_locality: Measure
    entropy: Measure
    prefix: float | None = Field(None, description="Share of attention on class tokens and their like.")
    heads: list[Head]


class LayerMaps(_Record):
    """Attention maps of the heads of one layer for one query: H rows and W columns, padding included."""

    layer: str
    padding: tuple[int, int, int, int] = Field(description="(left, right, top, bottom), pixels.")
    query: Pair = Field(description="(row, column) of the query in the padded map.")
    gates: list[float | None] | None = Field(
        description="Share of position in `combined`; null for content heads, which have no positional part."
    )
    content: list[Map]
    positional: list[Map] | None
    combined: list[Map]


class Picture(_Record):
    """One image and its attention maps in every layer."""

    name: str
    png: str = Field(description="What the model sees, as PNG in base64.")
    layers: list[LayerMaps]


class NonLocality(_Record):
    """Non-locality of another model, for comparison."""

    model: str
    layers: list[Layer]


class Inspection(Printed, _Record):
    """Result of an inspection, as `tcnn inspect --json` prints it."""

    model: str
    size: Pair = Field(description="(height, width) of the images, pixels.")
    images: int = Field(description="How many were measured.")
    unreadable: list[str] = Field(description="Files that are no images, with the reason.")
    query: tuple[float, float] = Field(description="(y, x) in shares of the image's height and width.")
    layers: list[Layer]
    pictures: list[Picture]
    against: list[NonLocality] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    @property
    def title(self) -> str:
        """The model, and what it was measured on."""
        images = some(self.images, "image") if self.images else "no images"
        return f"{self.model} at {self.size[0]}×{self.size[1]}, {images}"

    def rows(self) -> list[tuple[str, ...]]:
        """The layers as a table, of which the first row names the columns."""
        table: list[tuple[str, ...]] = [COLUMNS]
        for layer in self.layers:
            gates = [head.gate for head in layer.heads if head.gate is not None]
            far = layer.non_locality
            table.append(
                (
                    layer.name,
                    f"{layer.map[0]}×{layer.map[1]}",
                    str(len(layer.heads)),
                    f"{min(gates):.2f}–{max(gates):.2f}" if gates else "–",
                    *map(_number, (layer.span, far.total, far.content, far.positional, layer.entropy.total)),
                )
            )
        return table

    def __str__(self) -> str:
        """The layers in the table of `tcnn inspect`, and what could not be measured."""
        left_out = [f"left out, no image: {name}" for name in self.unreadable]
        return "\n".join([self.title, columns(self.rows(), numbers=True), UNITS, *left_out, *self.notes])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
