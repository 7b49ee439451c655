"""Outputs of a classifier: which of them are scored, and in which order they put the classes.

Everything that tells a model's answer asks here, so that all of it agrees where outputs are equal, which in bfloat16
they often are: the class of the lower number comes first.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tcnn.errors import RequestError, TcnnError, out_of_memory, shorten
from tcnn.formatting import some
from tcnn.models.trace import check_size, input_shape


def answers(logits: Tensor) -> Tensor:
    """The class that each row of logits (B, classes) answers, (B,); −1 where they are not finite."""
    return torch.where(logits.isfinite().all(1), logits.argmax(1), -1)


def ranks(logits: Tensor, targets: Tensor) -> Tensor:
    """At which place each row of logits (B, classes) has its target (B,), from 0, (B,); −1 where they are not finite.

    The target is among the first five answers where this is 0 to 4, and 0 where `answers` is the target.
    """
    own = logits.gather(1, targets[:, None])
    before = torch.arange(logits.shape[1], device=logits.device) < targets[:, None]
    place = ((logits > own) | ((logits == own) & before)).sum(1)
    return torch.where(logits.isfinite().all(1), place, -1)


def first(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first `count` answers of each row of logits (B, classes): probabilities and classes, (B, count) each.

    Probabilities are not finite where the logits are not.
    """
    places = logits.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return logits.softmax(1).gather(1, places), places


def outputs_for(class_subset: Sequence[int], device: torch.device) -> Tensor:
    """Which output of the model stands for each class of the data set, (classes,)."""
    try:
        outputs = torch.tensor([operator.index(one) for one in class_subset], dtype=torch.long)
    except (TypeError, RuntimeError) as error:
        found = shorten(repr(class_subset), 60)
        raise RequestError(f"class_subset: expected whole numbers, the model's outputs, found {found}") from error
    distinct, times = outputs.unique(return_counts=True)
    if repeated := distinct[times > 1].tolist():
        raise RequestError(f"class_subset: expected another output for each class, found {repeated[0]} for several")
    return outputs.to(device)


def outputs_of(model: nn.Module, images: Tensor) -> Any:
    """What the model makes of a batch; where it runs on no such images that is said in one line."""
    try:
        return model(images)
    except Exception as error:
        if isinstance(error, TcnnError) or out_of_memory(error):
            raise
        channels = input_shape(model)[0]
        if channels != images.shape[1]:
            raise RequestError(
                f"data: expected images of {some(channels, 'channel')}, as the model takes, found {images.shape[1]}; "
                f"open them with in_chans={channels}"
            ) from error
        check_size(model, (images.shape[2], images.shape[3]))  # says what a model of Python's cannot do with any image
        raise


def scored(logits: Any, columns: Tensor | None, classes: int) -> Tensor:
    """The scored outputs, (B, classes)."""
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise RequestError(f"the model's output: expected logits of shape (images, classes), found {found}")
    outputs = logits.shape[1]
    if columns is None:
        if outputs != classes:
            raise RequestError(f"the model tells {some(outputs, 'class')} apart, the data set has {classes}")
        return logits
    if len(columns) != classes or not all(0 <= one < outputs for one in columns.tolist()):
        raise RequestError(
            f"class_subset: expected one of the model's {some(outputs, 'output')} for each of the data set's "
            f"{some(classes, 'class')}, found {shorten(str(columns.tolist()), 60)}"
        )
    return logits[:, columns]
