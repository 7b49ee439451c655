"""Error statistics between two outputs: maximum, relative, cosine similarity, top-1 agreement."""

import torch
from torch import Tensor

from tcnn.records import ErrorStats


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
