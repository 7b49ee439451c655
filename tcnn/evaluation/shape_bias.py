"""Shape or texture: what a model goes by on images whose shape is of one category and whose texture is of another.

Geirhos et al. 2019 (ImageNet-trained CNNs are biased towards texture): a decision is the category with the largest mean
probability over its classes; the shape bias is the share of shape decisions among those for either of the two.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torch import nn

from tcnn.errors import RequestError
from tcnn.evaluation.categories import CATEGORIES, members, of_names
from tcnn.evaluation.evaluate import Amp
from tcnn.evaluation.imagenet_variants import synsets
from tcnn.evaluation.intervals import share
from tcnn.evaluation.predict import image_files, predict
from tcnn.records import Record

NAME = re.compile(r"(?P<shape>[a-z]+)\d*-(?P<texture>[a-z]+)\d*")
"""File names of the cue-conflict images: `airplane1-bicycle2.png`."""
AT_ONCE = 64
"""Images whose probabilities are held at a time."""


class Decisions(Record):
    """How many images were decided by their shape, by their texture, or as neither."""

    shape: int = 0
    texture: int = 0
    neither: int = 0

    @property
    def bias(self) -> float | None:
        """Share of shape decisions among those for shape or texture."""
        decided = self.shape + self.texture
        return self.shape / decided if decided else None


class ShapeBias(Record):
    """The shape bias of one model."""

    model: str
    images: int
    """With a shape and a texture of different categories, and readable."""
    decisions: Decisions
    bias: float | None
    low: float | None
    """Of the 95 % interval over images (Wilson)."""
    high: float | None
    categories: dict[str, Decisions]
    """By the category of the shape."""
    unreadable: list[str]


class ShapeBiasReport(Record):
    """What `tcnn evaluate --shape-bias --json` prints."""

    data: str
    rows: list[ShapeBias]


def conflicts(folder: str | Path) -> dict[Path, tuple[str, str]]:
    """The images of a cue-conflict folder with the categories of shape and texture.

    The layout is that of Geirhos et al.: a folder for every category of shape, in it `SHAPE1-TEXTURE2.png`. Images in
    which both are of one category are left out.

    Raises: `RequestError` for another layout.
    """
    place = Path(folder)
    if not place.is_dir():
        raise RequestError(f"--shape-bias: expected a folder of cue-conflict images, found {folder}, which is none")
    found: dict[Path, tuple[str, str]] = {}
    for file in image_files([place]):
        name = NAME.fullmatch(file.stem)
        if name is None or name["shape"] != file.parent.name or not {*name.groups()} <= set(CATEGORIES):
            raise RequestError(
                f"{file}: expected SHAPE/SHAPE1-TEXTURE2.png, as airplane/airplane1-bicycle2.png, of the categories "
                f"{', '.join(CATEGORIES)}"
            )
        if name["shape"] != name["texture"]:
            found[file] = (name["shape"], name["texture"])
    if not found:
        raise RequestError(f"{folder}: expected images whose shape and texture differ in category, found none")
    return found


def shape_bias(
    model: nn.Module,
    name: str,
    folder: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    batch_size: int = 64,
    amp: Amp = "float32",
    progress: Callable[[int], None] = lambda images: None,
) -> ShapeBias:
    """Measure a model of ImageNet's 1,000 classes, or of classes that are called as the categories are.

    Args:
        name: of the model, for the result and messages.
        folder: as for `conflicts`.
        size, batch_size, amp: as for `predict`.
        progress: called with the number of images just decided.

    Raises: `RequestError` for a model of other classes, and that of `conflicts`.
    """
    images, outputs = conflicts(folder), _outputs(model, name)
    by_shape: dict[str, list[int]] = {}
    unreadable: list[str] = []
    for file, decided in _decided(model, list(images), outputs, size, batch_size, amp, progress):
        if decided is None:
            unreadable.append(str(file))
            continue
        shape, texture = images[file]
        place = 0 if decided == shape else 1 if decided == texture else 2
        by_shape.setdefault(shape, [0, 0, 0])[place] += 1
    if not by_shape:
        raise RequestError(f"{folder}: no image can be read: {unreadable[0]}")
    counted = {key: _decisions(by_shape[key]) for key in sorted(by_shape)}
    total = _decisions([sum(column) for column in zip(*by_shape.values(), strict=True)])
    within = share(total.shape, total.shape + total.texture) if total.shape + total.texture else None
    return ShapeBias(
        model=name, images=total.shape + total.texture + total.neither, decisions=total, bias=total.bias,
        low=within and within.low, high=within and within.high, categories=counted, unreadable=unreadable,
    )  # fmt: skip


def _decisions(counts: Sequence[int]) -> Decisions:
    return Decisions(shape=counts[0], texture=counts[1], neither=counts[2])


def _outputs(model: nn.Module, name: str) -> dict[str, tuple[int, ...]]:
    classes = getattr(model, "num_classes", None)
    labels = (getattr(model, "pretrained_cfg", None) or {}).get("label_names") or ()
    own = of_names(labels) if len(labels) == classes else None
    if own is not None:
        return own
    if classes != len(synsets()):
        raise RequestError(
            f"{name}: tells {classes} classes apart; --shape-bias needs ImageNet's 1,000, or the categories "
            f"{', '.join(CATEGORIES)}"
        )
    return members(synsets())


def _decided(
    model: nn.Module,
    files: Sequence[Path],
    outputs: dict[str, tuple[int, ...]],
    size: int | tuple[int, int] | None,
    batch_size: int,
    amp: Amp,
    progress: Callable[[int], None],
) -> Iterator[tuple[Path, str | None]]:
    """The category that every image is taken for; None where it cannot be read."""
    for start in range(0, len(files), AT_ONCE):
        some = files[start : start + AT_ONCE]
        found = predict(model, some, top=10**6, size=size, batch_size=batch_size, amp=amp)
        for file, prediction in zip(some, found, strict=True):
            if not prediction.guesses:
                yield file, None
                continue
            probability = {guess.index: guess.probability for guess in prediction.guesses}
            means = {key: sum(probability[i] for i in places) / len(places) for key, places in outputs.items()}
            yield file, max(means, key=lambda key: means[key])
        progress(len(some))
