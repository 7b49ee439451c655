"""Outputs of models: their tensors in whatever holds them, flattened by image, and compared in error and top-1.

Most models return (B, …). A detector returns as many numbers for each image as it finds things in it, or none.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from tcnn.config.base import ErrorStats
from tcnn.errors import RequestError

Outputs = Tensor | tuple[Tensor, ...]
"""Outputs for a batch, (B, …); or the numbers of every image in a row of its own, where they are not equally many."""


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


def flat(output: object, batch: int) -> Outputs:
    """Flatten an output: its only tensor, (B, …), or all of them concatenated, (B, numbers).

    A tensor without a row for each of the B images, such as an auxiliary loss, is repeated in every row. Of a list with
    an entry for each image, as detectors return it, an entry is a row.
    """
    found = list(tensors(output))
    if not found:
        raise RequestError(
            f"expected a model that returns a tensor, or tensors in tuples, lists, dicts or dataclasses; found "
            f"{type(output).__name__}"
        )
    if isinstance(output, tuple | list) and _is_by_image(output, batch):
        return joined([_row(part, like=found[0]) for part in output])
    rows = [tensor if tensor.shape[:1] == (batch,) else tensor.expand(batch, *tensor.shape) for tensor in found]
    # Without −1, which is ambiguous where there is no number.
    return rows[0] if len(rows) == 1 else torch.cat([row.reshape(batch, row[0].numel()) for row in rows], dim=1)


def _is_by_image(output: Sequence[object], batch: int) -> bool:
    """Whether every entry is of one image: dicts, or in a list tensors that have no row for each image."""
    if len(output) != batch:
        return False
    if all(isinstance(part, Mapping) for part in output):
        return True
    parts = [part for part in output if isinstance(part, Tensor) and part.dim() > 0]
    return isinstance(output, list) and len(parts) == batch and any(len(part) != batch for part in parts)


def _row(part: object, like: Tensor) -> Tensor:
    """All numbers of an image, (1, numbers)."""
    found = [tensor.flatten() for tensor in tensors(part)]
    return (torch.cat(found) if found else like.new_empty(0))[None]


def joined(parts: Sequence[Outputs]) -> Outputs:
    """The outputs of parts of a batch side by side: one tensor, where every image has outputs of one shape."""
    whole = [part for part in parts if isinstance(part, Tensor)]
    if len(whole) == len(parts) and len({part.shape[1:] for part in whole}) == 1:
        return torch.cat(whole)
    return tuple(row.flatten() for part in parts for row in part)


def other_shapes(expected: Outputs, found: Outputs) -> str | None:
    """Where two outputs have different shapes, in words: "…, 5 in the source and 7 in the converted model"; or None."""
    if isinstance(expected, Tensor) and isinstance(found, Tensor):
        if expected.shape == found.shape:
            return None
        source, converted = ("×".join(map(str, output.shape[1:])) for output in (expected, found))
        return f", {source} in the source and {converted} in the converted model"
    for image, (one, other) in enumerate(zip(expected, found, strict=False), 1):
        if one.numel() != other.numel():
            return f" of image {image}, {one.numel()} numbers in the source and {other.numel()} in the converted model"
    return None


def is_empty(output: Outputs) -> bool:
    """Whether there is no number for any image."""
    return not any(row.numel() for row in output)


def errors(reference: Outputs, other: Outputs) -> ErrorStats:
    """Error statistics of `other` against `reference`, in float64; infinite if a value is not finite.

    Where not every image has equally many numbers, all images have to have as many in both.
    """
    a, b = _numbers(reference), _numbers(other)
    apart = not (isinstance(reference, Tensor) and isinstance(other, Tensor)) and other_shapes(reference, other)
    if apart or a.shape != b.shape or not (a.isfinite().all() and b.isfinite().all()):
        return ErrorStats(max_abs=torch.inf, relative=torch.inf, max_relative=torch.inf, cosine=0.0)
    if not a.numel():
        return ErrorStats(max_abs=0.0, relative=0.0, max_relative=0.0, cosine=1.0)
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


def _numbers(output: Outputs) -> Tensor:
    return (output if isinstance(output, Tensor) else torch.cat(output)).double().flatten()


def top1_agreement(a: Outputs, b: Outputs) -> float:
    """Top-1 agreement: the share of images, (B, …) both, with the same largest output; two without any agree."""
    return sum(_largest(one) == _largest(other) for one, other in zip(a, b, strict=True)) / len(a)


def _largest(row: Tensor) -> int | None:
    return int(row.flatten().argmax()) if row.numel() else None
