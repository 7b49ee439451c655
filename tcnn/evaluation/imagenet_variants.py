"""ImageNet variants (ImageNet-C, -A, -R): detect them, map their classes to model outputs, corruption error (CE, mCE).

- ImageNet-C (Hendrycks & Dietterich 2019): CORRUPTION/SEVERITY/CLASS folders, with or without the four category folders
  (noise, blur, weather, digital) around the corruptions.
- ImageNet-A (Hendrycks et al. 2019) and ImageNet-R (Hendrycks et al. 2020): folders of 200 of the 1,000 classes each,
  named by WordNet ids; only these 200 outputs of the model are scored. timm contains the lists.
"""

import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from timm.data import ImageNetInfo

from tcnn.data.sources.names import class_name
from tcnn.errors import RequestError
from tcnn.evaluation.corruptions import CORRUPTIONS, SEVERITIES
from tcnn.formatting import few, some

Layout = Literal["plain", "imagenet-c", "imagenet-a", "imagenet-r"]
VARIANTS: tuple[Layout, ...] = ("imagenet-a", "imagenet-r")

ALEXNET_ERRORS: dict[str, float] = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
"""AlexNet's top-1 error on each corruption of ImageNet-C, mean over five severities, as its authors published it."""


class ClassMapping(NamedTuple):
    """Mapping from a data set's classes to a model's outputs."""

    class_names: tuple[str, ...] | None
    """Open the data set with these names; None: with its own."""
    outputs: tuple[int, ...] | None
    """The model's output for each class, the only ones that are scored; None: all of them, in their order."""


@cache
def synsets(layout: Layout = "plain") -> tuple[str, ...]:
    """WordNet ids of ImageNet's 1,000 classes, or of a variant's 200, in the order of the models' outputs."""
    if layout not in VARIANTS:
        return tuple(ImageNetInfo("imagenet-1k").label_names())
    listed = pkgutil.get_data("timm.data", f"_info/{layout.replace('-', '_')}_synsets.txt")
    if listed is None:
        raise RequestError(f"{layout}: this timm has no list of its classes; install timm 1.0.31 or later")
    return tuple(listed.decode().split())


def detect(class_names: Sequence[str], outputs: int) -> Layout:
    """Detect the layout of a data set other than ImageNet-C: a variant when it has exactly that variant's classes."""
    if outputs == len(synsets()):
        for layout in VARIANTS:
            if set(class_names) == set(synsets(layout)):
                return layout
    return "plain"


def map_classes(
    model: str, data: str, layout: Layout, class_names: Sequence[str], outputs: int, label_names: Sequence[str] | None
) -> ClassMapping:
    """Match a data set's classes with a model's outputs.

    Names decide where both sides have them: the model's own from its checkpoint, or ImageNet's for 1,000 outputs.
    Otherwise the numbers of classes must agree. A data set with some of ImageNet's classes is scored over these; in
    any other, a class without images stays a possible answer.

    Args:
        model, data: their names in error messages.
        class_names: the data set's own.
        outputs: number of outputs of the model.
        label_names: class names of the model's outputs, if known.

    Raises: `RequestError` when they do not fit.
    """
    if layout in VARIANTS:
        names = _output_names(synsets(layout), outputs, label_names)
        if names is None or not set(synsets(layout)) <= set(names):
            raise RequestError(
                f"{model}: {layout} needs a model of ImageNet's 1,000 classes; "
                f"this one tells {some(outputs, 'other')} apart"
            )
        return ClassMapping(synsets(layout), tuple(names.index(name) for name in synsets(layout)))
    names = _output_names(class_names, outputs, label_names)
    if names is None:
        if len(class_names) != outputs:
            raise RequestError(
                f"{model} tells {some(outputs, 'class')} apart, {data} has {len(class_names)} ({few(class_names)}); "
                "fine-tune the model on these classes, or name a data set of its own"
            )
        return ClassMapping(None, None)
    if names == tuple(class_names):
        return ClassMapping(None, None)
    unknown = [name for name in class_names if name not in set(names)]
    if unknown:
        missing = [name for name in names if name not in set(class_names)]
        raise RequestError(
            f"{model} and {data} have different classes: {few(unknown)} only in the data set"
            + (f", {few(missing)} only in the model" if missing else "")
        )
    if len(class_names) < len(names) and set(names) == set(synsets()):
        return ClassMapping(None, tuple(names.index(name) for name in class_names))
    return ClassMapping(names, None)


def _output_names(
    class_names: Sequence[str], outputs: int, label_names: Sequence[str] | None
) -> tuple[str, ...] | None:
    """Class names of the outputs, if they are known and match these classes."""
    wordnet = outputs == len(synsets()) and set(class_names) <= set(synsets())
    if label_names is not None and len(label_names) == outputs:
        names = tuple(map(class_name, label_names))
        foreign = wordnet and not set(names) & set(class_names)  # described in words, the folders by ids
        if not foreign:
            return names
    return synsets() if wordnet else None


def corruption_folders(data: str) -> dict[str, dict[int, Path]]:
    """The folders of an ImageNet-C layout, by corruption and severity; empty for any other layout."""
    root = Path(data).expanduser()
    if not root.is_dir():
        return {}
    places = [root, *sorted(place for place in root.iterdir() if place.is_dir() and place.name not in CORRUPTIONS)]
    found = {
        name: {severity: place / name / str(severity) for severity in SEVERITIES}
        for place in reversed(places)
        for name in CORRUPTIONS
        if (place / name).is_dir()
    }
    present = {name: {s: p for s, p in found[name].items() if p.is_dir()} for name in CORRUPTIONS if name in found}
    return {name: folders for name, folders in present.items() if folders}


def corruption_errors(
    errors: Mapping[str, float], baseline: Mapping[str, float]
) -> tuple[dict[str, float], float | None]:
    """Corruption error CE = E / E of the baseline, and mean mCE (Hendrycks & Dietterich 2019, §4.1).

    Args:
        errors, baseline: top-1 error of each corruption, mean over the same severities.

    A corruption on which the baseline makes no error has no CE, and then there is no mCE.
    """
    relative = {name: error / baseline[name] for name, error in errors.items() if baseline.get(name)}
    complete = bool(errors) and len(relative) == len(errors)
    return relative, sum(relative.values()) / len(relative) if complete else None
