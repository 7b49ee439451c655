"""Flatten model outputs (tensors, tuples, lists, dicts, dataclasses) into tensors that can be compared."""

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from tcnn.errors import RequestError


def tensors(output: object) -> Iterator[Tensor]:
    """The tensors of an output in its own order: one, or several in tuples, lists, dicts and dataclasses, nested.

    Other values, such as None in the `ModelOutput` of transformers, are skipped.
    """
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for part in output.values():
            yield from tensors(part)
    elif isinstance(output, tuple | list):
        for part in output:
            yield from tensors(part)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            yield from tensors(getattr(output, field.name))


def flat(output: object, batch: int) -> Tensor:
    """Flatten an output: its only tensor, (B, …), or all of them concatenated, (B, numbers).

    A tensor without a row for each of the B images, such as an auxiliary loss, is repeated in every row.
    """
    found = list(tensors(output))
    if not found:
        raise RequestError(
            f"expected a model that returns a tensor, or tensors in tuples, lists, dicts or dataclasses; found "
            f"{type(output).__name__}"
        )
    rows = [tensor if tensor.shape[:1] == (batch,) else tensor.expand(batch, *tensor.shape) for tensor in found]
    return rows[0] if len(rows) == 1 else torch.cat([row.reshape(batch, -1) for row in rows], dim=1)
