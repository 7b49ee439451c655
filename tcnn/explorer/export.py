"""`export_explorer`: write a folder that a browser opens from any file server, checked against PyTorch.

The page is static: onnxruntime-web runs the network in it, from an ONNX file whose outputs are the logits and every
layer's content attention. The positional attention is the same for all images; its factors stand in `model.json`.
"""

import json
import lzma
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tcnn.arguments import typed
from tcnn.config.values import sides_of
from tcnn.conversion.report import ConversionReport
from tcnn.errors import RequestError, VerificationError
from tcnn.evaluation.predict import class_names
from tcnn.explorer.network import WithAttention, check_attention, describe_layers
from tcnn.exporting import onnx_file
from tcnn.exporting.export import describe
from tcnn.exporting.interface import ExplorerReport, check_options, require_onnx
from tcnn.exporting.program import trace
from tcnn.files import check_folder, path_of, replacing
from tcnn.layers.backends.selection import use_backend
from tcnn.models.checks import refuse_without_values, unwrapped
from tcnn.models.copying import copied
from tcnn.models.difference import errors
from tcnn.models.precision import exact_arithmetic
from tcnn.models.randomise import noise
from tcnn.models.running import place_of
from tcnn.models.trace import evaluating, input_settings, input_shape
from tcnn.version import __version__

Progress = Callable[[str], None]
INTERPOLATIONS = ("bilinear", "bicubic", "lanczos")
"""Ways to resize that the page knows."""


@typed()
def export_explorer(
    model: nn.Module,
    folder: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    tolerance: float = 1e-5,
    force: bool = False,
    progress: Progress = lambda step: None,
) -> ExplorerReport:
    """Write a static web page that runs a T-CNN and shows what each of its heads attends to.

    Args:
        model: what `tcnn.convert` or `tcnn.load` returned, float32, not folded; it is not changed.
        folder: is made, and must not exist.
        size: side, or (height, width), in pixels of the images, which the page resizes and crops to; default the
            model's own.
        tolerance: largest relative error of the logits, and difference of an attention weight, that is allowed.
        force: write into a folder that exists; what else lies there stays.
        progress: called with the name of every step before it begins.

    Raises: `RequestError` for a model without GPSA layers or with larger maps than a page holds, `VerificationError`
    when the exported network computes something else, `EnvironmentFailure` without the `export` extra.
    """
    started = time.monotonic()
    folder, model = path_of(folder, "folder"), unwrapped(model)
    refuse_without_values(model, "export")
    check_folder(folder, force)
    shape = None if size is None else sides_of(size)
    check_options(shape, 1, tolerance)
    require_onnx()
    check_attention(model)
    model = model if place_of(model).type == "cpu" else copied(model).cpu()
    channels, height, width = input_shape(model, shape)
    example = torch.zeros(1, channels, height, width)
    told = describe_page(model, example)
    network = WithAttention(model)
    with evaluating(network):
        progress("tracing")
        program = trace(network, example, ()).program
        progress("translating")
        onnx = onnx_file.translate(program, onnx_file.NATIVE_OPSET, {}, describe(model, (height, width)))
    with replacing(folder, force) as temporary:
        progress("writing")
        temporary.mkdir()
        for name, content in page_files():
            (temporary / name).write_bytes(content)
        (temporary / "model.onnx").write_bytes(onnx.SerializeToString())
        progress("checking the written network")
        logits, attention = check_network(network, temporary / "model.onnx", (1, channels, height, width), tolerance)
        sizes = {file.name: file.stat().st_size for file in sorted(temporary.iterdir())}
        (temporary / "model.json").write_text(json.dumps({**told, "files": sizes}), encoding="utf-8")
        sizes["model.json"] = (temporary / "model.json").stat().st_size
    progress("done")
    return ExplorerReport(
        output=str(folder),
        base_model=told["base_model"],
        size=(height, width),
        layers=tuple(layer["name"] for layer in told["layers"]),
        files=dict(sorted(sizes.items())),
        seconds=round(time.monotonic() - started, 3),
        error=logits,
        attention_error=attention,
        tolerance=tolerance,
    )


def page_files() -> Iterator[tuple[str, bytes]]:
    """The page's own files, and onnxruntime-web as its makers built it (deploy/onnxruntime_web.py), by name."""
    room = files("tcnn.explorer")
    for file in (*(room / "page").iterdir(), *(room / "runtime").iterdir()):
        name, content = file.name, file.read_bytes()
        yield (name[:-3], lzma.decompress(content)) if name.endswith(".xz") else (name, content)


def describe_page(model: nn.Module, example: Tensor) -> dict[str, Any]:
    """What `model.json` tells the page: layers, classes, and how an image is prepared."""
    settings = input_settings(model)
    interpolation = settings["interpolation"]
    if interpolation not in INTERPOLATIONS:
        raise RequestError(f"interpolation: the page resizes by {', '.join(INTERPOLATIONS)}, found {interpolation!r}")
    record = getattr(model, "conversion_report", None)
    base = record.base_model if isinstance(record, ConversionReport) else type(model).__name__
    with torch.no_grad(), evaluating(model):
        output = model(example)
    classes = class_names(model, output.shape[1]) if isinstance(output, Tensor) and output.dim() == 2 else ()
    return {
        "tcnn_version": __version__,
        "base_model": base,
        "input": {
            "size": tuple(example.shape[2:]),
            **{key: settings[key] for key in ("mean", "std", "crop_pct", "interpolation")},
            "crop_mode": settings.get("crop_mode") or "center",
        },
        "classes": classes,
        "layers": describe_layers(model, example),
    }


def check_network(
    network: nn.Module, file: Path, shape: tuple[int, int, int, int], tolerance: float
) -> tuple[float | None, float]:
    """The error of the logits (relative; None without any) and of the attention (absolute), of the file on noise.

    Raises `VerificationError` where one is above the tolerance.
    """
    batch = noise(shape, 0)
    with torch.no_grad(), exact_arithmetic(), use_backend("reference"), evaluating(network):
        expected: dict[str, Tensor] = network(batch)
    outputs: Any = onnx_file.run_onnx(file)(batch)
    found = dict(zip(expected, outputs, strict=True))
    logits = errors(expected.pop("logits"), found.pop("logits")).worst if "logits" in expected else None
    attention = max((expected[name] - found[name]).abs().max().item() for name in expected)
    for what, error in (("logits", logits or 0.0), ("attention", attention)):
        if not error <= tolerance:
            raise VerificationError(
                f"the exported network's {what} differ from PyTorch's by {error:.1e}, expected at most "
                f"{tolerance:.0e}; nothing was written"
            )
    return logits, attention
