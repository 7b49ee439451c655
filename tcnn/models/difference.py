"""How far two tensors, or all outputs of two models, lie apart: largest and relative errors, in float64.

Relative errors are relative to the tensor itself, and of several outputs the worst counts: the logits' error would
disappear beside a map of hidden features a thousand times as large. Inside an output, entries far greater than all
others, as a mask's −1e9 beside logits, are measured apart from them for the same reason. What is not finite has no
size: it is compared by place and kind. Complex numbers count as two.
"""

import torch
from torch import Tensor

from tcnn.config.base import ErrorStats
from tcnn.models.outputs import Outputs, Rows, other_shape

HUGE, GAP = 1e4, 100.0
"""Entries from `HUGE` on are measured apart from those that are more than `GAP` times smaller, if none lies between.

Smaller ones are not, since probabilities of 1 stand beside some of 1e-9.
"""
EQUAL = ErrorStats(max_abs=0.0, relative=0.0, max_relative=0.0, cosine=1.0)
APART = ErrorStats(max_abs=torch.inf, relative=torch.inf, max_relative=torch.inf, cosine=0.0)


def errors(reference: Rows, other: Rows, by_scale: bool = False) -> ErrorStats:
    """Error statistics of `other` against `reference`.

    Args:
        by_scale: measure entries far greater than the others apart; the statistics are those of the worse part.

    Infinite where shapes differ, where one is infinite or NaN and the other is not, or something else, and where all of
    `reference` is NaN. Beside a reference of zeros only zeros are right.
    """
    a, b = _numbers(reference), _numbers(other)
    if other_shape(reference, other) is not None or a.shape != b.shape:
        return APART
    finite = a.isfinite()
    if not finite.all():
        if not torch.equal(_kinds(a), _kinds(b)) or a.isnan().all():
            return APART
        a, b = a[finite], b[finite]
    elif not b.isfinite().all():
        return APART
    if not a.numel():
        return EQUAL
    parts = _by_scale(a, b) if by_scale else [(a, b)]
    return max((_of_one_scale(*part) for part in parts), key=lambda found: found.worst)


def output_errors(reference: Outputs, other: Outputs) -> ErrorStats:
    """Error statistics of the output with the largest error, with its name if there are several."""
    if len(reference) != len(other):
        return APART
    found = [
        errors(one.rows, another.rows, by_scale=True).model_copy(update={"output": one.name or None})
        for one, another in zip(reference, other, strict=True)
    ]
    return max(found, key=lambda one: one.worst)


def top1_agreement(reference: Outputs, other: Outputs) -> float:
    """Top-1 agreement: the share of images with the same largest number in both, in the output with fewest of them.

    Two images without any number agree.
    """
    shares = [
        sum(_largest(a) == _largest(b) for a, b in zip(one.rows, another.rows, strict=True)) / len(one.rows)
        for one, another in zip(reference, other, strict=False)
    ]
    return min(shares)


def is_nan(rows: Rows) -> bool:
    """Whether there are numbers, and all are NaN."""
    numbers = _numbers(rows)
    return bool(numbers.numel() and numbers.isnan().all())


def distances(reference: Tensor, other: Tensor) -> Tensor:
    """The absolute difference of every number, (…) or of complex ones (…, 2); infinite where their kinds differ."""
    a, b = as_real(reference), as_real(other)
    apart = torch.where(_kinds(a) == _kinds(b), 0.0, torch.inf).to(a.device, torch.float64)
    return torch.where(a.isfinite() & b.isfinite(), (b - a).abs(), apart)


def _of_one_scale(a: Tensor, b: Tensor) -> ErrorStats:
    largest, max_abs = a.abs().max(), (b - a).abs().max().item()
    if not max_abs:
        return EQUAL
    if largest == 0:  # anything beside a silent reference is wrong
        return APART.model_copy(update={"max_abs": max_abs})
    a, b = a / largest, b / largest  # squares of the greatest numbers are infinite
    return ErrorStats(
        max_abs=max_abs,
        relative=((b - a).norm() / a.norm()).item(),
        max_relative=max_abs / largest.item(),
        cosine=torch.nn.functional.cosine_similarity(a, b, dim=0).item(),
    )


def _by_scale(a: Tensor, b: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Both without what is far greater in the first, and that apart; zeros are with the smallest."""
    size = a.abs()
    if size.max() < HUGE:
        return [(a, b)]
    steps = size[size > 0].sort().values
    ends = steps[1:][(steps[1:] >= HUGE) & (steps[1:] / GAP > steps[:-1])]
    scale = torch.bucketize(size, ends, right=True)
    return [(a[scale == number], b[scale == number]) for number in range(len(ends) + 1)]


def as_real(tensor: Tensor) -> Tensor:
    """Numbers in float64, complex ones as two, (…, 2)."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _numbers(rows: Rows) -> Tensor:
    return as_real(rows if isinstance(rows, Tensor) else torch.cat(rows)).flatten()


def _kinds(numbers: Tensor) -> Tensor:
    """What every number is: 0 finite, ±1 infinite, 2 NaN."""
    return numbers.isinf() * numbers.sign().nan_to_num() + 2 * numbers.isnan()


def _largest(row: Tensor) -> int | None:
    return int(as_real(row).flatten().argmax()) if row.numel() else None
