"""What an export did: the record that Python gets and `tcnn export --json` prints."""

from typing import Literal

from tcnn.records import ErrorStats, Record

Format = Literal["onnx", "torch"]
Axis = Literal["batch", "height", "width"]
AXES: tuple[Axis, ...] = ("batch", "height", "width")


class ExportAxis(Record):
    """One axis of the input: its size in the example, and whether another may be given."""

    name: Axis
    dynamic: bool
    size: int
    minimum: int
    """Smallest size that the program was made for; the example's where the axis is fixed."""


class ExportCheck(Record):
    """The written file against PyTorch on one input."""

    shape: tuple[int, int, int, int]
    error: ErrorStats
    top1_agreement: float


class ExportReport(Record):
    """One export. `error` is the largest relative error of all checks, `tolerance` what was allowed."""

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
