"""What a model answers to every image of a data set, one by one, so that two models can be compared image by image."""

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tcnn.data.image_set import ImageSet
from tcnn.data.loader import EvaluationLoader
from tcnn.errors import RequestError
from tcnn.evaluation.evaluate import Amp, transform_for
from tcnn.folding.fuse import fused
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


def outcomes(
    model: nn.Module,
    data: ImageSet,
    *,
    size: tuple[int, int] | None = None,
    batch_size: int = 64,
    workers: int = 0,
    device: torch.device | str = "cpu",
    amp: Amp = "float32",
    progress: Callable[[int], None] = lambda images: None,
) -> Outcomes:
    """Answer every image of a data set, preprocessed as timm does for the model, which is on the device.

    Args:
        size: (height, width) in pixels that the images are cropped to; default the model's own.
        amp: the dtype of autocast.
        progress: called after each batch with the number of its images.

    Raises: `RequestError` if none can be read, or the model has another number of outputs than there are classes.
    """
    place = torch.device(device)
    loader = EvaluationLoader(data, transform_for(model, size), batch_size=batch_size, workers=workers)
    autocast = torch.autocast(place.type, getattr(torch, amp), enabled=amp != "float32")
    columns: list[NDArray[np.float64]] = []
    start = 0
    with closing(loader), evaluating(model), fused(model), torch.inference_mode(), autocast:
        for batch in loader:
            planned = range(start, min(start + batch_size, len(data)))
            start = planned.stop
            bad = set(batch.unreadable)
            indices = [index for index in planned if not bad or data.filename(index) not in bad]
            if indices:
                logits = model(batch.images.to(place)).float()
                if logits.dim() != 2 or logits.shape[1] != len(data.class_names):
                    raise RequestError(
                        f"the model's output is {tuple(logits.shape)}, the data set has {len(data.class_names)} classes"
                    )
                values, answers = logits.softmax(1).max(1)
                lost = ~logits.isfinite().all(1)
                answers[lost], values[lost] = -1, 0.0
                columns.append(np.stack([indices, batch.targets.numpy(), answers.cpu().numpy(), values.cpu().numpy()]))
            progress(len(planned))
    if not columns:
        raise RequestError(f"none of the {len(data)} images can be read")
    indices_, targets, predicted, confidence = np.concatenate(columns, 1)
    return Outcomes(indices_.astype(int), targets.astype(int), predicted.astype(int), confidence)
