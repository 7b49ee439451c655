"""The interface of exports, without torch: options, checked before anything is loaded, and the reports.

Reports are what `tcnn export --json` prints: of a file with its axes and checks, or of an explorer.
"""

import shlex
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tcnn.config.base import ErrorStats, Record
from tcnn.config.values import MOST, MOST_PIXELS
from tcnn.errors import EnvironmentFailure, RequestError, shorten
from tcnn.formatting import Printed, scale, some

Format = Literal["onnx", "torch"]
Axis = Literal["batch", "height", "width"]
AXES: tuple[Axis, ...] = ("batch", "height", "width")
SUFFIXES: dict[str, Format] = {".onnx": "onnx", ".pt2": "torch"}
NEEDED = ("onnx", "onnxscript", "onnxruntime")


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


class ExportReport(Printed, Record):
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

    def __str__(self) -> str:
        """The axes, every check, and what was written."""
        parts = [f"{axis.name} {f'from {axis.minimum}' if axis.dynamic else f'{axis.size} only'}" for axis in self.axes]
        lines = [f"takes {', '.join(parts)}"]
        for check in self.checks:
            lines.append(
                f"same on {'×'.join(map(str, check.shape))}: relative error {check.error.worst:.1e}"
                f"{check.error.where}, top-1 agreement {check.top1_agreement:.0%}"
            )
        lines += [f"note: {note}" for note in self.notes]
        kind = f"ONNX, opset {self.opset}" if self.format == "onnx" else "torch.export program"
        return "\n".join([*lines, f"wrote {self.output} ({kind}, {scale(self.bytes)}B) in {self.seconds:.1f} s"])


class ExplorerReport(Printed, Record):
    """Result of `export_explorer`. Errors compare the network in onnxruntime with PyTorch."""

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

    def __str__(self) -> str:
        """What is shown, how exactly, and how to open it."""
        logits = "" if self.error is None else f"logits within {self.error:.1e} (relative), "
        total = scale(sum(self.files.values()))
        lines = (
            f"shows {some(len(self.layers), 'layer')} on images of {'×'.join(map(str, self.size))}",
            f"same as PyTorch: {logits}weights of attention within {self.attention_error:.1e}",
            f"wrote {self.output} ({some(len(self.files), 'file')}, {total}B) in {self.seconds:.1f} s",
            f"look at it: python3 -m http.server --bind 127.0.0.1 --directory {shlex.quote(self.output)}",
        )
        return "\n".join(lines)


def format_of(path: Path, wanted: str | None = None) -> Format:
    """The format of the file: as requested, or by its suffix."""
    if wanted is not None and not isinstance(wanted, str):
        raise RequestError(f"--format: expected onnx or torch, found {shorten(repr(wanted), 60)}")
    if wanted is not None:
        for suffix, known in SUFFIXES.items():
            if wanted == known and SUFFIXES.get(path.suffix.lower(), known) != known:
                raise RequestError(f"--format {wanted}: {path} would be taken for the other format; end it in {suffix}")
            if wanted == known:
                return known
        raise RequestError(f"--format: expected onnx or torch, found {wanted!r}")
    try:
        return SUFFIXES[path.suffix.lower()]
    except KeyError:
        raise RequestError(
            f"{path}: expected a name that ends in .onnx or .pt2, or --format onnx or torch, found {path.suffix!r}"
        ) from None


def parse_axes(names: Collection[str]) -> tuple[Axis, ...]:
    """Parse axis names; returns them in the order of the input."""
    if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        found = shorten(repr(names), 60)
        raise RequestError(f"dynamic axes: expected a list of {', '.join(AXES)}, or of some of them, found {found}")
    unknown = [name for name in names if name not in AXES]
    if unknown:
        raise RequestError(f"dynamic axes: expected some of {', '.join(AXES)}, found {unknown[0]!r}")
    return tuple(axis for axis in AXES if axis in names)


def check_axes(dynamic: str, fixed: bool) -> None:
    """Raise `RequestError` for free axes beside `--fixed`."""
    if fixed and dynamic != ",".join(AXES):
        raise RequestError(f"--fixed: no axis is free then; leave --dynamic {dynamic} out, or --fixed")


def check_options(size: tuple[int, int] | None, batch: int, tolerance: float) -> None:
    """Raise `RequestError` for an invalid size, batch or tolerance."""
    if size is not None and not 1 <= min(size) <= max(size) <= MOST_PIXELS:
        raise RequestError(f"size: expected 1 to {MOST_PIXELS} pixels each way, found {size[0]}×{size[1]}")
    if not 1 <= batch <= MOST:
        raise RequestError(f"batch: expected one image or more, at most {MOST}, found {batch}")
    if not 0 < tolerance < float("inf"):
        raise RequestError(f"tolerance: expected a relative error above 0, such as 1e-5, found {tolerance}")


def require_onnx() -> None:
    """Raise `EnvironmentFailure` if the libraries for ONNX are not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise EnvironmentFailure(f'ONNX needs {" and ".join(missing)}, not installed: pip install "tcnn[export]"')
