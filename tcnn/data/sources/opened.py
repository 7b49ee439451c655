"""Data sets that the caller has opened: of Hugging Face's `datasets`, of torchvision's kind, and parts of either.

Their images are read as tcnn reads any: transforms are refused, since training augments and evaluation prepares by the
model, and a transform would be lost without a word.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Subset

from tcnn.data.sources.folder import FolderSource
from tcnn.data.sources.hub import choose_rows, rows_found
from tcnn.data.sources.source import Found, Source
from tcnn.errors import RequestError, shorten

Opened = Any
"""What `open_opened` takes."""
KINDS = (
    'the name of a data set, as "photos/", one of Hugging Face, or one with `classes` and `targets`, as torchvision\'s '
    "ImageFolder has"
)


class ItemSource:
    """`Source` of a data set that returns (image, class) by index; it is copied to worker processes."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def filename(self, index: int) -> str:
        return f"{type(self.data).__name__}/{index}"

    def stamp(self, index: int) -> str | None:
        return None

    def open(self, index: int) -> Image.Image:
        image = self.data[index][0]
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

    def open(self, index: int) -> Any:
        return self.source.open(int(self.places[index]))


def open_opened(data: Any, split: str) -> Found:
    """A data set of one of the `KINDS`; raises `RequestError` for anything else, and for one with a transform."""
    if isinstance(data, Subset):  # of torch.utils.data.random_split
        whole, places = open_opened(data.dataset, split), numpy.asarray(data.indices, dtype=numpy.int64)
        return Found(whole.names, whole.labels[places], PartSource(whole.source, places), None)
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
    for transform in ("transform", "target_transform", "transforms"):
        if getattr(data, transform, None) is not None:
            raise _transformed(transform)
    labels = numpy.asarray(targets, dtype=numpy.int64)
    if labels.shape != (len(data),):
        raise RequestError(f"data: expected a class for each of {len(data)} images, found targets of {labels.shape}")
    return Found(tuple(map(str, names)), labels, _source(data), None)


def _source(data: Any) -> Source:
    """Images in files are read as those of folders are, by their paths alone."""
    files = getattr(data, "imgs", None)
    if files is None or not hasattr(data, "root"):
        return ItemSource(data)
    inside = os.path.join(data.root, "")  # noqa: PTH118
    return FolderSource(Path(data.root), (str(file).removeprefix(inside) for file, _ in files))


def _transformed(name: str) -> RequestError:
    return RequestError(
        f"data: its {name} would have no effect, as images are augmented by the recipe and prepared as the model takes "
        "them; give the data set without one"
    )
