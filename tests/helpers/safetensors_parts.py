"""A safetensors file as its header and its data, to be put together wrongly."""

import json
from pathlib import Path
from typing import Any


def parts(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and data."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def rewrite(path: Path, header: object, data: bytes = b"") -> Path:
    """Write a file of a header, as JSON or as it is in bytes, and of data."""
    raw = header if isinstance(header, bytes) else json.dumps(header, ensure_ascii=False).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def tensor(start: int, stop: int) -> dict[str, object]:
    """A header's entry of float32 numbers in these bytes of the data."""
    return {"dtype": "F32", "shape": [(stop - start) // 4], "data_offsets": [start, stop]}
