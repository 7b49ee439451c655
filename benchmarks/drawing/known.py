"""What a host does that serves an architecture of its own: timm and the catalogue of its models know Tiny Darknet, too.

Imported by the `sitecustomize` that `dogs.environment` writes, in every process of the server; light until timm is not.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def register(_: ModuleType) -> None:
    importlib.import_module("benchmarks.drawing.tiny_darknet_of_timm")


def describe(catalogue: Any) -> None:
    """The catalogue's row, with the last stage's two convolutions."""
    entry = catalogue.Entry(
        name="tiny_darknet", family="darknet", input_size=(3, 224, 224), parameters=1_042_104, convertible=True,
        stage="conv11", layers=2, kernels=("3×3",), stages=(("conv11", 2),), convolutions=("conv11", "conv13"),
        widest=64,
    )  # fmt: skip
    known = catalogue.entries
    catalogue.entries = cache(lambda: known() | {entry.name: entry})


class Finder(MetaPathFinder):
    """Calls a function once its module was imported."""

    then: dict[str, Callable[[ModuleType], None]] = {"timm": register, "tcnn.zoo.catalogue": describe}  # noqa: RUF012

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in self.then else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            self.then[name](module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder())
