"""Fold report: what became of every layer and head, errors and speed, for the terminal and the file."""

from typing import Literal

from tcnn.config.base import ErrorStats, Record
from tcnn.formatting import Printed, scale


class FoldedLayer(Record):
    """What one GPSA layer became, and its heads by number."""

    name: str
    becomes: Literal["convolution", "folded", "attention"]
    convolution: int
    content: int
    attention: int
    dropped: int
    parameters_before: int
    parameters_after: int
    note: str | None = None


class Speed(Record):
    """Images per second before and after, medians of alternating runs, in evaluation mode."""

    before: float
    after: float
    batch_size: int
    device: str


class PrunedHead(Record):
    """A head that was removed by where it looks."""

    layer: str
    head: int
    reason: Literal["far", "same", "flat", "thin"]
    """Its centre is too far away, or another head's; its attention is the same everywhere, or a line."""
    centre: tuple[float, float]
    """(row, column) from the query, pixels."""
    into: int | None = None
    """The head at the same place that took over its output weights."""


class PruningAccuracy(Record):
    """Top-1 accuracy before and after pruning on the same images; the difference has a 95 % interval."""

    data: str
    images: int
    before: float
    after: float
    difference: float
    low: float
    high: float
    held_out: bool = False
    """Whether only what its training held out was measured."""
    trained_on: bool = False
    """Whether the model was trained on these images: then this says little."""


class FoldReport(Printed, Record):
    """Result of folding. `tolerance` is the estimated relative error of a layer's output that one head may cause."""

    complete: bool
    tolerance: float
    max_error: float | None
    layers: tuple[FoldedLayer, ...]
    logits: ErrorStats
    top1_agreement: float
    images: str
    float64: bool = True
    """Whether the error was measured in float64."""
    seed: int
    statistics_randomised: bool
    parameters_before: int
    parameters_after: int
    pruned: tuple[PrunedHead, ...] = ()

    def __str__(self) -> str:
        """What the heads of every layer became, then the rest."""
        lines = []
        for layer in self.layers:
            counts = {
                "convolution": layer.convolution, "content only": layer.content, "attention": layer.attention,
                "dropped": layer.dropped,
            }  # fmt: skip
            heads = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
            lines.append(f"{layer.name}: {layer.becomes} (heads: {heads})")
        return "\n".join([*lines, *self.told()])

    def told(self) -> list[str]:
        """Notes, pruned heads, the error and the size, a line each."""
        lines = [f"note: {layer.name}: {layer.note}" for layer in self.layers if layer.note]
        for head in self.pruned:
            row, column = head.centre
            merged = "" if head.into is None else f", its weights to head {head.into}"
            lines.append(f"pruned: {head.layer} head {head.head} at ({row:+.1f}, {column:+.1f}): {head.reason}{merged}")
        if self.statistics_randomised:
            lines.append(
                "note: the error is of the model with random normalisation layers and constant parameters, as for "
                "weights that were never trained"
            )
        allowed = "" if self.max_error is None else f", at most {self.max_error:g} allowed"
        return [
            *lines,
            f"relative error of the logits {self.logits.worst:.1e}{self.logits.where}{allowed} "
            f"(top-1 agreement {self.top1_agreement:.0%}, {self.images}{'' if self.float64 else ', in float32'})",
            f"parameters: {scale(self.parameters_before)} → {scale(self.parameters_after)}",
        ]


class FoldResult(Record):
    """Result of `tcnn fold`, as `--json` prints it."""

    checkpoint: str
    output: str
    bytes: int
    sha256: str
    seconds: float
    format: Literal["timm", "tcnn"]
    base_model: str
    fold: FoldReport
    speed: Speed
    accuracy: PruningAccuracy | None = None
