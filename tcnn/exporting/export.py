"""`export`: write a model as ONNX or as a `torch.export` program, checked against PyTorch before it is renamed.

Where the model or the tracer does not support a dynamic axis, fewer are tried, down to none; the report lists them.
"""

import io
import json
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.export import load as load_program
from torch.export import save as save_program

from tcnn.arguments import typed
from tcnn.checkpoints.files import label_names
from tcnn.config.values import sides_of
from tcnn.conversion.report import ConversionReport
from tcnn.errors import RequestError, one_line, shorten
from tcnn.exporting import onnx_file as export_onnx
from tcnn.exporting.check import (
    Runner,
    ShapeRefused,
    check_tolerance,
    compare,
    multiples,
    reference,
    shapes_to_try,
    takes_other_sizes,
)
from tcnn.exporting.interface import (
    AXES,
    Axis,
    ExportReport,
    Format,
    check_options,
    format_of,
    parse_axes,
    require_onnx,
)
from tcnn.exporting.program import Program, free_axes, output_tensors, silence_logging, trace
from tcnn.files import check_file, file_digest, path_of, replacing
from tcnn.folding.fold import fused
from tcnn.models.checks import refuse_inference_tensors, refuse_without_values, unwrapped
from tcnn.models.copying import copied
from tcnn.models.running import failure, place_of
from tcnn.models.state import same_start
from tcnn.models.trace import evaluating, input_settings, input_shape, output_count
from tcnn.version import __version__

Progress = Callable[[str], None]
PREPARING = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
"""Settings of timm's transforms that a file tells: how its images are to be prepared."""


class Exported(NamedTuple):
    """The exported program, before it is written."""

    program: Program
    onnx: object
    """An `onnx.ModelProto`, or None."""


@typed("dynamic", "format")
def export(
    model: nn.Module,
    path: str | Path,
    format: Format | None = None,
    *,
    size: int | tuple[int, int] | None = None,
    batch: int = 1,
    dynamic: Collection[Axis] = AXES,
    opset: int = export_onnx.NATIVE_OPSET,
    tolerance: float = 1e-5,
    force: bool = False,
    progress: Progress = lambda step: None,
) -> ExportReport:
    """Export a model that takes images as ONNX, or as a `torch.export` program; checked, and written atomically.

    Args:
        model: what `tcnn.convert`, `tcnn.load` or `tcnn.fold` returned, or any other of images; float32. It is not
            changed, and exported in evaluation mode.
        path: `.onnx` or `.pt2`; any other name needs `format`, "onnx" or "torch".
        size: side, or (height, width), of the example in pixels; default the model's own.
        batch: images of the example.
        dynamic: axes to make dynamic, of "batch", "height" and "width"; as many are as the model allows. The
            others have the sizes of the example.
        opset: of ONNX.
        tolerance: largest relative error allowed, in L2 and against the largest value.
        force: replace an existing file.
        progress: called with the name of every step before it begins.

    The file is read back and run on up to three batches, by onnxruntime or by PyTorch, and compared with the model.

    Raises: `RequestError` for a model, size or opset that cannot be exported, `VerificationError` when the file
    computes something else, `EnvironmentFailure` without the libraries of the `export` extra.
    """
    started = time.monotonic()
    path, model = path_of(path, "path"), unwrapped(model)
    kind = format_of(path, format)
    shape = None if size is None else sides_of(size)
    check_options(shape, batch, tolerance)
    dynamic = parse_axes(dynamic)
    check_file(path, force)
    if kind == "onnx":
        require_onnx()
        export_onnx.check_opset(opset)
    _check_model(model, path if kind == "onnx" else None)
    refuse_without_values(model, "export")
    refuse_inference_tensors(model, "export")
    channels, height, width = input_shape(model, shape)
    example = torch.zeros(max(batch, 2) if "batch" in dynamic else batch, channels, height, width, device="cpu")
    model = model if place_of(model).type == "cpu" else copied(model).cpu()
    _check_size(model, example)
    notes = []
    if set(dynamic) - {"batch"} and not takes_other_sizes(model, example):
        dynamic = tuple(axis for axis in dynamic if axis == "batch")
        notes.append(f"height and width are fixed: the model takes no other size than {height}×{width}")
    metadata = describe(model, (height, width))
    while True:
        with evaluating(model), fused(model):
            exported, reasons = _make(model, example, dynamic, kind, opset, metadata, progress)
        axes = exported.program.axes
        try:
            with replacing(path, force) as temporary:
                progress("writing")
                if exported.onnx is None:
                    write_program(exported.program, temporary, metadata)
                else:
                    temporary.write_bytes(exported.onnx.SerializeToString())  # type: ignore[attr-defined]
                progress("checking the written file")
                run = export_onnx.run_onnx(temporary) if kind == "onnx" else run_program(temporary)
                shapes = shapes_to_try(axes, channels)
                checks = compare(model, run, shapes)
                check_tolerance(model, checks, tolerance)
                break
        except ShapeRefused as error:  # of a size that the tracer thought to be another than all that may come
            free = tuple(axis.name for axis in axes if axis.dynamic)
            if not free:
                raise
            dynamic = tuple(axis for axis in free if axis == "batch") if len(free) > 1 else ()
            example = example if dynamic else example[:batch]
            why = str(error).partition("; nothing")[0]
            notes.append(f"{' and '.join(axis for axis in free if axis not in dynamic)} fixed: {why}")
    notes += filter(None, [*reasons, multiples(shapes, checks), _dead_branch_warning(model)])
    progress("done")
    return ExportReport(
        output=str(path),
        format=kind,
        base_model=metadata["base_model"],
        opset=opset if kind == "onnx" else None,
        bytes=path.stat().st_size,
        sha256=file_digest(path),
        seconds=round(time.monotonic() - started, 3),
        axes=axes,
        outputs=output_names_of(exported),
        checks=tuple(checks),
        error=max(check.error.worst for check in checks),
        tolerance=tolerance,
        notes=tuple(notes),
    )


def describe(model: nn.Module, size: tuple[int, int]) -> dict[str, str]:
    """Metadata for the exported file: input size, normalisation, class names; numbers and lists as JSON."""
    record = getattr(model, "conversion_report", None)
    cfg = getattr(model, "pretrained_cfg", None) or {}
    own = cfg.get("architecture", type(model).__name__)
    settings = input_settings(model) if cfg else {}  # of as many channels as the model takes
    told: dict[str, object] = {key: settings[key] for key in PREPARING if key in settings}
    told["input_size"] = [input_shape(model)[0], *size]
    names = label_names(model)
    if getattr(model, "num_classes", None) is not None:  # which tells that it has classes, and not how many by now
        told["num_classes"] = classes = output_count(model, size)
        names = names if len(names) == classes else ()
    told |= {"label_names": list(names)} if names else {}
    metadata = {key: value if isinstance(value, str) else json.dumps(value) for key, value in told.items()}
    base = record.base_model if isinstance(record, ConversionReport) else own
    return {"tcnn_version": __version__, "base_model": base, **metadata}


def output_names_of(exported: Exported) -> tuple[str, ...]:
    """Names of the outputs."""
    if exported.onnx is None:
        return tuple(name for _, name in output_tensors(exported.program.program))
    return tuple(output.name for output in exported.onnx.graph.output)  # type: ignore[attr-defined]


def write_program(program: Program, path: Path, metadata: dict[str, str]) -> None:
    """Write a program to a file; raises `RequestError` where PyTorch cannot write what the model returns.

    By way of memory: when a disk is full, PyTorch's writer ends the process from C++.
    """
    content = io.BytesIO()
    try:
        with silence_logging():
            save_program(program.program, content, extra_files={"metadata.json": json.dumps(metadata)})
    except NotImplementedError as error:
        raise RequestError(f"torch.export cannot write the program ({shorten(one_line(error), 160)})") from error
    path.write_bytes(content.getbuffer())


def run_program(path: Path) -> Runner:
    """Load a program from its file; raises `RequestError` where PyTorch cannot read what it wrote."""
    try:
        with path.open("rb") as file, silence_logging():
            program = load_program(file).module()
    except RuntimeError as error:
        raise RequestError(
            "torch.export cannot read back the program that it wrote; return tensors only, in tuples, lists or dicts"
        ) from error

    @torch.no_grad()
    def run(images: torch.Tensor) -> object:
        with same_start(program):
            return program(images)

    return run


def _make(
    model: nn.Module,
    example: torch.Tensor,
    dynamic: Collection[Axis],
    kind: Format,
    opset: int,
    metadata: dict[str, str],
    progress: Progress,
) -> tuple[Exported, list[str]]:
    """Make the program with the most dynamic axes possible; returns it with the reasons for fixed axes."""
    tries, notes = free_axes(model, tuple(dynamic))
    for number, axes in enumerate(tries):
        progress(f"tracing with {', '.join(axes) or 'nothing'} free")
        try:
            program = trace(model, example, axes)
            onnx = None
            if kind == "onnx":
                progress("translating")
                names = {symbol: str(axis) for symbol, axis in program.symbols.items()}
                onnx = export_onnx.translate(program.program, opset, names, metadata)
            return Exported(program, onnx), notes
        except export_onnx.OpsetError:
            raise
        except RequestError as error:
            if number == len(tries) - 1:
                raise
            kept = set(tries[number + 1])
            notes.append(f"{' and '.join(axis for axis in axes if axis not in kept)} fixed: {error}")
    raise AssertionError("the last try returns or raises")


def _check_model(model: nn.Module, onnx: Path | None) -> None:
    tensors = [*model.parameters(), *model.buffers()]
    if not any(True for _ in model.parameters()):
        raise RequestError(f"{type(model).__name__} has no parameters: nothing to export")
    other = {str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()} - {"float32"}
    if other:
        raise RequestError(f"expected float32 parameters, found {', '.join(sorted(other))}; call model.float() first")
    count = sum(tensor.nbytes for tensor in tensors)
    if onnx is not None and count > export_onnx.MAX_BYTES:
        raise RequestError(
            f"{onnx}: one ONNX file holds less than 2 GiB, the model has {count / 2**30:.1f} GiB; export it to .pt2"
        )


def _check_size(model: nn.Module, example: torch.Tensor) -> None:
    try:
        reference(model, example)
    except Exception as error:  # a map that is too small, say
        raise failure(model, example.shape[1:], error, "choose another size") from error


def _dead_branch_warning(model: nn.Module) -> str | None:
    """A warning for an untrained network that multiplies branches by zero, which hides errors in them, or None."""
    count = sum(
        1
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if name in ("weight", "gamma", "skipinit_gain") and parameter.dim() <= 1 and not parameter.any()
    )
    return (
        f"{count} scales are zero, as in a model that was never trained: the check is blind behind them"
        if count
        else None
    )
