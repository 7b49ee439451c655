"""The classes of a run: a classifier of their number in the model, and what its files say of the model.

How many classes a model tells apart is seen from its output. Its `num_classes` is what timm built it with, which stays
when somebody puts a classifier of another width in the place of timm's.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from tcnn.checkpoints.architecture import describe_model, note_of
from tcnn.conversion.report import ConversionReport
from tcnn.data.sources.source import other_classes
from tcnn.errors import RequestError
from tcnn.formatting import plural, some
from tcnn.models.trace import input_shape, output_count, output_shape
from tcnn.training.recipe.objective import check_training_output


def fit_classes(model: nn.Module, class_names: Sequence[str], size: tuple[int, int], notes: list[str]) -> bool:
    """Give the model a classifier of as many classes, in place; returns whether it is a new one.

    Args:
        size: (height, width) of the images.
        notes: are added to: what was replaced, or which classes it was trained on.

    Raises `RequestError` for a model of another width that cannot be given one.
    """
    classes, told = len(class_names), getattr(model, "num_classes", None)
    found = output_count(model, size)
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
            f"{type(model).__name__} has {found} {plural(found or 0, 'class')}, the data set has {classes}, and no "
            "reset_classifier to replace its head; give it a head of that width"
        )
    model.reset_classifier(classes)  # type: ignore[operator]
    notes.append(f"classifier replaced: {found} → {some(classes, 'class')}")
    return True


def check_outputs(model: nn.Module, size: tuple[int, int], classes: int) -> None:
    """Check what a model returns on images of (height, width), in training and in evaluation mode.

    Raises `RequestError` for images that it cannot take, anything but logits, or another number of classes.
    """
    found = output_shape(model, size)
    check_training_output(model, input_shape(model, size))
    if found != (1, classes):
        raise RequestError(
            f"{type(model).__name__}: expected an output of (1, {classes}), as the data set has "
            f"{some(classes, 'class')}, found {found or 'no tensor'}; give it a head of that width"
        )


def set_metadata(model: nn.Module, size: tuple[int, int], class_names: Sequence[str]) -> None:
    """Set the image size and the classes in the model's metadata, which the checkpoints of the run contain."""
    cfg = getattr(model, "pretrained_cfg", None)
    if cfg:
        own = {"input_size": input_shape(model, size), "test_input_size": None, "num_classes": len(class_names)}
        merged = {**cfg, **own, "label_names": list(class_names)}
        model.pretrained_cfg = model.default_cfg = merged  # type: ignore[assignment]


def notes_of_files(model: nn.Module) -> list[str]:
    """What is to be known of the run's files before it begins: they need a module that was changed by hand.

    Raises `RequestError` for a model that no file can hold.
    """
    record = getattr(model, "conversion_report", None)
    note = note_of(describe_model(model, record)) if isinstance(record, ConversionReport) else None
    return [] if note is None else [note]
