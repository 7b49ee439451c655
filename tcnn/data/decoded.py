"""Cache of decoded images: pixels in one memory-mapped file that every process shares.

Where a network is small, decoding takes longer than training does: of CIFAR-10's JPEG files most of an epoch.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from PIL import Image

from tcnn.data.decode import Mode, UnreadableImage
from tcnn.data.image_set import ImageSet
from tcnn.data.sources.source import pack_names, stamp_of
from tcnn.files import replacing, write_atomically

CHANNELS = {"RGB": 3, "L": 1}


class DecodedSource:
    """Pixels in a memory-mapped file, opened by each process for itself and kept in memory once for all.

    `shapes`: (N, 2), height and width; 0 × 0 is an image that could not be decoded. `keys` and `same`: the keys and
    the identities of the images in the data set that was decoded.
    """

    def __init__(
        self, file: Path, shapes: NDArray[numpy.int64], names: NDArray[numpy.bytes_], mode: Mode,
        keys: NDArray[numpy.bytes_] | None, same: NDArray[numpy.int64],
    ) -> None:  # fmt: skip
        self.file, self.shapes, self.names, self.mode = file, shapes, names, mode
        self._keys, self._same = keys, same
        self.ends = shapes.prod(1).cumsum() * CHANNELS[mode]
        self._pixels: NDArray[numpy.uint8] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pixels": None}  # pickled, the mapping would be a copy of all images

    def filename(self, index: int) -> str:
        return self.names[index].decode(errors="backslashreplace")

    def stamp(self, index: int) -> str | None:
        return stamp_of(self.file)

    def keys(self) -> Sequence[str] | None:
        return None if self._keys is None else list(map(os.fsdecode, self._keys.tolist()))

    def identities(self) -> NDArray[numpy.int64]:
        return self._same

    def sizes(self) -> None:
        return None

    def open(self, index: int) -> Image.Image:
        height, width = self.shapes[index].tolist()
        if not height:
            raise ValueError("it could not be decoded when the data set was")
        if self._pixels is None:
            self._pixels = numpy.memmap(self.file, numpy.uint8, "r")
        end = int(self.ends[index])
        bands = CHANNELS[self.mode]
        # What decode() makes of it is a copy, so that nothing can write to the file.
        return Image.frombuffer(
            self.mode, (width, height), self._pixels[end - height * width * bands : end], "raw", self.mode, 0, 1
        )


def in_memory(data: ImageSet, file: Path) -> ImageSet:
    """Decode all images once into `file` (and `file`.json, their sizes), which is used again later.

    The cache of other images is rewritten, also where one was replaced by another of its name, as far as its data set
    can tell; of images that are gone it is kept. Images that cannot be decoded stay unreadable.

    Raises `OutputError`, `StorageError`.
    """
    names = [data.filename(index) for index in range(len(data))]
    digest = hashlib.sha256(json.dumps([data.mode, names]).encode()).hexdigest()
    sizes = file.with_name(f"{file.name}.json")
    stamps = [data.stamp(index) for index in range(len(data))]
    shapes = _cached_shapes(file, sizes, digest, data.mode, stamps)
    if shapes is None:
        found = []
        with replacing(file, force=True) as temporary, temporary.open("wb") as handle:
            for index in range(len(data)):
                found.append(_write(data, index, handle))
        shapes = numpy.array(found, numpy.int64).reshape(-1, 2)
        record = {"digest": digest, "shapes": shapes.tolist(), "stamps": stamps}
        write_atomically(sizes, json.dumps(record), force=True)  # last, so that sizes always speak of a whole file
    keys = data.keys()
    packed = None if keys is None else pack_names(keys)
    source = DecodedSource(file, shapes, pack_names(names), data.mode, packed, data.identities().numpy())
    return ImageSet(source, data.class_names, data.targets, data.mode, data.split, left_out=data.left_out)


def _write(data: ImageSet, index: int, handle: Any) -> tuple[int, int]:
    """Append one image's pixels; returns its height and width."""
    try:
        image, _ = data.load(index)
    except UnreadableImage:
        return 0, 0
    handle.write(image.tobytes())
    return image.height, image.width


def _cached_shapes(
    file: Path, sizes: Path, digest: str, mode: Mode, stamps: list[str | None]
) -> NDArray[numpy.int64] | None:
    """Sizes of the cached images, if the cache is of these images."""
    try:
        record = json.loads(sizes.read_text(encoding="utf-8"))
        shapes = numpy.array(record["shapes"], numpy.int64).reshape(-1, 2)
        whole = file.stat().st_size == int(shapes.prod(1).sum()) * CHANNELS[mode]
        same = all(now in (None, then) for now, then in zip(stamps, record["stamps"], strict=True))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return shapes if whole and same and record["digest"] == digest else None
