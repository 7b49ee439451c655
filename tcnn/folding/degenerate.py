"""Which heads of a layer look too far away, where another looks, everywhere alike, or along a line.

Cordonnier et al. 2020, App. E, remove heads whose Gaussian is degenerate (the largest eigenvalue of Σ⁻¹ below 1e-5, or
a condition number above 1e5). Heads that look at one place are of one attention, so that one of them takes over the
output weights of the other. Two Gaussians are of one attention where their centres are the same; of learned embeddings,
whose attention may have any form, that is asked for as well.

Shapes: P heads with a positional part, H×W padded map.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.errors import NothingToConvertError, RequestError
from tcnn.folding.report import PrunedHead
from tcnn.formatting import are, plural, some
from tcnn.layers.terms.kinds import Position
from tcnn.layers.terms.positions import Pair
from tcnn.layers.terms.quadratic import Quadratic
from tcnn.layers.terms.relative import Relative

SAME = 0.5
"""Distance in pixels of two centres below which they look at one place."""
FLATTEST = 1e-5
"""Largest eigenvalue of Σ⁻¹, in 1/pixel², below which attention is the same everywhere (their threshold)."""
THINNEST = 1e5
"""Ratio of the eigenvalues of Σ⁻¹ above which attention is a line (their threshold)."""

ALIKE = 0.3
"""Share of a learned attention that may lie elsewhere than another's which looks at the same place.

That of two Gaussians with α = 1 whose centres are half a pixel apart is 0.28.
"""


class Looking(NamedTuple):
    """Where the heads of a layer look, and how much they bring."""

    centres: list[list[float]]
    """Row and column in pixels from the query."""
    eigenvalues: Tensor
    """Of Σ⁻¹, (P, 2) ascending, in 1/pixel²."""
    weights: list[float]
    """Norm of W_out of every head."""
    size: Pair
    """(H, W) of the layer's map with its padding."""
    learned: Tensor | None = None
    """Of learned embeddings the weights that its middle pixel gives, (P, H, W); NaN of a head whose query decides."""

    def alike(self, one: int, other: int) -> bool:
        """Whether two heads with the same centre are of one attention."""
        return self.learned is None or bool((self.learned[one] - self.learned[other]).abs().sum() <= 2 * ALIKE)


def looking(term: Position, temperature: Tensor, proj: Tensor, size: Pair) -> Looking:
    """What a positional term says at a temperature τ; `proj` is W_out, (C_out, K, C), of the P heads and any behind."""
    weights: list[float] = proj.double().norm(dim=(0, 2)).tolist()
    if isinstance(term, Relative):
        return _of_embeddings(term, temperature.double(), weights, size)
    strength, centres = term.summary(temperature)
    # A head is exp(−½ δᵀ Σ⁻¹ δ), so that Σ⁻¹ = 2 M/τ.
    if isinstance(term, Quadratic):
        values = 2 * torch.linalg.eigvalsh(term.precision.double()) / temperature.double()
    else:
        values = (2 * strength.double())[:, None].expand(-1, 2)
    return Looking(centres.double().tolist(), values, weights, size)


def _of_embeddings(term: Relative, temperature: Tensor, weights: list[float], size: Pair) -> Looking:
    """As the pixel in the middle of the layer's map sees it: a table of embeddings may have many more shifts."""
    parts, means, spread = [], [], temperature.new_zeros(len(term.position_vector))
    for logits, side in zip(term.logits, size, strict=True):
        shift = torch.arange(side, device=temperature.device) - side // 2
        own = torch.softmax(logits.double()[:, (shift + term.reach).clamp(0, 2 * term.reach)] / temperature, dim=1)
        means.append(own @ shift.double())
        spread = spread + (own * (shift - means[-1][:, None]).square()).sum(1)
        parts.append(own)
    learned = parts[0][:, :, None] * parts[1][:, None, :]
    if term.position_query is not None:
        learned[term.position_query.flatten(1).any(1)] = torch.nan
    centres: list[list[float]] = torch.stack(means, dim=1).tolist()
    return Looking(centres, (2 / spread)[:, None].expand(-1, 2), weights, size, learned)


def degenerate(name: str, seen: Looking, spared: Collection[int], far: float | None, same: float) -> list[PrunedHead]:
    """The heads of a layer to remove, with the reason.

    Args:
        spared: heads that stay, whatever they look at.
        far: pixels from the query beyond which a centre is too far; None: beyond the map.
        same: pixels within which two centres are the same.
    """
    flat = (seen.eigenvalues[:, 1] < FLATTEST).tolist()
    thin = (seen.eigenvalues[:, 1] > THINNEST * seen.eigenvalues[:, 0]).tolist()
    found: list[PrunedHead] = []
    kept: list[int] = []
    # The heads with the most weight first, so that those are kept where several look at one place.
    for head in sorted(range(len(seen.centres)), key=lambda one: -seen.weights[one]):
        if head in spared:
            continue
        row, column = centre = seen.centres[head]
        outside = abs(row) >= seen.size[0] or abs(column) >= seen.size[1]
        twins = (one for one in kept if _distance(seen.centres[one], centre) <= same)
        twin = next((one for one in twins if seen.alike(one, head)), None)
        away = outside if far is None else _distance(centre, [0.0, 0.0]) > far
        reasons = {"flat": flat[head], "thin": thin[head], "far": away, "same": twin is not None}
        reason = next((why for why, holds in reasons.items() if holds), None)
        if reason is None:
            kept.append(head)
            continue
        into = twin if reason == "same" else None
        found.append(PrunedHead(layer=name, head=head, reason=reason, centre=(row, column), into=into))  # type: ignore[arg-type]
    return sorted(found, key=lambda head: head.head)


def hand_over(parts: Tensor, removed: Sequence[PrunedHead]) -> None:
    """Give output weights of heads that look where others do to those, in place; `parts` is W_out, (C_out, K, C)."""
    for head in removed:
        if head.into is not None:
            parts[:, head.into] += parts[:, head.head]


def nothing_left(name: str, heads: int, removed: Sequence[PrunedHead], far: float | None) -> RequestError:
    """The refusal where a layer would have no head."""
    return RequestError(
        f"{name}: {'its only head' if heads == 1 else f'all of its {heads} heads'} would be removed "
        f"({', '.join(sorted({head.reason for head in removed}))}), and nothing would be left of the layer"
        + ("" if far is None else f"; give a larger distance than {_pixels(far)}")
    )


def nothing_to_prune(far: float | None, same: float, taps: int = 0, heads: int = 0) -> NothingToConvertError:
    """The refusal where every one of the heads stays, as many of them because they are `taps` of a convolution."""
    if taps and taps == heads:
        return NothingToConvertError(
            f"no head to prune: {'the only one is' if heads == 1 else f'all {heads} are'} exactly a tap of a "
            f"convolution, which tcnn fold folds {'it' if heads == 1 else 'them'} into"
        )
    folds = f"that {are(taps)} exactly a tap of a convolution (tcnn fold folds {'it' if taps == 1 else 'them'})"
    but = f" but those of {some(taps, 'head')} {folds}" if taps else ""
    return NothingToConvertError(
        f"no head to prune: every centre{but} lies within {'the map' if far is None else _pixels(far)} and more "
        f"than {_pixels(same)} from those of its layer"
    )


def _distance(one: list[float], other: list[float]) -> float:
    return float(((one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2) ** 0.5)


def _pixels(distance: float) -> str:
    return f"{distance:g} {plural(distance, 'pixel')}"
