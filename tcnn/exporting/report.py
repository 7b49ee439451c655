"""Export report: format, axes, checks and errors, as `tcnn export --json` prints it."""

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
