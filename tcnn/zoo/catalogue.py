"""Catalogue of timm's models: which can be converted, which layers, and why not.

`catalogue.json` is generated (``python -m tcnn.conversion.describe``), checked by a test, and read without torch, so
that a command or a server can answer at once.
"""

import difflib
import json
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tcnn.errors import NothingToConvertError, UnknownModelError

PATH = Path(str(files("tcnn.zoo"))) / "catalogue.json"


class Entry(BaseModel):
    """One timm model. Parameters are counts; FLOPs are 2 × multiply-adds of one image at `input_size`, stride kept."""

    model_config = ConfigDict(frozen=True)

    name: str
    family: str
    input_size: tuple[int, int, int]
    parameters: int
    flops: int | None = None
    weights: tuple[str, ...] = ()
    convertible: bool
    reason: str | None = None
    stage: str | None = None
    layers: int = 0
    kernels: tuple[str, ...] = ()
    converted_parameters: int | None = None
    converted_flops: int | None = None
    stride_removable: bool = False

    @property
    def registered_as(self) -> str | None:
        """Name of the converted model in timm's registry, or None."""
        return registered_name(self.name) if self.convertible else None


def registered_name(architecture: str) -> str:
    """Name of a converted timm architecture in timm's registry: `t_resnet50d`."""
    return architecture if architecture.startswith("t_") else f"t_{architecture}"


@cache
def entries() -> dict[str, Entry]:
    """The catalogue by timm name."""
    data = json.loads(PATH.read_text(encoding="utf-8"))
    return {row["name"]: Entry.model_validate(row) for row in data["models"]}


def timm_version() -> str:
    """The timm version of the catalogue."""
    return str(json.loads(PATH.read_text(encoding="utf-8"))["timm"])


def search(query: str = "") -> list[Entry]:
    """Entries whose name contains every word of the query; `*` and `?` match as in a shell."""
    words = query.lower().split()
    return [
        entry
        for entry in entries().values()
        if all(fnmatch(entry.name, word) if any(c in word for c in "*?[") else word in entry.name for word in words)
    ]


def check(name: str, default_choice: bool = True) -> Entry | None:
    """Check a model name by the catalogue, before torch is loaded.

    Args:
        default_choice: whether the last stage is to be converted; another stage may be convertible although it is not.

    Returns the entry, or None when the catalogue cannot tell (a directory, a hub repository, another timm's model).
    Raises `UnknownModelError` or `NothingToConvertError`.
    """
    if ":" in name or "/" in name or "\\" in name:
        return None
    architecture, _, tag = name.partition(".")
    entry = entries().get(architecture)
    if entry is None:
        if metadata.version("timm") != timm_version():
            return None
        raise UnknownModelError(unknown(name, list(entries())))
    if tag and tag not in entry.weights:
        raise UnknownModelError(unknown_tag(name, entry.weights))
    if not entry.convertible and default_choice:
        raise NothingToConvertError(entry.reason or f"{name}: nothing to convert")
    return entry


def unknown(name: str, known: list[str]) -> str:
    """Error message for an unknown model name, with the closest known ones."""
    close = difflib.get_close_matches(name.partition(".")[0], known, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(close)}?" if close else "`tcnn models` lists what can be converted"
    return f"{name}: no timm model of this name; {hint}"


def unknown_tag(name: str, tags: Iterable[str]) -> str:
    """Error message for an unknown weights tag, with the known ones."""
    architecture, _, tag = name.partition(".")
    return (
        f"{name}: {architecture} has no weights tagged {tag!r}; known tags: {', '.join(filter(None, tags)) or 'none'}"
    )
