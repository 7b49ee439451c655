"""What a fold did: the records that go to the terminal and, beside the model, into the file."""

from typing import Literal

from tcnn.records import ErrorStats, Record


class FoldedLayer(Record):
    """What became of one GPSA layer, and of its heads by number."""

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
    """Images per second before and after, medians of runs in turn, in evaluation mode."""

    before: float
    after: float
    batch_size: int
    device: str


class FoldReport(Record):
    """One fold. `tolerance` is the estimated relative error of a layer's output that one head was allowed to bring."""

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
    """What `tcnn fold --json` prints."""

    checkpoint: str
    output: str
    bytes: int
    sha256: str
    seconds: float
    format: Literal["timm", "tcnn"]
    base_model: str
    fold: FoldReport
    speed: Speed
