"""What a model answers to every image of a data set, one by one, so that two models can be compared image by image."""

from collections.abc import Callable
from contextlib import closing
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tcnn.data.image_set import ImageSet
from tcnn.data.loader import Batch, EvaluationLoader
from tcnn.errors import RequestError
from tcnn.evaluation.evaluate import Amp, transform_for
from tcnn.folding.fold import fused
from tcnn.models.running import weights_dtype
from tcnn.models.trace import evaluating


class Outcomes(NamedTuple):
    """Of the N images that could be read, in their order."""

    indices: NDArray[np.int64]
    """Their places in the data set, (N,)."""
    targets: NDArray[np.int64]
    """Their classes, (N,)."""
    predicted: NDArray[np.int64]
    """The model's first answers, (N,); −1 where its output is not finite."""
    confidence: NDArray[np.float64]
    """The probabilities of these, (N,)."""

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the first answer is the class, (N,)."""
        return np.equal(self.predicted, self.targets)


class Observer:
    """Keeps what a model says to each image, batch by batch, as `evaluate` and `outcomes` go through a data set."""

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
        values, answers = logits.softmax(1).max(1)
        lost = ~logits.isfinite().all(1)
        answers[lost], values[lost] = -1, 0.0
        self._columns.append(np.stack([indices, batch.targets.numpy(), answers.cpu().numpy(), values.cpu().numpy()]))

    @property
    def outcomes(self) -> Outcomes:
        """All that was observed; raises `RequestError` if nothing was."""
        if not self._columns:
            raise RequestError(f"none of the {len(self._data)} images can be read")
        indices, targets, predicted, confidence = np.concatenate(self._columns, 1)
        return Outcomes(indices.astype(int), targets.astype(int), predicted.astype(int), confidence)


def outcomes(
    model: nn.Module,
    data: ImageSet,
    *,
    size: tuple[int, int] | None = None,
    batch_size: int = 64,
    workers: int = 0,
    device: torch.device | str = "cpu",
    amp: Amp = "float32",
    corruption: Literal["mixed"] | None = None,
    progress: Callable[[int], None] = lambda images: None,
) -> Outcomes:
    """Answer every image of a data set, preprocessed as timm does for the model, which is on the device.

    Args:
        size: (height, width) in pixels that the images are cropped to; default the model's own.
        amp: the dtype of autocast.
        corruption: "mixed": every image under a corruption of ImageNet-C that is drawn for it.
        progress: called after each batch with the number of its images.

    Raises: `RequestError` if none can be read, or the model has another number of outputs than there are classes;
    `EnvironmentFailure` for corruptions without scipy.
    """
    place = torch.device(device)
    transform = transform_for(model, size, corruption=corruption)
    loader = EvaluationLoader(data, transform, batch_size=batch_size, workers=workers)
    autocast = torch.autocast(place.type, getattr(torch, amp), enabled=amp != "float32")
    observer, dtype = Observer(data, batch_size), weights_dtype(model)
    with closing(loader), evaluating(model), fused(model), torch.inference_mode(), autocast:
        for batch in loader:
            logits = model(batch.images.to(place, dtype)).float() if len(batch.images) else None
            if logits is not None and (logits.dim() != 2 or logits.shape[1] != len(data.class_names)):
                raise RequestError(
                    f"the model's output is {tuple(logits.shape)}, the data set has {len(data.class_names)} classes"
                )
            observer(batch, logits)
            progress(len(batch.images) + len(batch.unreadable))
    return observer.outcomes
