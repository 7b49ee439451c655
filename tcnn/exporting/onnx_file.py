"""Translate a traced program to an ONNX file, and run the file by onnxruntime."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils._pytree import MappingKey, keystr

from tcnn.errors import EnvironmentFailure, RequestError, one_line, shorten
from tcnn.exporting.check import Runner
from tcnn.exporting.program import output_tensors, silence_logging
from tcnn.version import __version__

NATIVE_OPSET = 18
"""Opset that PyTorch translates to; later ones by conversion, earlier ones where no operator has changed since."""
MAX_BYTES = 2**31 - 1
"""Largest size in bytes of a protocol buffer, and so of one ONNX file."""


class OpsetError(RequestError):
    """The opset lacks an operator, so no choice of dynamic axes would help."""


def check_opset(opset: int) -> None:
    """Raise `RequestError` for an opset that does not exist."""
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opset <= newest:
        raise RequestError(
            f"--opset: expected 1 to {newest}, the newest that onnx {onnx.__version__} knows, found {opset}"
        )


def translate(program: ExportedProgram, opset: int, names: Mapping[str, str], metadata: Mapping[str, str]) -> Any:
    """Translate a program whose one input becomes `images` to an `onnx.ModelProto`.

    Args:
        names: names of the dynamic axes, by the tracer's symbols.
        metadata: of the file, string to string.

    Raises: `RequestError` if outputs have one name, if the translator cannot, or if the opset lacks an operator;
    `EnvironmentFailure` if the translator does not find what it needs of onnxscript or onnx.
    """
    outputs = output_names(program)
    if len({"images", *outputs}) <= len(outputs):
        raise RequestError(f"expected outputs of different names, none of them images, found {', '.join(outputs)}")
    try:
        with silence_logging():
            made = torch.onnx.export(program, opset_version=max(opset, NATIVE_OPSET), dynamo=True, verbose=False)
        assert made is not None  # noqa: S101 - None is of the old exporter
        model: Any = made.model_proto
    except Exception as error:  # the translator raises whatever it stumbles over
        _refuse_old_libraries(error)
        raise RequestError(f"torch.onnx cannot translate it ({_reason(error)})") from error
    _set_opset(model, opset)
    _rename(model, names, outputs)
    model.producer_name, model.producer_version = "tcnn", __version__
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    return model


def missing_operators(model: Any, opset: int) -> dict[str, int]:
    """Operators that an opset lacks in the version that the model uses, and the opset that introduced it."""
    import onnx

    own = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    since = {
        node.op_type: onnx.defs.get_schema(node.op_type, own, "").since_version
        for node in model.graph.node
        if node.domain in ("", "ai.onnx")
    }
    return {name: version for name, version in sorted(since.items()) if version > opset}


def run_onnx(path: Path) -> Runner:
    """Load the file in onnxruntime, on the CPU; raises `RequestError` where it cannot."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # its advice on graphs is not the user's
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise RequestError(
            f"onnxruntime {onnxruntime.__version__} does not take the file ({shorten(one_line(error), 160)}); "
            "choose another --opset"
        ) from error
    return lambda images: [torch.from_numpy(output) for output in session.run(None, {"images": _array(images)})]


def _array(images: Tensor) -> Any:
    return images.numpy()


def _set_opset(model: Any, opset: int) -> None:
    """Set an earlier opset, which is valid if no operator of the graph has changed in between."""
    entry = next(entry for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if entry.version < opset:
        raise RequestError(f"opset {opset}: torch {torch.__version__} goes up to {entry.version}; choose that or less")
    missing = missing_operators(model, opset)
    if missing:
        names = ", ".join(f"{name} ({version})" for name, version in missing.items())
        raise OpsetError(f"opset {opset} lacks {names}; the lowest opset that has what this model needs is "
                         f"{max(missing.values())}")  # fmt: skip
    entry.version = opset


def output_names(program: ExportedProgram) -> list[str]:
    """Names of the outputs: `logits`, `features_0` and so on, or the keys of a dict; nested ones as `outer_inner`."""
    paths = [path for path, _ in output_tensors(program)]
    if not any(isinstance(key, MappingKey) for path in paths for key in path):
        return ["logits"] if len(paths) == 1 else [f"features_{number}" for number in range(len(paths))]
    return [re.sub(r"\W+", "_", keystr(path)).strip("_") for path in paths]


def _rename(model: Any, axes: Mapping[str, str], outputs: Sequence[str]) -> None:
    """Name input, axes and outputs, and remove names of files and source text of the exporting machine."""
    graph = model.graph
    new = dict(zip([graph.input[0].name, *(value.name for value in graph.output)], ["images", *outputs], strict=True))
    # A name that something inside the graph already has is free once that is called otherwise.
    inside = {name for node in graph.node for name in node.output} | {weight.name for weight in graph.initializer}
    new |= {name: f"{name}_inside" for name in inside & set(new.values()) - set(new)}
    for node in graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
        node.doc_string = ""
        del node.metadata_props[:]
    for weight in graph.initializer:
        weight.name = new.get(weight.name, weight.name)
        del weight.metadata_props[:]
    del graph.value_info[:]  # sizes in between are found again from these
    for value in (*graph.input, *graph.output):
        value.name = new.get(value.name, value.name)
        del value.metadata_props[:]
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(r"\w+", lambda word: axes.get(word[0], word[0]), dim.dim_param)


def _refuse_old_libraries(error: BaseException) -> None:
    """Raise `EnvironmentFailure` if what has failed is an import: the versions that are installed do not fit."""
    found = _innermost(error)
    if isinstance(found, ImportError):
        import onnxscript

        raise EnvironmentFailure(
            f"onnxscript {onnxscript.__version__} is too old for torch {torch.__version__} ({_reason(error)}): "
            "pip install -U onnxscript"
        ) from error


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _reason(error: BaseException) -> str:
    """The innermost error message, without the page of advice that the translator wraps around it."""
    return shorten(one_line(_innermost(error)), 160)
