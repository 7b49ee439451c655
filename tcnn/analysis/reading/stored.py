"""What a checkpoint is, read from the head of its file, without torch."""

import json
import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from tcnn.analysis.reading.model_info import ModelInfo, of_config, of_metadata
from tcnn.analysis.reading.rundirs import metadata
from tcnn.checkpoints.places import not_a_model
from tcnn.errors import RequestError

TEMPERATURES = ("gate_temperature", "position_temperature", "temperature")
"""Names of the layers' τ in files; the last until version 0.2."""

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def of_file(name: str, file: Path) -> ModelInfo:
    """What a safetensors file of ours is, or timm's own directory around it; raises `RequestError` for any other."""
    told = metadata(file)
    size = {"file": str(file), "bytes": file.stat().st_size}
    if not told.get("conversion"):
        if (plain := _of_timms(name, file, size)) is not None:
            return plain
        raise RequestError(not_a_model(file, told))
    beside = {"verification": told.get("verification") or _beside(file)}
    return of_metadata(name, told | beside, **size, temperature=_temperatures(file))


def _of_timms(name: str, file: Path, size: dict[str, Any]) -> ModelInfo | None:
    """What timm's own directory holds, `config.json` beside weights, if the file lies in one."""
    try:
        config = json.loads((file.parent / "config.json").read_text(encoding="utf-8"))
        named = isinstance(config["architecture"], str)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not named or not Path(name.removeprefix("local-dir:")).is_dir():
        return None
    counted = _parameters(file)
    return of_config(name, config, **size, parameters=counted, parameters_before=counted)


def _parameters(file: Path) -> int:
    """Numbers in a file of a model's state that are not the statistics of its normalisation."""
    with safe_open(file, framework="numpy") as handle:
        names = [key for key in handle.keys() if key.rpartition(".")[2] not in STATISTICS]  # noqa: SIM118
        return sum(math.prod(handle.get_slice(name).get_shape()) for name in names)


def _beside(file: Path) -> Any:
    """The verification of the conversion that a run began with, which lies beside its checkpoints."""
    converted = file.with_name("converted.safetensors")
    return metadata(converted).get("verification") if converted.is_file() and converted != file else None


def _temperatures(file: Path) -> tuple[float, float] | None:
    """The smallest and the largest τ among the layers' buffers; None without any, or of a type that NumPy lacks."""
    try:
        with safe_open(file, framework="numpy") as handle:
            names = [key for key in handle.keys() if key.rpartition(".")[2] in TEMPERATURES]  # noqa: SIM118
            values = [float(handle.get_tensor(key)) for key in names]
    except (SafetensorError, OSError, TypeError, ValueError):
        return None
    return (min(values), max(values)) if values else None
