"""Outputs of models, compared: flattened from whatever a model returns, and the error statistics of two of them."""

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from tcnn.errors import RequestError
from tcnn.records import ErrorStats


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


def errors(reference: Tensor, other: Tensor) -> ErrorStats:
    """Error statistics of `other` against `reference`, in float64; infinite if a value is not finite."""
    a, b = reference.double().flatten(), other.double().flatten()
    if a.shape != b.shape or not (a.isfinite().all() and b.isfinite().all()):
        return ErrorStats(max_abs=torch.inf, relative=torch.inf, max_relative=torch.inf, cosine=0.0)
    difference, norm, largest = b - a, a.norm(), a.abs().max()
    max_abs = difference.abs().max().item()
    if norm == 0:  # two silent outputs agree; anything beside a silent reference does not
        same = max_abs == 0
        return ErrorStats(
            max_abs=max_abs, relative=0.0 if same else torch.inf, max_relative=0.0 if same else torch.inf,
            cosine=1.0 if same else 0.0,
        )  # fmt: skip
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=0).item()
    return ErrorStats(
        max_abs=max_abs,
        relative=(difference.norm() / norm).item(),
        max_relative=max_abs / largest.item(),
        cosine=cosine,
    )


def top1_agreement(a: Tensor, b: Tensor) -> float:
    """Top-1 agreement: the share of images, (B, …) both, with the same largest output."""
    return (a.flatten(1).argmax(1) == b.flatten(1).argmax(1)).double().mean().item()
