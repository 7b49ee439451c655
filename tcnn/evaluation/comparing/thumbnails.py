"""Single images in results: names that say nothing of where a data set lies, and thumbnails as data URLs."""

import base64
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from tcnn.data.image_set import ImageSet

SIDE = 96
"""Pixels of a thumbnail's longer side."""


class Shown(Protocol):
    """A record of one image."""

    file: str
    thumbnail: str | None


def short_name(data: ImageSet, index: int) -> str:
    """An image's name and its folder's, which is its class's; where the data set lies is nobody's business."""
    name = data.filename(index)
    return "/".join(Path(name).parts[-2:]) if Path(name).is_absolute() else name


def illustrate(images: Iterable[Shown], data: ImageSet) -> None:
    """Give images, known by their short names, their thumbnails."""
    places = {short_name(data, index): index for index in range(len(data))}
    for one in images:
        picture, _ = data.load(places[one.file])
        picture.thumbnail((SIDE, SIDE))
        out = io.BytesIO()
        picture.convert("RGB").save(out, "JPEG", quality=80)
        one.thumbnail = "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
