"""A model's answer to every image of a data set, one by one, so that two models can be compared image by image."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from tcnn.data.image_set import ImageSet
from tcnn.data.loader import Batch
from tcnn.evaluation.evaluate import evaluate
from tcnn.evaluation.outputs import answers

NOT_FINITE = "no number"
"""Name of the answer where a model's output is not finite."""


class Outcomes(NamedTuple):
    """Targets and top-1 predictions for the N images that could be read, in the data set's order."""

    indices: NDArray[np.int64]
    """Indices in the data set, (N,)."""
    targets: NDArray[np.int64]
    """Classes, (N,)."""
    predicted: NDArray[np.int64]
    """Predicted classes, (N,); −1 where the output is not finite."""
    confidence: NDArray[np.float64]
    """Probability of the predicted class, (N,); 0 where the output is not finite."""

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the predicted class is the target, (N,)."""
        return np.equal(self.predicted, self.targets)

    def at(self, rows: NDArray[np.int64]) -> "Outcomes":
        """The outcomes in some rows of the arrays."""
        return Outcomes(self.indices[rows], self.targets[rows], self.predicted[rows], self.confidence[rows])

    def most_confident(self, mask: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
        """At most `count` of the rows in a mask (N,), the most confident predictions first."""
        rows = np.flatnonzero(mask)
        return rows[np.argsort(-self.confidence[rows], kind="stable")][:count]


def in_common(one: Outcomes, other: Outcomes) -> tuple[Outcomes, Outcomes]:
    """Both on the images that both could read."""
    _, first, second = np.intersect1d(one.indices, other.indices, return_indices=True)
    return one.at(first), other.at(second)


def answer_names(class_names: Sequence[str]) -> list[str]:
    """Names of the values of `Outcomes.predicted`, which −1 indexes, too."""
    return [*class_names, NOT_FINITE]


class Observer:
    """Records the outcome of every image while `evaluate` goes through a data set, which calls it with every batch."""

    def __init__(self, data: ImageSet, batch_size: int) -> None:
        self._data, self._batch_size, self._start = data, batch_size, 0
        self._columns: list[NDArray[np.float64]] = []

    def __call__(self, batch: Batch, logits: Tensor | None) -> None:
        planned = range(self._start, min(self._start + self._batch_size, len(self._data)))
        self._start = planned.stop
        if logits is None:
            return
        bad = set(batch.unreadable)
        indices = [index for index in planned if not bad or self._data.filename(index) not in bad]
        given = answers(logits)
        sure = logits.softmax(1).gather(1, given.clamp(min=0)[:, None])[:, 0].where(given >= 0, 0.0)
        self._columns.append(np.stack([indices, batch.targets.numpy(), given.cpu().numpy(), sure.cpu().numpy()]))

    @property
    def outcomes(self) -> Outcomes:
        """Everything observed so far: at least one batch."""
        indices, targets, predicted, confidence = np.concatenate(self._columns, 1)
        return Outcomes(indices.astype(int), targets.astype(int), predicted.astype(int), confidence)


def outcomes(model: nn.Module, data: ImageSet, *, batch_size: int = 64, **options: Any) -> Outcomes:
    """Evaluate a model on a data set, image by image. `options` are those of `evaluate`, and so is what it raises."""
    observer = Observer(data, batch_size)
    evaluate(model, data, batch_size=batch_size, observe=observer, warn=False, quiet=True, **options)
    return observer.outcomes
