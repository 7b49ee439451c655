"""Reports of exports, as `tcnn export --json` prints them: of a file with its axes and checks, or of an explorer."""

from typing import Literal

from tcnn.records import ErrorStats, Record

Format = Literal["onnx", "torch"]
Axis = Literal["batch", "height", "width"]
AXES: tuple[Axis, ...] = ("batch", "height", "width")


class ExportAxis(Record):
    """One axis of the input: its size in the example, and whether it is dynamic."""

    name: Axis
    dynamic: bool
    size: int
    minimum: int
    """Smallest size that the program supports; the example's where the axis is fixed."""


class ExportCheck(Record):
    """Error of the exported file against PyTorch on one input."""

    shape: tuple[int, int, int, int]
    error: ErrorStats
    top1_agreement: float


class ExportReport(Record):
    """Result of an export. `error` is the largest relative error of all checks, `tolerance` the allowed one."""

    output: str
    format: Format
    base_model: str
    opset: int | None
    bytes: int
    sha256: str
    seconds: float
    axes: tuple[ExportAxis, ...]
    outputs: tuple[str, ...]
    checks: tuple[ExportCheck, ...]
    error: float
    tolerance: float
    notes: tuple[str, ...] = ()


class ExplorerReport(Record):
    """Result of an explorer's export. Errors are those of the network in onnxruntime against PyTorch."""

    output: str
    base_model: str
    size: tuple[int, int]
    """(height, width) of the images, in pixels."""
    layers: tuple[str, ...]
    files: dict[str, int]
    """Bytes of every file."""
    seconds: float
    error: float | None
    """Largest relative error of the logits; None for a model without any."""
    attention_error: float
    """Largest difference of a weight of content attention."""
    tolerance: float
