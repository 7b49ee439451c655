"""Explain a difference between two models: the first layer that departs, where, by how much, in which precision."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tcnn.config import HARD_TEMPERATURE
from tcnn.config.base import ErrorStats
from tcnn.errors import RequestError, shorten
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.models.checks import refuse_other_images, refuse_prepared, refuse_without_values, unwrapped
from tcnn.models.difference import errors, output_errors
from tcnn.models.outputs import Outputs, Rows, other_shapes, padded, separate
from tcnn.models.precision import exact_arithmetic, filters_are_rounded
from tcnn.models.running import (
    at_temperature,
    gpsa_layers,
    in_dtype,
    place_of,
    temperatures,
    told_in_one_line,
    weights_dtype,
)
from tcnn.models.state import same_start
from tcnn.models.trace import evaluating
from tcnn.verification.explanation import Departure, Explanation, PrecisionPass, histogram_of, words, worst_place

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Largest relative error of a layer that counts as equal."""


class _Seen:
    """What the layers of a model were given and gave, by name, in the order in which they first ran."""

    def __init__(self, model: nn.Module, names: set[str]) -> None:
        self.inputs: dict[str, tuple[Any, ...]] = {}
        self.outputs: dict[str, Tensor] = {}
        self._handles = []
        for name, module in model.named_modules():
            if name in names:
                self._handles.append(module.register_forward_pre_hook(self._given(name)))
                self._handles.append(module.register_forward_hook(self._gave(name)))

    def _given(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if name not in self.inputs:  # before the layer runs, which may write into them
                self.inputs[name] = tuple(x.detach().clone() if isinstance(x, Tensor) else x for x in inputs)

        return hook

    def _gave(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
            if name not in self.outputs and isinstance(output, Tensor):
                self.outputs[name] = output.detach().clone()  # what follows may write into it

        return hook

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()


def explain(
    reference: nn.Module,
    candidate: nn.Module,
    images: Tensor,
    tolerances: dict[torch.dtype, float] | None = None,
    float64: bool = True,
) -> Explanation:
    """Explain how a model differs from another of the same architecture, or from the CNN that it was converted from.

    Layers are matched by dotted name; both models run on the same images in float32 and float64, attention as
    attention, and every layer of the second once more on the input that it has in the first. T-CNNs are compared at
    τ = 1/46, where they are to equal their CNN.

    Args:
        images: (B, C, H, W), as both models expect them.
        tolerances: largest relative error by dtype; default 1e-5 and 1e-10. Where the second model holds standardised
            filters rounded to its dtype, that of float32 applies in float64, too.
        float64: also compare in float64, in which a model with `.float()` in its forward pass does not run.

    Neither model is changed. Raises `RequestError` for models without a common layer, or whose outputs have different
    shapes.
    """
    reference, candidate = unwrapped(reference), unwrapped(candidate)
    for model in (reference, candidate):
        refuse_without_values(model, "explain")
        refuse_prepared(model, "explain", but=(FoldedGPSA2d,))
    refuse_other_images(images)
    bounds = {**TOLERANCES, **_checked(tolerances)}
    if filters_are_rounded(reference, candidate):
        bounds[torch.float64] = max(bounds[torch.float64], bounds[torch.float32])
    if not float64:
        del bounds[torch.float64]
    names = _leaves(reference) & _leaves(candidate)
    if not names:
        raise RequestError("explain: the models have no layer of one name; are they of one architecture?")
    passes, worst = [], None
    histogram: dict[int, int] = {}
    unmatched = sorted(_leaves(reference) ^ _leaves(candidate))
    with (
        exact_arithmetic(),
        torch.no_grad(),
        use_backend("fused"),
        _in_hard_limit(reference),
        _in_hard_limit(candidate),
    ):
        for dtype, bound in bounds.items():
            ours, theirs, *outputs = _run(reference, candidate, images, dtype, names)
            _refuse_other_shapes(*outputs)
            layers = _compare(reference, candidate, ours, theirs, dtype)
            unmatched += [n for n in ours.outputs if n not in {layer.name for layer in layers} and n not in unmatched]
            first = next((layer.name for layer in layers if layer.error.worst > bound), None)
            logits = output_errors(*outputs)
            passes.append(
                PrecisionPass(
                    dtype=str(dtype).removeprefix("torch."), tolerance=bound, logits=logits, layers=layers, first=first
                )
            )
            if first:
                one, other = ours.outputs[first], theirs.outputs[first]
            else:
                one, other = (padded(_named(output, logits.output)) for output in outputs)
            if not histogram or first:
                histogram, worst = histogram_of(one, other), worst_place(one, other)
    verdict, advice = words(passes, (weights_dtype(reference), weights_dtype(candidate)), worst)
    return Explanation(
        passes=tuple(passes), unmatched=tuple(unmatched), histogram=histogram, worst=worst, verdict=verdict,
        advice=advice,
    )  # fmt: skip


def _checked(tolerances: object) -> dict[torch.dtype, float]:
    """Tolerances by dtype; raises `RequestError` for anything else."""
    if tolerances is None:
        return {}
    if isinstance(tolerances, Mapping) and all(
        isinstance(dtype, torch.dtype)
        and dtype.is_floating_point
        and isinstance(bound, int | float)
        and 0 < bound < torch.inf
        for dtype, bound in tolerances.items()
    ):
        return dict(tolerances)
    raise RequestError(
        f"tolerances: expected relative errors above 0 by dtype, such as {{torch.float32: 1e-5}}, found "
        f"{shorten(repr(tolerances), 60)}"
    )


def _refuse_other_shapes(expected: Outputs, found: Outputs) -> None:
    told = other_shapes(expected, found)
    if told is None:
        return
    one, other = expected[0].rows, found[0].rows
    if len(expected) > 1 or len(found) > 1 or not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        raise RequestError(f"explain: expected outputs of one shape, found those{told}; give other images")
    first, second = ("×".join(map(str, rows.shape[1:])) for rows in (one, other))
    classes = one.dim() == other.dim() == 2
    advice = (
        "give both as many classes, by num_classes"
        if classes
        else "a T-CNN whose stride was removed is to be compared with tcnn.without_stride(source, stride=…)"
    )
    raise RequestError(f"explain: expected outputs of one shape, found {first} and {second}; {advice}")


def _named(outputs: Outputs, name: str | None) -> Rows:
    """The output of this name; the first without one."""
    return next(one.rows for one in outputs if name in (None, one.name))


@contextmanager
def _in_hard_limit(model: nn.Module) -> Iterator[None]:
    if not gpsa_layers(model):
        yield
        return
    with at_temperature(model, min(max(temperatures(model).values()), HARD_TEMPERATURE)):
        yield


def _leaves(model: nn.Module) -> set[str]:
    """Layers that compute: those with parameters of their own, and those without children."""
    return {
        name
        for name, module in model.named_modules()
        if name and (next(module.children(), None) is None or next(module.parameters(recurse=False), None) is not None)
    }


def _run(
    reference: nn.Module, candidate: nn.Module, images: Tensor, dtype: torch.dtype, names: set[str]
) -> tuple[_Seen, _Seen, Outputs, Outputs]:
    seen, outputs = [], []
    for model in (reference, candidate):
        own = in_dtype(model, dtype)
        watched = _Seen(own, names)
        try:
            with evaluating(own), same_start(own), told_in_one_line(own, images, dtype):
                # All images at once, as hooks see one call of a layer.
                outputs.append(separate(own(images.to(device=place_of(own), dtype=dtype)), len(images)))
        finally:
            watched.close()
        seen.append(watched)
    return seen[0], seen[1], outputs[0], outputs[1]


def _compare(
    reference: nn.Module, candidate: nn.Module, ours: _Seen, theirs: _Seen, dtype: torch.dtype
) -> tuple[Departure, ...]:
    layers = []
    for name, expected in ours.outputs.items():
        found = theirs.outputs.get(name)
        if found is None or found.shape != expected.shape:
            continue
        layer = in_dtype(candidate.get_submodule(name), dtype)
        layers.append(
            Departure(
                name=name, kinds=(type(reference.get_submodule(name)).__name__, type(layer).__name__),
                error=errors(expected, found), own=_own(layer, ours.inputs[name], expected),
            )
        )  # fmt: skip
    return tuple(layers)


def _own(layer: nn.Module, inputs: tuple[Any, ...], expected: Tensor) -> ErrorStats | None:
    try:
        with evaluating(layer), same_start(layer):
            found = layer(*(x.clone() if isinstance(x, Tensor) else x for x in inputs))
    except (RuntimeError, TypeError, ValueError):  # it takes more than its positional arguments
        return None
    return errors(expected, found) if isinstance(found, Tensor) and found.shape == expected.shape else None
