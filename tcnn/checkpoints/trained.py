"""What a file of weights says of the run that trained them, read from its head."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open


def training_record(file: Path) -> dict[str, Any] | None:
    """The record of the run of ours that made the weights in a file, or None.

    It stands in `training`; where a CNN was trained and then converted, or folded from such a conversion, in `source`.
    """
    try:
        with safe_open(file, framework="numpy") as handle:
            metadata = handle.metadata() or {}
        own = json.loads(metadata.get("training", "null"))
        found = own if own is not None else json.loads(metadata.get("source", "{}")).get("training")
    except (SafetensorError, OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, dict) else None
