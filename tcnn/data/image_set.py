"""`ImageSet` and `open_dataset`: open data sets by timm's names, take splits and subsets of them."""

import dataclasses
import difflib
import hashlib
import os
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from heapq import nsmallest
from itertools import repeat
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from tcnn.arguments import typed
from tcnn.data.decode import Mode, UnreadableImage, decode, mode_of, reason
from tcnn.data.parts import balanced_places, chosen_places, first_places_of_each, held_out_places, listing, renumbered
from tcnn.data.sources.folder import open_folder
from tcnn.data.sources.hub import HubSource, open_hub
from tcnn.data.sources.names import class_name
from tcnn.data.sources.opened import Opened, open_opened
from tcnn.data.sources.remote import is_remote
from tcnn.data.sources.shards import open_shards
from tcnn.data.sources.source import Found, Source, check_class_names
from tcnn.data.sources.tar import open_tar
from tcnn.data.sources.torchvision_sets import ArraySource, open_torch
from tcnn.data.transforms import training_transform
from tcnn.errors import RequestError, TcnnError, one_line
from tcnn.formatting import are, some

__all__ = ["ImageSet", "UnreadableImage", "class_balanced", "open_dataset", "split_off", "training_transform"]

PREFIXES = ("hfds", "torch", "wds")
STREAMS = ("hfids", "tfds")

FINGERPRINTED = 16
"""Number of images, evenly spread or chosen by their names, whose pixels make a data set's fingerprint."""


class ImageSet:
    """Images and their classes by index, for training and evaluation.

    `class_names`: index → name, immutable. `targets`: (N,), int64, known without decoding an image. `split`: the name
    of the split that was opened, None if the data set is not divided: another split of it would be the same images.
    `left_out`: a note of the files that were not taken for images, if there are any. `places`: (N,), int64, where the
    images are in the set that was opened.
    """

    def __init__(
        self,
        source: Source,
        class_names: Sequence[str],
        targets: Tensor,
        mode: Mode = "RGB",
        split: str | None = None,
        places: Tensor | None = None,
        parent: "ImageSet | None" = None,
        left_out: str | None = None,
    ) -> None:
        self.class_names: tuple[str, ...] = tuple(class_names)
        self.targets = targets
        self.mode: Mode = mode
        self.split, self.left_out = split, left_out
        self._source = source
        self.places = torch.arange(len(targets)) if places is None else places
        self._parent = parent

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"ImageSet({some(len(self), 'image')} of {some(len(self.class_names), 'class')})"

    def load(self, index: int) -> tuple[Image.Image, int]:
        """Decode an image, RGB or L; returns it with its class. Raises `UnreadableImage`, `IndexError`."""
        target, place = int(self.targets[index]), int(self.places[index])
        try:
            opened = self._source.open(place)
            with opened:
                return decode(opened, self.mode), target
        except TcnnError:  # the store is away: no image's fault, and to pass it over would be another run
            raise
        # PIL's decoders raise almost anything on broken files: struct.error, SyntaxError, IndexError, …
        except Exception as error:
            raise UnreadableImage(self._source.filename(place), reason(error)) from error

    def filename(self, index: int) -> str:
        """Readable name of an image."""
        return self._source.filename(int(self.places[index]))

    def stamp(self, index: int) -> str | None:
        """What changes with an image where it is replaced in place; None if that is not known, or it is gone."""
        return self._source.stamp(int(self.places[index]))

    def keys(self) -> list[str] | None:
        """The folder and name of every image, wherever the set lies; None where images have numbers alone."""
        keys = self._source.keys()
        return None if keys is None else [keys[place] for place in self.places.tolist()]

    def identities(self) -> Tensor:
        """(N,), equal where one image is listed several times: the same file, bytes or row. No image is read."""
        return torch.from_numpy(self._source.identities())[self.places]

    def sizes(self) -> Tensor | None:
        """(N,), the bytes of every image's file, 0 where it is gone; None where images are not files on the disk."""
        sizes = self._source.sizes()
        return None if sizes is None else torch.from_numpy(sizes)[self.places]

    def digest(self, index: int) -> bytes | None:
        """What changes with the bytes of an image's file; None where there is none that can be read."""
        with suppress(OSError), self._source.open(int(self.places[index])) as file:
            return None if isinstance(file, Image.Image) else hashlib.sha256(file.read()).digest()
        return None

    def of_channels(self, in_chans: int) -> "ImageSet":
        """The same images for a model of so many channels: RGB or grey."""
        if mode_of(in_chans) == self.mode:
            return self
        mode, parent = mode_of(in_chans), self._parent and self._parent.of_channels(in_chans)
        return ImageSet(
            self._source, self.class_names, self.targets, mode, self.split, self.places, parent, self.left_out
        )

    def numbered_as(self, class_names: Sequence[str], what: str = "data") -> "ImageSet":
        """The same images with the class names, and so the targets, of another set or of a model.

        Raises `RequestError`, which begins with `what` they are, for an image of another class.
        """
        if self.class_names == tuple(class_names):
            return self
        targets = renumbered(self.targets, self.class_names, class_names, what)
        return ImageSet(self._source, class_names, targets, self.mode, self.split, self.places, self, self.left_out)

    def subset(self, indices: Iterable[int] | Tensor) -> "ImageSet":
        """The images at some indices, in their order, or those of a mask of them all; the class names stay."""
        chosen = chosen_places(indices, len(self))
        places = self.places[chosen]
        targets = self.targets[chosen]
        return ImageSet(self._source, self.class_names, targets, self.mode, self.split, places, self, self.left_out)

    @property
    def lineage(self) -> "list[ImageSet]":
        """This set, the one that it is a part of, and so on to the set that was opened."""
        return [self] if self._parent is None else [self, *self._parent.lineage]

    @property
    def whole(self) -> "ImageSet":
        """The set that was opened, of which this one may be a part."""
        return self.lineage[-1]

    def beside(self, other: "ImageSet") -> bool:
        """Whether both are, or are parts of, one set that was opened, so that `places` say which images they share."""
        return self._source is other._source

    def listing(self) -> str:
        """What changes with the name or the class of any image of this set, and with their order.

        Of a part of what was opened it changes with the places, too. What was held out of a set is the same for as long
        as the listing stays; the pixels are the fingerprint's.
        """
        keys = self.keys()
        if not self.places.equal(self.whole.places):
            keys = [
                f"{place} {key}" for place, key in zip(self.places.tolist(), keys or repeat("", len(self)), strict=True)
            ]
        return listing(keys, self.targets.tolist(), self.class_names)

    def fingerprint(self, ordered: bool = True) -> str:
        """What tells the whole set from others, wherever it lies: its number of images and the pixels of some.

        Without `ordered` it is the same for the same images in another order, if these are files that keep their names.
        """
        whole = self.whole
        if ordered or isinstance(self._source, HubSource | ArraySource):  # these are known by their place alone
            chosen = sorted({number * (len(whole) - 1) // (FINGERPRINTED - 1) for number in range(FINGERPRINTED)})
        else:
            chosen = nsmallest(FINGERPRINTED, range(len(whole)), key=lambda index: _random_rank(whole.filename(index)))
        prints = []
        for index in chosen:
            try:
                image, _ = whole.load(index)
            except UnreadableImage:
                continue  # so it is in every copy
            prints.append(hashlib.sha256(f"{image.size}".encode() + image.tobytes()).digest())
        inside = prints if ordered else sorted(prints)
        return hashlib.sha256(f"{len(whole)} {whole.mode}".encode() + b"".join(inside)).hexdigest()


def _random_rank(name: str) -> tuple[int, str]:
    """Sort key of a pseudorandom order of files; the same in a folder, a tar, and shards that keep the names."""
    *_, folder, own = f"/{os.path.splitext(name)[0]}".rsplit("/", 2)  # noqa: PTH122 - a million times
    return zlib.crc32(own.encode("utf-8", "surrogateescape")), folder


@typed("spec", "in_chans")
def open_dataset(
    spec: str | Path | Opened,
    split: str = "train",
    class_names: Sequence[str] | None = None,
    in_chans: int = 3,
    download: bool = False,
) -> ImageSet:
    """Open a data set: class folders, a tar of them, `hfds/NAME`, `torch/NAME:FOLDER`, `wds/SHARDS`, `s3://SHARDS`.

    Or what the caller has opened (`open_opened`). See docs/data.md. `class_names`: those of the training set, which
    then give the indices; a class that is missing here does not change the others. `in_chans` is 3 for RGB or 1 for
    grey. `download` lets torchvision fetch its data sets.

    Raises `RequestError` (no such data set, split or class; nothing in it), `EnvironmentFailure` (no library).
    """
    mode = mode_of(in_chans)
    if isinstance(spec, str | os.PathLike):
        found = _open_source(os.fspath(spec), split, class_names is None, download)
    else:
        found, spec = open_opened(spec, split), "data"
    found = dataclasses.replace(found, names=tuple(map(class_name, found.names)))
    if not len(found.labels):
        raise RequestError(f"{spec}: no images in split {split!r}")
    targets = torch.from_numpy(found.labels)
    if wrong := [label for label in targets.aminmax() if not 0 <= label < len(found.names)]:
        there = f"there {are(len(found.names))} {some(len(found.names), 'class')}"
        raise RequestError(f"{spec}: an image has the label {int(wrong[0])}, and {there}")
    if class_names is not None:
        targets = renumbered(targets, found.names, class_names, str(spec))
    check_class_names(found.names, str(spec))
    return ImageSet(found.source, class_names or found.names, targets, mode, found.split, left_out=found.left_out)


def split_off(data: ImageSet, fraction: float, seed: int) -> tuple[ImageSet, ImageSet]:
    """Split a data set into training and validation images, with the same `fraction` of every class, chosen by `seed`.

    A class keeps at least one image for training and, if it has two or more, gives at least one for validation. Both
    keep the data set's order; an image that is listed several times is in one of them alone, as often as it is listed.
    Raises `RequestError` if the fraction is not between 0 and 1 or leaves either side empty.
    """
    held_out = held_out_places(data.targets, data.identities(), fraction, seed)
    if not held_out.any():
        raise RequestError("no class has two images, so none can be held out; give a validation set with --val")
    return data.subset(~held_out), data.subset(held_out)


def class_balanced(data: ImageSet, fraction: float, seed: int) -> ImageSet:
    """A class-balanced subset: the same share of every class, at least one image each, chosen by `seed`, in order.

    A larger fraction contains every image of a smaller one. Raises `RequestError` unless 0 < fraction ≤ 1.
    """
    return data if fraction == 1 else data.subset(balanced_places(data.targets, fraction, seed))


def first_of_each(data: ImageSet, limit: int) -> ImageSet:
    """A class-balanced subset: the first image of every class, then the second, …, up to `limit`."""
    return data.subset(first_places_of_each(data.targets.tolist(), data.class_names, limit))


def _open_source(spec: str, split: str, complete: bool, download: bool) -> Found:
    """Open a data set by the reader of its kind."""
    prefix, slash, rest = spec.partition("/")
    kind = prefix.lower() if slash and rest else ""
    if kind == "hfds":
        return open_hub(rest, split)
    if kind == "torch":
        return open_torch(rest, split, download)
    if kind == "wds" or is_remote(spec):
        return open_shards(rest if kind == "wds" else spec, split)
    path = Path(spec).expanduser()
    if spec and _exists(path):
        return open_folder(path, split, complete) if path.is_dir() else open_tar(path, split, complete)
    if kind in STREAMS:
        raise RequestError(f"{spec}: {kind}/ is a stream, which cannot be resumed at a step; use hfds/ or wds/")
    near = difflib.get_close_matches(kind, PREFIXES, 1) if kind else []
    hint = f"did you mean {near[0]}/{rest}?" if near else "expected a folder, a .tar, hfds/…, torch/… or wds/…"
    raise RequestError(f"{spec}: no such data set; {hint}")


def _exists(path: Path) -> bool:
    """Whether a path exists; raises `RequestError` if that cannot be known."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: cannot be looked into ({one_line(error)})") from error
    return True
