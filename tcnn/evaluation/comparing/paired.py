"""Differences between models on the same images, with intervals: image by image, over corruptions, after pruning."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import nn

from tcnn.checkpoints.files import label_names
from tcnn.config.evaluation import EvaluationConfig
from tcnn.data.image_set import ImageSet
from tcnn.evaluation import held_out, scores
from tcnn.evaluation.comparing.before_after import Estimate, estimate
from tcnn.evaluation.comparing.passes import DataSets
from tcnn.evaluation.imagenet_variants import ClassMapping, detect, map_classes
from tcnn.evaluation.outcomes import Outcomes, outcomes
from tcnn.folding.report import PruningAccuracy
from tcnn.models.running import place_of
from tcnn.models.trace import input_shape, output_count


class PairedDifference(BaseModel):
    """How much more often a model is right than the first one, in shares of the images, at one size."""

    of: str
    over: str
    height: int
    width: int
    """The size of `of`."""
    top1: Estimate | None
    """On the images as they are; None where they were not measured."""
    corrupted: Estimate | None
    """In the mean over corruptions and severities; None without."""


class Tally:
    """Which images a model has right: of N images, by name (`image_names`), in how many of the passes over them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self._right = np.zeros(len(names))
        self._passes = np.zeros(len(names), np.int64)

    def add(self, data: ImageSet, found: Outcomes, folder: Path | None = None) -> None:
        """Count one pass; the data set may have the images in another order, or some that are not among these."""
        for index, right in zip(found.indices.tolist(), found.right.tolist(), strict=True):
            place = self._places.get(_name(data, index, folder))
            if place is not None:
                self._right[place] += right
                self._passes[place] += 1

    @property
    def shares(self) -> NDArray[np.float64]:
        """Of each image the share of the passes in which it was right, (N,); NaN of one that was never read."""
        shares: NDArray[np.float64] = np.full(len(self._right), np.nan)
        np.divide(self._right, self._passes, out=shares, where=self._passes > 0)
        return shares


class Answers(NamedTuple):
    """What a model had right at one size; the images are those of the first model, in its order."""

    model: str
    size: tuple[int, int]
    clean: Tally | None
    corrupted: Tally | None


def paired_differences(models: Sequence[Sequence[Answers]]) -> list[PairedDifference]:
    """Every other model over the first, size by size; each has as many sizes as the first."""
    found = []
    for after in (answers for later in models[1:] for answers in zip(models[0], later, strict=True)):
        first, other = after
        if other.model == first.model:
            continue
        top1 = corrupted = None
        if first.clean is not None and other.clean is not None:
            was, now = _both(first.clean, other.clean)
            top1 = estimate(scores.paired(was > 0, now > 0)) if was.size else None
        if first.corrupted is not None and other.corrupted is not None:
            was, now = _both(first.corrupted, other.corrupted)
            corrupted = estimate(scores.paired_means(was, now)) if was.size else None
        height, width = other.size
        found.append(
            PairedDifference(
                of=other.model, over=first.model, height=height, width=width, top1=top1, corrupted=corrupted
            )
        )
    return found


def image_names(data: ImageSet, folder: Path | None = None) -> list[str]:
    """What images are known by in every pass.

    Of passes over folders of their own, as ImageNet-C has one for every corruption, it is their names in them.
    """
    return [_name(data, index, folder) for index in range(len(data))]


def _name(data: ImageSet, index: int, folder: Path | None) -> str:
    """An image's name, in a folder if there is one."""
    name = data.filename(index)
    return name if folder is None else name.removeprefix(f"{folder}/")


def _both(one: Tally, other: Tally) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The shares of the images that both have read."""
    read = ~np.isnan(one.shares) & ~np.isnan(other.shares)
    return one.shares[read], other.shares[read]


def measure_on(
    checkpoint: str, data: str, size: int | None = None
) -> Callable[[nn.Module, nn.Module], PruningAccuracy]:
    """A function of the model before and after pruning that measures both on a data set.

    Args:
        checkpoint: the model's file: of a data set that it was trained on, the part that was held out is measured.
        data: as for `open_dataset`; opened at once, so that a wrong name is answered before anything is computed.
        size: pixels; default the model's own.

    Raises: `RequestError` for a data set that is none, or whose classes are others than the model's.
    """
    opened = DataSets(EvaluationConfig(), data)
    images = opened(None)
    unseen = held_out.unseen([checkpoint], data, lambda: images)
    opened.restrict(unseen)

    def measure(before: nn.Module, after: nn.Module) -> PruningAccuracy:
        channels, height, width = input_shape(before)
        matching = _matching(checkpoint, data, before, images)
        chosen = opened(None, channels, matching.class_names)

        def right(model: nn.Module) -> NDArray[np.bool_]:
            return outcomes(
                model, chosen, size=size or (height, width), device=place_of(before),
                class_subset=matching.outputs,
            ).right  # fmt: skip

        one, other = right(before), right(after)
        change = scores.paired(one, other)
        return PruningAccuracy(
            data=data, images=len(one), before=float(one.mean()), after=float(other.mean()),
            difference=change.mean, low=change.low, high=change.high, held_out=unseen.mask is not None,
            trained_on=bool(unseen.trained_on),
        )  # fmt: skip

    return measure


def _matching(checkpoint: str, data: str, model: nn.Module, images: ImageSet) -> ClassMapping:
    """Which output of the model is which class, by their names, as in `tcnn evaluate`."""
    outputs = output_count(model) or len(images.class_names)
    names = label_names(model)
    return map_classes(checkpoint, data, detect(images.class_names, outputs), images.class_names, outputs, names)
