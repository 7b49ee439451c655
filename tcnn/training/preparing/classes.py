"""The classes of a run: a classifier of their number in the model, and what its metadata say of them.

How many classes a model tells apart is seen from its output. Its `num_classes` is what timm built it with, which stays
when somebody puts a classifier of another width in the place of timm's.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from tcnn.data.sources.source import other_classes
from tcnn.errors import RequestError
from tcnn.models.trace import input_shape, output_shape
from tcnn.training.recipe.objective import check_training_output


def fit_classes(model: nn.Module, class_names: Sequence[str], size: tuple[int, int], notes: list[str]) -> bool:
    """Give the model a classifier of as many classes, in place; returns whether it is a new one.

    Args:
        size: (height, width) of the images.
        notes: are added to: what was replaced, or which classes it was trained on.

    Raises `RequestError` for a model of another width that cannot be given one.
    """
    classes, told = len(class_names), getattr(model, "num_classes", None)
    found = _width(model, size)
    if found == classes:
        if told is not None:
            model.num_classes = classes  # type: ignore[assignment]
        cfg: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
        names = cfg.get("label_names") or ()
        if len(names) == classes and (different := other_classes(names, class_names)):
            notes.append(f"the classifier was trained on {different}; it is kept as a start")
        return False
    if not hasattr(model, "reset_classifier"):
        if told is None:
            return False  # `check_outputs` will say it
        raise RequestError(
            f"{type(model).__name__} has {found} classes, the data set has {classes}, and no reset_classifier to "
            "replace its head; give it a head of that width"
        )
    model.reset_classifier(classes)  # type: ignore[operator]
    notes.append(f"classifier replaced: {found} → {classes} classes")
    return True


def check_outputs(model: nn.Module, size: tuple[int, int], classes: int) -> None:
    """Check what a model returns on images of (height, width), in training and in evaluation mode.

    Raises `RequestError` for anything but logits, or another number of classes.
    """
    check_training_output(model, input_shape(model, size))
    found = output_shape(model, size)
    if found != (1, classes):
        raise RequestError(
            f"{type(model).__name__}: expected an output of (1, {classes}), as the data set has {classes} classes, "
            f"found {found or 'no tensor'}; give it a head of that width"
        )


def set_metadata(model: nn.Module, size: tuple[int, int], class_names: Sequence[str]) -> None:
    """Set the image size and the classes in the model's metadata, which the checkpoints of the run contain."""
    cfg = getattr(model, "pretrained_cfg", None)
    if cfg:
        own = {"input_size": input_shape(model, size), "test_input_size": None, "num_classes": len(class_names)}
        merged = {**cfg, **own, "label_names": list(class_names)}
        model.pretrained_cfg = model.default_cfg = merged  # type: ignore[assignment]


def _width(model: nn.Module, size: tuple[int, int]) -> int | None:
    """The number of logits for an image of (height, width).

    Of a model that returns something else it is what it says itself, of one without a classifier 0.
    """
    told, classifier = getattr(model, "num_classes", None), getattr(model, "get_classifier", None)
    if told == 0 and callable(classifier) and isinstance(classifier(), nn.Identity):
        return 0  # what it returns are features, of whatever number
    shape = output_shape(model, size)
    return shape[1] if shape is not None and len(shape) == 2 else told
