"""What pruning costs: top-1 accuracy of the model before and after on the same images, with an interval."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.evaluation import held_out
from tcnn.evaluation.evaluate import evaluate
from tcnn.evaluation.imagenet_variants import ClassMapping, detect, map_classes
from tcnn.evaluation.intervals import paired
from tcnn.evaluation.outcomes import Observer
from tcnn.folding.report import PruningAccuracy
from tcnn.models.trace import input_shape


def measure_on(
    checkpoint: str, data: str, size: int | None = None, batch_size: int = 64, workers: int = 0
) -> Callable[[nn.Module, nn.Module], PruningAccuracy]:
    """A function of the model before and after pruning that measures both on a data set.

    Args:
        checkpoint: the model's file: of a data set that it was trained on, the part that was held out is measured.
        data: as for `open_dataset`; opened at once, so that a wrong name is answered before anything is computed.
        size: pixels; default the model's own.

    Raises: `RequestError` for a data set that is none, or whose classes are others than the model's.
    """
    images = open_dataset(data, "validation")
    unseen = held_out.unseen([checkpoint], data, lambda: images)

    def measure(before: nn.Module, after: nn.Module) -> PruningAccuracy:
        channels, height, width = input_shape(before)
        matching = _matching(checkpoint, data, before, images)
        read = open_dataset(data, "validation", matching.class_names, channels)
        chosen = held_out.only(read, unseen.files)

        def right(model: nn.Module) -> NDArray[np.bool_]:
            observer = Observer(chosen, batch_size)
            evaluate(
                model, chosen, size=(size, size) if size is not None else (height, width), batch_size=batch_size,
                workers=workers, device=next(before.parameters()).device, class_subset=matching.outputs,
                observe=observer,
            )  # fmt: skip
            return observer.outcomes.right

        one, other = right(before), right(after)
        change = paired(one, other)
        return PruningAccuracy(
            data=data, images=len(one), before=float(one.mean()), after=float(other.mean()),
            difference=change.mean, low=change.low, high=change.high, held_out=unseen.files is not None,
            trained_on=bool(unseen.trained_on),
        )  # fmt: skip

    return measure


def _matching(checkpoint: str, data: str, model: nn.Module, images: ImageSet) -> ClassMapping:
    """Which output of the model is which class, by their names, as in `tcnn evaluate`."""
    outputs: int = getattr(model, "num_classes", len(images.class_names))
    names = (getattr(model, "pretrained_cfg", None) or {}).get("label_names")
    return map_classes(checkpoint, data, detect(images.class_names, outputs), images.class_names, outputs, names)
