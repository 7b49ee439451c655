"""Check model arguments from a checkpoint: only plain values, none by which timm would open other files."""

import re
from collections.abc import Mapping
from pathlib import Path

from tcnn.errors import CheckpointError, shorten

FORBIDDEN = re.compile(r"pretrained.*|checkpoint_path|cache_dir|scriptable|exportable|no_jit|.*_fn|kwargs_filter")
"""Arguments by which timm would read other files, or call what they name."""


def forbidden(arguments: Mapping[str, object]) -> str | None:
    """The first argument that a file must not contain, or None. A file that loads another could have it unpickled."""
    for name, value in arguments.items():
        if FORBIDDEN.fullmatch(name) or not _plain(value):
            return name
    return None


def refuse_in_files(name: str | Path, arguments: Mapping[str, object]) -> None:
    """Raise `CheckpointError` for arguments of a file that no file may contain."""
    argument = forbidden(arguments)
    if argument is not None:
        raise CheckpointError(f"{name}: the model argument {shorten(ascii(argument), 60)} is not allowed in a file")


def _plain(value: object, depth: int = 3) -> bool:
    if isinstance(value, list | tuple):
        return depth > 0 and all(_plain(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return depth > 0 and all(
            not FORBIDDEN.fullmatch(str(key)) and _plain(item, depth - 1) for key, item in value.items()
        )
    return value is None or isinstance(value, bool | int | float | str)
