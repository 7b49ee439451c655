"""Fold report: what became of every layer and head, errors and speed, for the terminal and the file."""

from typing import Literal

from tcnn.records import ErrorStats, Record


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


class FoldReport(Record):
    """Result of folding. `tolerance` is the estimated relative error of a layer's output that one head may cause."""

    complete: bool
    tolerance: float
    max_error: float | None
    layers: tuple[FoldedLayer, ...]
    logits: ErrorStats
    top1_agreement: float
    images: str
    seed: int
    statistics_randomised: bool
    parameters_before: int
    parameters_after: int


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
