"""What weights say of the run that trained them: read from the head of a file, kept by the model that is loaded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

LEARNED_FROM = "learned_from"
"""The section in which a model that was loaded and is saved again, by another hand than a run's, keeps the record."""


def training_record(file: Path) -> dict[str, Any] | None:
    """The record of the run of ours that made the weights in a file, or None."""
    try:
        with safe_open(file, framework="numpy") as handle:
            return record_in(handle.metadata() or {})
    except (SafetensorError, OSError, ValueError):
        return None


def record_in(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """The record in a file's metadata, or None.

    It stands in `training`; where a CNN was trained and then converted, or folded from such a conversion, in `source`;
    in a file that was loaded and saved again in `learned_from`.
    """
    try:
        places = (
            json.loads(metadata.get("training", "null")),
            json.loads(metadata.get("source", "{}")).get("training"),
            json.loads(metadata.get(LEARNED_FROM, "null")),
        )
    except (ValueError, AttributeError):
        return None
    return next((found for found in places if isinstance(found, dict)), None)


def keep_record(model: nn.Module, metadata: Mapping[str, str]) -> None:
    """Leave the record of a file's metadata, if it has one, on the model that was loaded from it."""
    if (record := record_in(metadata)) is not None:
        model.training_record = {key: value for key, value in record.items() if key != "metrics"}  # type: ignore[assignment]


def record_kept(model: nn.Module) -> dict[str, Any] | None:
    """The record that a loaded model has brought along, without what was measured of it: it may have learned since."""
    record = getattr(model, "training_record", None)
    return record if isinstance(record, dict) else None
