"""Shape or texture: what a model goes by on images whose shape is of one category and whose texture is of another.

Geirhos et al. 2019 (ImageNet-trained CNNs are biased towards texture): a decision is the category with the largest mean
probability over its classes; the shape bias is the share of shape decisions among those for either of the two.

The sixteen categories are everyday words. A class of ImageNet belongs to one where its chain of hypernyms in WordNet
leads through it; the lists of Geirhos et al. may differ in a class. Classes are named by their WordNet ids. ImageNet's
dogs and birds are many and lie together in WordNet's order, so they are given as the first and last of each stretch.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from torch import nn

from tcnn.checkpoints.files import label_names
from tcnn.config.base import Record
from tcnn.data.sources.folder import image_files
from tcnn.errors import RequestError, readable
from tcnn.evaluation.evaluate import Amp
from tcnn.evaluation.imagenet_variants import synsets
from tcnn.evaluation.predict import predict
from tcnn.evaluation.scores import share
from tcnn.models.trace import output_count

NAME = re.compile(r"(?P<shape>[a-z]+)\d*-(?P<texture>[a-z]+)\d*")
"""File names of the cue-conflict images: `airplane1-bicycle2.png`."""
AT_ONCE = 64
"""Images whose probabilities are held at a time."""

STRETCHES: dict[str, tuple[tuple[str, str], ...]] = {
    "bird": (
        ("n01514668", "n01622779"),  # cock … great grey owl
        ("n01795545", "n01860187"),  # black grouse … black swan
        ("n02002556", "n02058221"),  # white stork … albatross
    ),
    "dog": (("n02085620", "n02113978"),),  # Chihuahua … Mexican hairless
    "cat": (("n02123045", "n02127052"),),  # tabby … lynx: domestic cats and wildcats, no big cats
    "bear": (("n02132136", "n02134418"),),
    "elephant": (("n02504013", "n02504458"),),
}
MEMBERS: dict[str, tuple[str, ...]] = {
    "airplane": ("n02690373",),  # airliner
    "bicycle": ("n02835271", "n03792782"),  # tandem, mountain bike
    "boat": (  # canoe, catamaran, fireboat, gondola, lifeboat, speedboat, trimaran, yawl
        "n02951358", "n02981792", "n03344393", "n03447447", "n03662601", "n04273569", "n04483307", "n04612504",
    ),
    "bottle": (  # of beer, pills, pop, water and wine; jugs, which are bottles with a narrow mouth
        "n02823428", "n03937543", "n03983396", "n04557648", "n04591713", "n04560804", "n04579145",
    ),
    "car": (  # ambulance, estate car, cab, convertible, jeep, limousine, minivan, Model T, racer, sports car
        "n02701002", "n02814533", "n02930766", "n03100240", "n03594945", "n03670208", "n03770679", "n03777568",
        "n04037443", "n04285008",
    ),
    "chair": ("n02791124", "n03376595", "n04099969", "n04429376"),  # barber's, folding, rocking; throne
    "clock": ("n02708093", "n03196217", "n04548280"),  # analog, digital, wall
    "keyboard": ("n03085013", "n04505470"),  # of computers, of typewriters
    "knife": ("n03041632", "n03658185"),  # cleaver, letter opener
    "oven": ("n03259280", "n04111531"),  # Dutch oven, rotisserie
    "truck": (  # fire engine, garbage truck, moving van, pickup, police van, tow truck, trailer truck
        "n03345487", "n03417042", "n03796401", "n03930630", "n03977966", "n04461696", "n04467665",
    ),
}  # fmt: skip
CATEGORIES = tuple(sorted((*STRETCHES, *MEMBERS)))
"""The sixteen, in the order of the alphabet."""


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
            unreadable.append(readable(str(file)))
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
    classes = output_count(model)
    labels = label_names(model)
    own = of_names(labels) if len(labels) == classes else None
    if own is not None:
        return own
    if classes != len(synsets()):
        raise RequestError(
            f"{name}: expected ImageNet's 1,000 classes for --shape-bias, or the categories {', '.join(CATEGORIES)}; "
            f"found {classes}"
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
    """The category that every image is taken for, "" for an output that is not finite; None where it cannot be read."""
    for start in range(0, len(files), AT_ONCE):
        some = files[start : start + AT_ONCE]
        found = predict(model, some, top=10**6, size=size, batch_size=batch_size, amp=amp, quiet=True)
        for file, prediction in zip(some, found, strict=True):
            if not prediction.guesses:
                yield file, "" if prediction.not_finite else None
                continue
            probability = {guess.index: guess.probability for guess in prediction.guesses}
            means = {key: sum(probability[i] for i in places) / len(places) for key, places in outputs.items()}
            yield file, max(means, key=lambda key: means[key])
        progress(len(some))


@cache
def members(synsets: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The outputs of every category, of a model whose outputs are these WordNet ids in this order."""
    place = {synset: index for index, synset in enumerate(synsets)}
    found = {name: tuple(place[synset] for synset in MEMBERS.get(name, ())) for name in CATEGORIES}
    for name, stretches in STRETCHES.items():
        found[name] = tuple(
            index for synset, index in place.items() if any(first <= synset <= last for first, last in stretches)
        )
    return found


def of_names(names: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """The same of a model whose classes are called as the categories are; None if one of them is missing."""
    if not set(CATEGORIES) <= set(names):
        return None
    return {name: (list(names).index(name),) for name in CATEGORIES}
