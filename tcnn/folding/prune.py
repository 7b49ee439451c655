"""`prune`: remove heads by where they look: too far away, where another looks, everywhere alike, or along a line.

Cordonnier et al. 2020, App. E, remove heads whose Gaussian is degenerate (the largest eigenvalue of Σ⁻¹ below 1e-5, or
a condition number above 1e5). Heads that look at one place are of one attention, so that one of them takes over the
output weights of the other. What content attention brings is not asked: only heads that are more positional than not
are removed. The error is whatever it is; measure it.

Shapes: P heads with a positional part.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tcnn.config import VerificationConfig, build
from tcnn.errors import NothingToConvertError, RequestError
from tcnn.folding.apply import attach_report, checked, compare, convolutions_of, entry, fold_layers, kinds_at, logits
from tcnn.folding.fold import Folding
from tcnn.folding.foldable import heads_of
from tcnn.folding.report import FoldReport, PrunedHead
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.folded import HeadKind
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms import positions
from tcnn.layers.terms.positions import Pair
from tcnn.layers.terms.quadratic import Quadratic
from tcnn.models.noise import noise_images
from tcnn.models.parameters import parameter_count
from tcnn.models.precision import exact_arithmetic
from tcnn.models.running import replacements, watch_layers
from tcnn.models.trace import evaluating

SAME = 0.5
"""Distance in pixels of two centres below which they look at one place."""
FLATTEST = 1e-5
"""Largest eigenvalue of Σ⁻¹, in 1/pixel², below which attention is the same everywhere (their threshold)."""
THINNEST = 1e5
"""Ratio of the eigenvalues of Σ⁻¹ above which attention is a line (their threshold)."""
POSITIONAL = 0.5
"""Gate from which a head is more positional than not."""


@torch.no_grad()
def prune(
    model: nn.Module,
    far: float | None = None,
    same: float = SAME,
    images: Tensor | None = None,
    source: nn.Module | None = None,
    config: VerificationConfig | None = None,
) -> Folding:
    """Remove heads whose centres are too far away or the same, or whose attention is degenerate.

    Args:
        model: what `tcnn.convert` or `tcnn.load` returned, trained further or not; it is not changed.
        far: pixels from the query beyond which a centre is too far; by default, beyond the whole of the layer's map.
        same: pixels within which two centres of a layer are the same.
        images: (B, C, H, W), normalised as the model expects, on which the error is measured; noise when None.
        source: the architecture that was converted, for models that timm does not know.
        config: size and seed of the noise.

    Returns: the pruned model, for inference, and the report, whose `pruned` names every head and why. Heads that are
    exactly a tap of a convolution are folded into it, as `fold` does.

    Raises: `NothingToConvertError` where no head is removed, `RequestError` where all heads of a layer would be.
    """
    if far is not None and not far > 0:
        raise RequestError(f"far: expected a distance in pixels above 0, found {far:g}")
    if not 0 <= same < torch.inf:
        raise RequestError(f"same: expected a distance in pixels of 0 or more, found {same:g}")
    config = build(VerificationConfig, {}, config)
    record = checked(model, None)
    layers = replacements(model)
    batch = noise_images(model, config) if images is None else images
    sizes = _map_sizes(model, layers, batch[:1])
    heads = {name: heads_of(layer) for name, layer in layers.items()}
    kinds = kinds_at(heads, 0.0)
    removed: list[PrunedHead] = []
    merged = copy.deepcopy(model)
    for name, layer in replacements(merged).items():
        own = degenerate(name, layer, kinds[name], sizes[name], far, same)
        if len(own) == layer.heads:
            raise RequestError(
                f"{name}: all of its {layer.heads} heads would be removed "
                f"({', '.join(sorted({head.reason for head in own}))}), and nothing would be left of the layer"
                + ("" if far is None else f"; give a larger distance than {far:g} pixels")
            )
        parts = layer.proj.unflatten(1, (layer.heads, -1))
        for head in own:
            if head.into is not None:
                parts[:, head.into] += parts[:, head.head]
        gone = {head.head for head in own}
        kinds[name] = tuple("dropped" if head in gone else kind for head, kind in enumerate(kinds[name]))
        removed += own
    if not removed:
        raise NothingToConvertError(
            f"no head to prune: every centre lies within {'the map' if far is None else f'{far:g} pixels'} and more "
            f"than {same:g} pixels from those of its layer"
        )
    pruned, notes = fold_layers(merged, kinds, heads, convolutions_of(record, source, layers))
    with exact_arithmetic(), use_backend("fused"):
        error, agreement = compare(logits(model, batch), pruned, batch)
    entries = tuple(entry(name, layers[name], pruned.get_submodule(name), kinds[name], notes) for name in layers)
    report = FoldReport(
        complete=all(one.becomes == "convolution" for one in entries),
        tolerance=0.0,
        max_error=None,
        layers=entries,
        logits=error,
        top1_agreement=agreement,
        images=f"{'noise' if images is None else 'images'} {'×'.join(map(str, batch.shape))}",
        seed=config.seed,
        statistics_randomised=False,
        parameters_before=parameter_count(model),
        parameters_after=parameter_count(pruned),
        pruned=tuple(removed),
    )
    return Folding(attach_report(pruned, record, entries, kinds), report)


def degenerate(
    name: str, layer: GPSA2d, kinds: tuple[HeadKind, ...], size: Pair, far: float | None, same: float
) -> list[PrunedHead]:
    """The heads of a layer to remove, with the reason; those that are a tap exactly stay.

    Args:
        size: (H, W) of its padded map.
    """
    gate, centres = layer.gate.double().tolist(), layer.head_centres.double().tolist()
    weights = layer.proj.unflatten(1, (layer.heads, -1)).double().norm(dim=(0, 2)).tolist()
    flat, thin = _eigenvalues(layer)
    found: list[PrunedHead] = []
    kept: list[int] = []
    # The heads with the most weight first, so that those are kept where several look at one place.
    for head in sorted(range(len(centres)), key=lambda one: -weights[one]):
        if gate[head] < POSITIONAL or kinds[head] != "attention":
            continue
        row, column = centres[head]
        outside = abs(row) >= size[0] or abs(column) >= size[1] if far is None else (row**2 + column**2) ** 0.5 > far
        twin = next((one for one in kept if _distance(centres[one], centres[head]) <= same), None)
        reasons = {"flat": flat[head], "thin": thin[head], "far": outside, "same": twin is not None}
        reason = next((why for why, holds in reasons.items() if holds), None)
        if reason is None:
            kept.append(head)
            continue
        into = twin if reason == "same" else None
        found.append(PrunedHead(layer=name, head=head, reason=reason, centre=(row, column), into=into))  # type: ignore[arg-type]
    return sorted(found, key=lambda head: head.head)


def _distance(one: list[float], other: list[float]) -> float:
    return ((one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2) ** 0.5


def _eigenvalues(layer: GPSA2d) -> tuple[list[bool], list[bool]]:
    """Whether each head's Gaussian is flat, and whether it is thin: exp(−½ δᵀ Σ⁻¹ δ), so that Σ⁻¹ = 2 M/τ."""
    term = layer.positional_term
    if isinstance(term, Quadratic):
        values = 2 * torch.linalg.eigvalsh(term.precision.double()) / layer.position_temperature.double()
    else:
        values = 2 * layer.strength.double()[:, None].expand(-1, 2)
    return (values[:, 1] < FLATTEST).tolist(), (values[:, 1] > THINNEST * values[:, 0]).tolist()


def _map_sizes(model: nn.Module, layers: Mapping[str, GPSA2d], image: Tensor) -> dict[str, Pair]:
    """(H, W) of the largest padded map that each layer gets in a forward pass of an image."""
    sizes: dict[str, Pair] = {}

    def keep(name: str, layer: nn.Module, x: Tensor, _: Tensor) -> None:
        assert isinstance(layer, GPSA2d)  # noqa: S101 - nothing else is watched
        sizes[name] = max(sizes.get(name, (0, 0)), positions.padded_size(x.shape[-2:], layer.geometry))

    weight = next(model.parameters())
    with evaluating(model), watch_layers(model, layers, keep):
        model(image.to(weight.device, weight.dtype))
    if missing := [name for name in layers if name not in sizes]:
        raise RequestError(f"{missing[0]}: never ran, so that the size of its map is not known; give a distance (far)")
    return sizes
