"""Validate uploaded model files, tcnn's checkpoints and a CNN's own weights: the header by hand, then a strict load.

Runs in a process of its own (`process`). A header is checked before torch is loaded, so that what is plainly wrong
costs nothing.
"""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from tcnn.checkpoints.files import forbidden
from tcnn.conversion.report import ConversionReport
from tcnn.errors import CheckpointError, StorageError, TcnnError, WeightsError, one_line, shorten
from tcnn.files import file_digest
from tcnn.processes import loading
from tcnn.zoo import catalogue
from tcnn_jobs.confined.room import Bounds
from tcnn_jobs.errors import BytesExceeded

MEMORY = 3 << 30
"""Bytes that loading may take beside four times a checkpoint's size, or six times that of weights, of which the tensors
are there twice: torch itself, and the architecture."""
SECONDS = 300
LONGEST_HEADER = 16 << 20
"""Bytes. A header of ours has a few hundred kilobytes; the format allows a hundred megabytes."""
MOST_LABELS = 20_000
MOST_TENSORS = 100_000
SHOWN = 400
"""Tensors of weights that are told by name and shape."""

WIDTHS = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of one number of every dtype."""


class Header(NamedTuple):
    """The header of a safetensors file, validated."""

    metadata: dict[str, str]
    tensors: int


def check(file: str) -> dict[str, Any]:
    """What a checkpoint is made of; raises `CheckpointError` with one line that does not say where the file lies."""
    path = Path(file)
    try:
        found = read_header(path)
        report = check_metadata(found.metadata)
        return _load(path, found, report)
    except TcnnError as error:
        raise CheckpointError(str(error).replace(str(path), "the file")) from error


def tell(file: str) -> dict[str, Any]:
    """What `tcnn info` tells of a checkpoint that was accepted, without where it lies; torch is not loaded."""
    from tcnn.analysis.reading.model_info import of_file

    found = of_file(file, Path(file)).model_dump(mode="json", exclude={"name", "file"})
    labels = found["label_names"]
    found["label_names"] = labels and [str(label)[:200] for label in labels[:MOST_LABELS]]
    return found


def read_header(path: Path) -> Header:
    """Check that header and data fit each other to the byte; raises `CheckpointError`."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        start = handle.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length + 8 > size:
            raise _damaged("it ends within its header" if start[1:] else "it is empty")
        if length > LONGEST_HEADER:
            raise _damaged(f"its header has {length} bytes, at most {LONGEST_HEADER} are read")
        raw = handle.read(length)
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(f"its header is not JSON: {one_line(error)}") from error
    if not isinstance(header, dict):
        raise _damaged("its header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged("its metadata are not all strings")
    _check_offsets({name: _extent(name, entry) for name, entry in header.items()}, size - 8 - length)
    return Header(metadata, len(header))


def check_metadata(metadata: dict[str, str]) -> ConversionReport:
    """What tcnn wrote about the model, which must be one that timm builds by name; raises `CheckpointError`."""
    if "tcnn_version" not in metadata or "conversion" not in metadata:
        raise CheckpointError(
            "a safetensors file, but not written by tcnn; convert its model first: "
            "tcnn convert MODEL OUT --weights FILE"
        )
    try:
        report = ConversionReport.model_validate_json(metadata["conversion"])
        for name in ("pretrained_cfg", "label_names"):
            json.loads(metadata.get(name, "null"))
    except (ValidationError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"written by tcnn {shorten(ascii(metadata['tcnn_version']), 40)}, whose records cannot be read here"
        ) from error
    base = report.base_model
    if metadata.get("base_model") != base:
        raise CheckpointError("altered since it was written: it names two base models; copy or download it again")
    if not re.fullmatch(r"[\w.-]{1,200}", base) or base.partition(".")[0] not in catalogue.entries():
        raise CheckpointError(f"made from {shorten(ascii(base), 100)}, which timm does not know; only timm models load")
    argument = forbidden(report.model_args)
    if argument is not None:
        raise CheckpointError(f"the model argument {shorten(ascii(argument), 60)} is not allowed in a file")
    return report


def _load(path: Path, header: Header, report: ConversionReport) -> dict[str, Any]:
    with loading():
        from tcnn.checkpoints import checkpoint

    try:
        model = checkpoint.load(path)
    except (MemoryError, RuntimeError) as error:
        raise CheckpointError(f"cannot be loaded here: {one_line(error)}") from error
    labels = json.loads(header.metadata.get("label_names", "null"))
    return {
        "base_model": report.base_model,
        "tcnn_version": header.metadata["tcnn_version"],
        "layers": len(report.layers),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "num_classes": getattr(model, "num_classes", None),
        # A record for people: cut to what a page can show, whatever a stranger wrote into it.
        "label_names": [str(label)[:200] for label in labels[:MOST_LABELS]] if isinstance(labels, list) else None,
        "trained": "training" in header.metadata,
    }


def _extent(name: str, entry: Any) -> tuple[int, int]:
    """Where a tensor begins and ends; it must be as long as its dtype and shape say."""
    label = shorten(ascii(name), 80)
    try:
        width, shape, (begin, end) = WIDTHS[entry["dtype"]], entry["shape"], entry["data_offsets"]
        counts = [*shape, begin, end]
        whole = all(type(count) is int and 0 <= count < 1 << 63 for count in counts) and len(shape) <= 16
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise _damaged(f"tensor {label} has no dtype, shape or offsets that can be read")
    if end - begin != width * math.prod(shape):
        raise _damaged(f"tensor {label} has {end - begin} bytes, its dtype and shape need {width * math.prod(shape)}")
    return begin, end


def _check_offsets(extents: dict[str, tuple[int, int]], size: int) -> None:
    """Tensors lie one behind the other, from the first byte to the last."""
    place = 0
    for name, (begin, end) in sorted(extents.items(), key=lambda item: item[1]):
        if begin != place:
            what = "overlaps another" if begin < place else f"leaves {begin - place} bytes unused"
            raise _damaged(f"tensor {shorten(ascii(name), 80)} {what}")
        place = end
    if place != size:
        raise _damaged(f"its tensors need {place} bytes, found {size}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _damaged(reason: str) -> CheckpointError:
    return CheckpointError(f"not a whole safetensors file ({reason}); copy or download it again")


def keep(file: str, name: str, out: str, bounds: str = "[]") -> dict[str, Any]:
    """Read the state dict of a file that was sent under a name, and write it to `out`; returns what is in it.

    Raises `WeightsError` with one line that does not say where the file lies; where `bounds`, the JSON of `Bounds`, do
    not allow to write it, `BytesExceeded` or `StorageError`.
    """
    path = Path(file)
    try:
        return _keep(path, Path(out), _is_safetensors(path), Bounds.read(bounds))
    except (BytesExceeded, StorageError):
        raise
    except TcnnError as error:
        text = str(error).replace(f"{path}.safetensors", name).replace(str(path), name)
        raise WeightsError(text) from error


def _keep(path: Path, out: Path, safetensors: bool, bounds: Bounds) -> dict[str, Any]:
    if safetensors:
        found = read_header(path)  # by hand, before any library sees it
        if "tcnn_version" in found.metadata and "conversion" in found.metadata:
            raise CheckpointError(
                "a checkpoint of tcnn's, with all that belongs to it: send it as one (POST /checkpoints)"
            )
        path = path.rename(f"{path}.safetensors")  # as which it is known by its name
    with loading():
        from tcnn.zoo import weights

    try:
        content = weights.read(path)
    except (MemoryError, RuntimeError) as error:
        raise WeightsError(f"cannot be read here: {one_line(error)}") from error
    state = content.state.tensors
    if len(state) > MOST_TENSORS:
        raise WeightsError(f"{path}: expected at most {MOST_TENSORS:,} tensors, found {len(state):,}")
    weights.refuse_not_finite(path, state)
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    bounds.check(size, size, out.parent)
    weights.write(path, content.state, out)
    named = (content.architecture or "").rpartition("/")[2]
    return {
        "architecture": named if named.partition(".")[0] in catalogue.entries() else None,
        "tensors": len(state),
        "parameters": sum(tensor.numel() for tensor in state.values()),
        "dtypes": dict(Counter(str(tensor.dtype).removeprefix("torch.") for tensor in state.values())),
        "shapes": [[shorten(key, 200), list(tensor.shape)] for key, tensor in list(state.items())[:SHOWN]],
        "kept": {"size": out.stat().st_size, "sha256": file_digest(out)},
    }


def _is_safetensors(path: Path) -> bool:
    """Whether a file begins as a safetensors file does: a length, and a JSON object."""
    with path.open("rb") as handle:
        start = handle.read(9)
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size
