"""Validate an uploaded file of a CNN's weights, whatever wrote it, and keep them as safetensors: nothing is unpickled.

Runs in a process of its own (`process`). What a job reads later is the file that was written here, never a stranger's.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from tcnn.errors import CheckpointError, TcnnError, WeightsError, one_line, shorten
from tcnn.files import file_digest
from tcnn.processes import loading
from tcnn.zoo import catalogue
from tcnn_jobs.confined.checkpoints import read_header

MEMORY = 3 << 30
"""Bytes that reading may take beside six times the file's size: torch itself; the tensors are there twice."""
SECONDS = 300
MOST_TENSORS = 100_000
SHOWN = 400
"""Tensors that are told by name and shape."""


def keep(file: str, name: str, out: str) -> dict[str, Any]:
    """Read the state dict of a file that was sent under a name, and write it to `out`; returns what is in it.

    Raises `WeightsError` with one line that does not say where the file lies.
    """
    path = Path(file)
    try:
        return _keep(path, Path(out), safetensors=_is_safetensors(path))
    except TcnnError as error:
        text = str(error).replace(f"{path}.safetensors", name).replace(str(path), name)
        raise WeightsError(text) from error


def _keep(path: Path, out: Path, safetensors: bool) -> dict[str, Any]:
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
    state = content.state
    if len(state) > MOST_TENSORS:
        raise WeightsError(f"{path}: expected at most {MOST_TENSORS:,} tensors, found {len(state):,}")
    weights.refuse_not_finite(path, state)
    weights.write(path, state, out)
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
