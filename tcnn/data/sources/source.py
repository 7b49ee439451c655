"""Interface of data set readers (`Source`, `Found`), their labels, and the classes of a model beside a data set's."""

import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy
from numpy.typing import NDArray
from PIL import Image

from tcnn.characters import fault
from tcnn.data.sources.names import class_name, image_key, sort_key
from tcnn.errors import RequestError

MAX_CLASSES = 1_000_000
"""Largest number of classes: a larger label is damage, or such a classifier would fill the memory."""


class Source(Protocol):
    """Opens images by index. It is sent to worker processes: no open files, nothing that is expensive to copy."""

    def open(self, index: int) -> BinaryIO | Image.Image:
        """The image's bytes, or the image; raises any error there is."""
        ...

    def filename(self, index: int) -> str:
        """Readable name of an image."""
        ...

    def stamp(self, index: int) -> str | None:
        """What changes with the image where it is replaced in place; None if that is not known, or it is gone."""
        ...

    def keys(self) -> Sequence[str] | None:
        """What each image is called wherever the data set lies (`image_key`); None if it has a number alone."""
        ...

    def identities(self) -> NDArray[numpy.int64]:
        """(N,), equal where one image is listed several times: the same file, bytes or row. No image is read."""
        ...

    def sizes(self) -> NDArray[numpy.int64] | None:
        """(N,), the bytes of every image's file, 0 where it is gone; None where images are not files on the disk."""
        ...


class ArchiveMembers:
    """Where each image lies: in which archive, and its `size` bytes from `offset` on; base of `Source`s of archives."""

    def __init__(self, archives: Sequence[str], where: Iterable[int], members: Sequence[tuple[str, int, int]]) -> None:
        self.archives = tuple(archives)
        self.where = numpy.array(list(where), dtype=numpy.int64)
        self.names = pack_names(name for name, _, _ in members)
        self.ranges = numpy.array([(offset, size) for _, offset, size in members], dtype=numpy.int64)

    def archive(self, index: int) -> str:
        """Path or URL of the archive of an image."""
        return self.archives[self.where[index]]

    def filename(self, index: int) -> str:
        return f"{self.archive(index)}/{self.names[index].decode(errors='backslashreplace')}"

    def keys(self) -> Sequence[str]:
        return [image_key(os.fsdecode(name)) for name in self.names.tolist()]

    def identities(self) -> NDArray[numpy.int64]:
        return first_places(zip(self.where.tolist(), self.ranges[:, 0].tolist(), strict=True))


@dataclass(frozen=True)
class Found:
    """A data set as found: the name of every label, and the label (N,), int64, of every image.

    `split` is the name of the split, or None where the data set is not divided; `left_out` is a note of the files that
    were not taken for images.
    """

    names: tuple[str, ...]
    labels: NDArray[numpy.int64]
    source: Source
    split: str | None
    left_out: str | None = None


def number(names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[numpy.int64]]:
    """The distinct `class_name`s in order, and each one's index in it, (N,)."""
    known = {name: class_name(name) for name in set(names)}
    distinct = tuple(sorted(set(known.values()), key=sort_key))
    index = {name: place for place, name in enumerate(distinct)}
    return distinct, numpy.fromiter((index[known[name]] for name in names), numpy.int64, len(names))


def check_class_names(names: Sequence[str], spec: str) -> None:
    """Raise `RequestError` for two classes of one name, by which data sets and models are matched, or for no name."""
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if unfit := fault(name):  # they are stored in checkpoints: at the end of a long run it is too late to find out
            raise RequestError(f"{spec}: the class name {name!r} has {unfit}; rename the class")
        if name in first:
            raise RequestError(
                f"{spec}: the classes {first[name]} and {index} are both called {name!r}; give each a name of its own"
            )
        first[name] = index


def other_classes(known: Iterable[object], names: Sequence[str]) -> str | None:
    """How the classes that a model knows differ from a data set's, in words; None if they do not, or it knows none."""
    own = [class_name(name) for name in known]
    if not own or own == list(names):
        return None
    if sorted(own) != sorted(names):
        return f"other classes ({own[0]}, …)"
    place = next(place for place, name in enumerate(names) if own[place] != name)
    return f"these classes in another order (its class {place} is {own[place]}, the data set's {names[place]})"


def same_kind(known: Iterable[object], names: Sequence[str]) -> bool:
    """Whether a model and a data set have a class in common, by name; else one may have words, the other numbers."""
    return not {class_name(name) for name in known}.isdisjoint(map(class_name, names))


def stamp_of(file: str | Path) -> str | None:
    """Size and time of a file; None if it is not there."""
    try:
        found = os.stat(file)  # noqa: PTH116 - a million times
    except OSError:
        return None
    return f"{found.st_size} {found.st_mtime_ns}"


def check_indices(labels: Sequence[int], where: str) -> int:
    """The largest of labels that are class indices. Raises `RequestError` if one is no index."""
    highest = max(labels)
    if min(labels) < 0 or highest >= MAX_CLASSES:
        wrong = next(label for label in labels if not 0 <= label < MAX_CLASSES)
        raise RequestError(f"{where}: label {wrong} is no class index; classes are numbered from 0 on")
    return highest


def first_places(things: Iterable[Hashable]) -> NDArray[numpy.int64]:
    """(N,), for every thing the place of the first that is equal to it."""
    first: dict[Hashable, int] = {}
    return numpy.array([first.setdefault(thing, place) for place, thing in enumerate(things)], dtype=numpy.int64)


def pack_names(texts: Iterable[str]) -> NDArray[numpy.bytes_]:
    """File names in one block of memory: a list of a million strings would be copied into every worker process."""
    return numpy.array([os.fsencode(text) for text in texts], dtype=numpy.bytes_)
