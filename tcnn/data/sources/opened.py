"""Data sets that the caller has opened: of Hugging Face's `datasets`, of torchvision's kind, and parts of either.

What `data[index]` returns is what is trained on. Images that a data set would itself only open are read from their
files, as tcnn reads any. Transforms are refused, since training augments and evaluation prepares by the model, and a
transform would be lost without a word.
"""

import operator
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Subset
from torchvision.datasets import DatasetFolder, ImageFolder, Places365

from tcnn.data.sources.folder import FolderSource
from tcnn.data.sources.hub import choose_rows, rows_found
from tcnn.data.sources.source import Found, Source
from tcnn.errors import RequestError, shorten
from tcnn.formatting import some

Opened = Any
"""What `open_opened` takes."""
KINDS = (
    'the name of a data set, as "photos/", one of Hugging Face, or one with `classes` and `targets`, as torchvision\'s '
    "ImageFolder has"
)
FILES = {DatasetFolder.__getitem__: "samples", Places365.__getitem__: "imgs"}
"""The methods of torchvision that call `data.loader` with a file of a list of (file, class), and the list's name."""
LOADER = signature(ImageFolder).parameters["loader"].default
"""torchvision's own loader, which opens a file."""


class ItemSource:
    """`Source` of a data set that returns (image, class) by index; it is copied to worker processes.

    `listed`: what knows the images by more than their numbers, if anything does.
    """

    def __init__(self, data: Any, labels: NDArray[numpy.int64], listed: Source | None = None) -> None:
        self.data, self.labels, self.listed = data, labels, listed

    def filename(self, index: int) -> str:
        return f"{type(self.data).__name__}/{index}"

    def stamp(self, index: int) -> str | None:
        return None

    def keys(self) -> Sequence[str] | None:
        return None if self.listed is None else self.listed.keys()

    def identities(self) -> NDArray[numpy.int64]:
        return numpy.arange(len(self.labels)) if self.listed is None else self.listed.identities()

    def sizes(self) -> None:
        return None

    def open(self, index: int) -> Image.Image:
        """Raises `RequestError` for another class than `targets` has: which of them is right is not known."""
        image, *more = self.data[index]
        for target in more[:1]:
            with suppress(TypeError):  # a name of a class, for instance
                _check_class(operator.index(target), int(self.labels[index]), index)
        if not isinstance(image, Image.Image):
            raise TypeError(f"expected an image of PIL, found {type(image).__name__}")
        return image


class PartSource:
    """`Source` of some of the images of another."""

    def __init__(self, source: Source, places: NDArray[numpy.int64]) -> None:
        self.source, self.places = source, places

    def filename(self, index: int) -> str:
        return self.source.filename(int(self.places[index]))

    def stamp(self, index: int) -> str | None:
        return self.source.stamp(int(self.places[index]))

    def keys(self) -> Sequence[str] | None:
        keys = self.source.keys()
        return keys and [keys[place] for place in self.places.tolist()]

    def identities(self) -> NDArray[numpy.int64]:
        return self.source.identities()[self.places]

    def sizes(self) -> NDArray[numpy.int64] | None:
        sizes = self.source.sizes()
        return None if sizes is None else sizes[self.places]

    def open(self, index: int) -> Any:
        return self.source.open(int(self.places[index]))


def open_opened(data: Any, split: str) -> Found:
    """A data set of one of the `KINDS`; raises `RequestError` for anything else, and for one with a transform."""
    _refuse_transforms(data)
    if isinstance(data, Subset):  # of torch.utils.data.random_split
        whole, places = open_opened(data.dataset, split), _whole_numbers(data.indices, "the indices of a Subset")
        labels = whole.labels[places]
        part = PartSource(whole.source, places)
        as_is = type(data).__getitem__ is Subset.__getitem__
        return Found(whole.names, labels, part if as_is else ItemSource(data, labels, part), None)
    datasets = sys.modules.get("datasets")  # whoever gives one has imported it
    if datasets is not None and isinstance(data, datasets.Dataset | datasets.DatasetDict):
        rows, chosen = choose_rows(data, split, "data") if isinstance(data, dict) else (data, None)
        if rows.format["type"] == "custom":
            raise _transformed("with_transform")
        return rows_found(rows.with_format(None), rows.info.dataset_name or "data", chosen)
    if datasets is not None and isinstance(data, datasets.IterableDataset | datasets.IterableDatasetDict):
        raise RequestError("data: is a stream, which cannot be resumed at a step; load it without streaming")
    names, targets = getattr(data, "classes", None), getattr(data, "targets", None)
    if not isinstance(names, Sequence) or targets is None or not hasattr(data, "__getitem__"):
        raise RequestError(f"data: expected {KINDS}, found {shorten(repr(data), 80)}")
    labels = _whole_numbers(targets, "targets")
    if labels.shape != (len(data),):
        raise RequestError(
            f"data: expected a class for each of {some(len(data), 'image')}, found targets of {labels.shape}"
        )
    return Found(tuple(map(str, names)), labels, _source(data, labels), None)


def _whole_numbers(values: Any, what: str) -> NDArray[numpy.int64]:
    """Indices, of images or classes, which the caller cannot change; raises `RequestError` for masks and fractions."""
    found = numpy.asarray(values)
    try:
        numbers = found.astype(numpy.int64)
    except (ValueError, TypeError):
        numbers = numpy.zeros(0, numpy.int64)
    if found.size and (found.dtype == bool or not numpy.array_equal(found, numbers)):
        raise RequestError(f"data: expected whole numbers as {what}, found {found.dtype}, such as {found.flat[0]!r}")
    return numbers


def _source(data: Any, labels: NDArray[numpy.int64]) -> Source:
    """Images in files that are only opened are read as those of folders are; all others are asked for one by one."""
    name = FILES.get(type(data).__getitem__)
    if name is None:
        return ItemSource(data, labels)
    listed = getattr(data, name)
    files = FolderSource(Path(data.root), _inside(data.root, (str(file) for file, _ in listed)))
    if data.loader is not LOADER:
        return ItemSource(data, labels, files)
    for index, (_, target) in enumerate(listed):
        _check_class(int(target), int(labels[index]), index)
    return files


def _inside(root: Any, files: Iterable[str]) -> Iterable[str]:
    """Paths relative to a folder, absolute ones of files elsewhere."""
    start = os.path.join(root, "")  # noqa: PTH118
    return (file.removeprefix(start) if file.startswith(start) else os.path.abspath(file) for file in files)  # noqa: PTH100


def _check_class(found: int, listed: int, index: int) -> None:
    if found != listed:
        raise RequestError(
            f"data: image {index} has the class {found}, and targets[{index}] is {listed}; where images or classes "
            "were changed, change both lists alike"
        )


def _refuse_transforms(data: Any) -> None:
    for name in ("transform", "target_transform", "transforms"):
        if getattr(data, name, None) is not None:
            raise _transformed(name)


def _transformed(name: str) -> RequestError:
    return RequestError(
        f"data: its {name} would have no effect, as images are augmented by the recipe and prepared as the model takes "
        "them; give the data set without one"
    )
