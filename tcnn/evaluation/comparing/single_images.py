"""Single images of a comparison: those that a model gets wrong, and those on which one model departs from the first.

Their names say nothing of where a data set lies; their thumbnails are data URLs.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from os.path import commonpath
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel

from tcnn.data.image_set import ImageSet
from tcnn.evaluation.comparing.before_after import Change, change
from tcnn.evaluation.outcomes import Outcomes, answer_names

SIDE = 96
"""Pixels of a thumbnail's longer side."""


class Shown(Protocol):
    """A record of one image."""

    file: str
    thumbnail: str | None


def short_names(data: ImageSet) -> list[str]:
    """Every image's name and its folder's, which is its class's; where the data set lies is nobody's business.

    Where two would be called alike, as in a/cat/0.jpg and b/cat/0.jpg, they have all that tells them apart.
    """
    names = [data.filename(index) for index in range(len(data))]
    if not all(Path(name).is_absolute() for name in names):
        return names
    short = ["/".join(Path(name).parts[-2:]) for name in names]
    if len(set(short)) == len(short):
        return short
    around = f"{commonpath(names)}/"
    return [name.removeprefix(around) for name in names]


def illustrate(images: Iterable[Shown], data: ImageSet) -> None:
    """Give images, known by their short names, their thumbnails."""
    places = {name: index for index, name in enumerate(short_names(data))}
    for one in images:
        picture, _ = data.load(places[one.file])
        picture.thumbnail((SIDE, SIDE))
        out = io.BytesIO()
        picture.convert("RGB").save(out, "JPEG", quality=80)
        one.thumbnail = "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()


class Mistake(BaseModel):
    """An image that a model gets wrong."""

    file: str
    target: str
    answer: str
    confidence: float
    thumbnail: str | None = None
    """A data URL."""


class ModelChange(Change):
    """What one model answers better or worse than another, at one size of the images."""

    of: str
    over: str
    height: int
    width: int


class Looked(NamedTuple):
    """What a model said to the images, as it has them: its classes may stand in another order than another's."""

    model: str
    size: tuple[int, int]
    data: ImageSet
    outcomes: Outcomes


def mistakes(looked: Looked, most: int) -> list[Mistake]:
    """The images that a model gets wrong, those first of whose class it is surest."""
    found, names = looked.outcomes, answer_names(looked.data.class_names)
    files = short_names(looked.data)
    made = [
        Mistake(
            file=files[int(found.indices[i])], target=names[found.targets[i]],
            answer=names[found.predicted[i]], confidence=round(float(found.confidence[i]), 6),
        )
        for i in found.most_confident(~found.right, most)
    ]  # fmt: skip
    illustrate(made, looked.data)
    return made


def changes(all_looked: Sequence[Looked], most: int) -> list[ModelChange]:
    """Every model over the first, where both were measured at one size."""
    if not all_looked:
        return []
    first = [one for one in all_looked if one.model == all_looked[0].model]
    found = []
    for one in all_looked:
        before = next((other for other in first if other.size == one.size), None)
        if before is None or one.model == before.model:
            continue
        data = before.data
        made = change(before.outcomes, _in_the_order_of(data, one), data.class_names, short_names(data))
        images = [made.right_images[:most], made.wrong_images[:most]]
        illustrate([*images[0], *images[1]], data)
        made = made.model_copy(update={"right_images": images[0], "wrong_images": images[1]})
        height, width = one.size
        found.append(ModelChange(of=one.model, over=before.model, height=height, width=width, **dict(made)))
    return found


def _in_the_order_of(data: ImageSet, looked: Looked) -> Outcomes:
    """The outcomes with places and numbers of classes as this data set has them."""
    if looked.data is data:
        return looked.outcomes
    own = {name: number for number, name in enumerate(data.class_names)}
    classes = np.array([*(own[name] for name in looked.data.class_names), -1])
    places = {data.filename(index): index for index in range(len(data))}
    found = looked.outcomes
    indices = np.array([places[looked.data.filename(int(index))] for index in found.indices])
    return Outcomes(indices, classes[found.targets], classes[found.predicted], found.confidence)
