"""What the pictures of README and docs/ show: Tiny Darknet, trained on ImageNet by others, on ten breeds of dogs.

The weights and the photographs (docs/results.md says where they are from) are no part of this repository. The server is
a host with an architecture of its own: in each of its processes timm and the catalogue of its models know Tiny Darknet,
too. The `sitecustomize` that `environment` writes imports this module there, so it is light until timm is not.
"""

import importlib
import io
import os
import random
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
SIDE = 128
TARGET = "conv1[13]"
"""The two convolutions of the last stage, on maps of 8×8."""
IMAGES = {"train": 60, "val": 50}
"""Of each breed."""
RECIPE: dict[str, Any] = {
    "epochs": 3, "warmup_epochs": 0.25, "batch_size": 30, "size": SIDE, "workers": 0, "device": "cpu",
    "freeze": "trunk", "lr": 1e-4, "smoothing": 0.0, "scale": (0.35, 1.0), "ratio": (0.75, 1.3333), "log_steps": 2,
}  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """Variables with which every Python knows the network by its name; `folder` takes a file."""
    (folder / "sitecustomize.py").write_text("from benchmarks.drawing import dogs\n\ndogs.know()\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def know() -> None:
    """Have timm and the catalogue know the network from when this process imports them."""
    sys.meta_path.insert(0, Finder())


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


def weights(file: Path, breeds: dict[str, str]) -> bytes:
    """Its weights with ImageNet's rows of the classifier for the breeds, as safetensors: what a user would upload."""
    from safetensors.torch import load_file, save
    from timm.data import ImageNetInfo

    numbers = ImageNetInfo().label_names()
    rows = [numbers.index(breed) for breed in breeds]
    state = load_file(file)
    for name in ("conv15.weight", "conv15.bias"):
        state[name] = state[name][rows].clone()
    return save(state)


def names(archive: Path) -> dict[str, str]:
    """Ids and names of the breeds of an archive of PART/WORDNET-ID/….jpg, in the order of a data set's classes."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    with tarfile.open(archive) as packed:
        found = sorted(
            {PurePosixPath(name).parts[-2] for name in packed.getnames() if name.endswith((".jpg", ".JPEG"))}
        )
    described = [(info.label_name_to_description(breed).partition(",")[0].replace(" ", "_"), breed) for breed in found]
    return {breed: name for name, breed in sorted(described, key=lambda one: one[0].casefold())}


def photographs(archive: Path, breeds: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Some of each breed, drawn by lot: their names as PART/BREED/FILE, and their bytes."""
    with tarfile.open(archive) as packed:
        members: dict[tuple[str, str], list[tarfile.TarInfo]] = {}
        for member in packed.getmembers():
            parts = PurePosixPath(member.name).parts
            if member.isfile() and len(parts) >= 3 and parts[-2] in breeds:
                members.setdefault((parts[-3], parts[-2]), []).append(member)
        for (part, breed), there in sorted(members.items()):
            there.sort(key=lambda member: member.name)
            for member in sorted(random.Random(0).sample(there, IMAGES[part]), key=lambda one: one.name):
                content = packed.extractfile(member)
                assert content is not None
                yield f"{part}/{breeds[breed]}/{PurePosixPath(member.name).name}", content.read()


def zipped(archive: Path, breeds: dict[str, str]) -> bytes:
    """The photographs as an upload."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, content in photographs(archive, breeds):
            packed.writestr(name, content)
    return out.getvalue()
