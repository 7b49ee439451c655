"""Slow down what content heads write: a learning rate of their own for their columns of W_out."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tcnn.layers.gpsa import GPSA2d


@contextmanager
def scaled_content_output(layers: Iterable[GPSA2d], scale: float) -> Iterator[None]:
    """Multiply the steps that an optimizer takes within by `scale`, in the content heads' columns of W_out alone.

    For optimizers whose step is proportional to the learning rate, as AdamW's and SGD's, it is that rate times `scale`,
    weight decay included. A parameter group cannot have it: these columns and the filters are one matrix.

    A content head reads an average of pixels, after a ReLU all of one sign, and its W_out begins at zero. Optimizers
    that take steps of one size, as Adam does, then move all columns together, and the sum that they write by the
    number of channels.
    """
    columns = [] if scale == 1 else [view for layer in layers if (view := content_output(layer)) is not None]
    before = [view.clone() for view in columns]
    yield
    with torch.no_grad():
        for view, old in zip(columns, before, strict=True):
            view.copy_(torch.lerp(old, view, scale))


def content_output(layer: GPSA2d) -> Tensor | None:
    """The content heads' columns of W_out, a view of (C_out, content heads, C_in/G); None without such heads."""
    if not layer.content_heads:
        return None
    return layer.proj.detach().unflatten(1, (layer.heads, -1))[:, -layer.content_heads :]
