"""A pytest plugin under which timm's own tests run over a few source models and their conversions, nothing else.

`TCNN_TIMM_MODELS` names the sources. Every listing of timm's that has one of them has it once, under its default
weights, and its conversion after it.
"""

import fnmatch
import os
from typing import Any

import pytest
import timm

import tcnn  # noqa: F401 - it is under test

MODELS = os.environ["TCNN_TIMM_MODELS"].split(",")
_all_models = timm.list_models


def _listing(*args: Any, **kwargs: Any) -> list[str]:
    found: dict[str, str] = {}
    for name in _all_models(*args, **kwargs):
        found.setdefault(name.partition(".")[0], name)
    return [name for model in MODELS if model in found for name in (found[model], f"t_{found[model]}")]


_matches = fnmatch.fnmatch


def _of_the_source(name: str, pattern: str) -> bool:
    """What timm's tests except by a model's name, they except for its conversion."""
    return _matches(name.removeprefix("t_"), pattern)


fnmatch.fnmatch = _of_the_source  # type: ignore[assignment]
timm.list_models = _listing
timm.list_pretrained = lambda *args, **kwargs: []  # the tests of pretrained weights need a network


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what runs on one of the models."""
    known = {*MODELS, *(f"t_{name}" for name in MODELS)}
    items[:] = [
        item
        for item in items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and str(item.callspec.params.get("model_name")).partition(".")[0] in known
    ]
