"""Kinds of positional attention: the positional term of every kind, by its name, and the names of its parameters.

==================  =============================================================  ==================================
kind                logits                                                         attention
==================  =============================================================  ==================================
`isotropic`         −(α/τ)·‖δ − Δ‖²                                                a row factor times a column factor
`quadratic`         −(1/τ)·(δ − Δ)ᵀ M (δ − Δ)                                      a map
`relative`          (1/τ)·v·r_δ                                                    a row factor times a column factor
`relative-content`  (1/τ)·(v + Ŵ q/√d)·r_δ                                         a map for every image
==================  =============================================================  ==================================

A term is a dataclass of its parameters, in the order of `NAMES`, with `attention` and what is asked of it elsewhere;
backends know of factors and maps only.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields

from torch import Tensor

from tcnn.config import PositionKind
from tcnn.errors import RequestError
from tcnn.layers.terms import isotropic, quadratic, relative
from tcnn.layers.terms.isotropic import Isotropic
from tcnn.layers.terms.positions import Geometry
from tcnn.layers.terms.quadratic import Quadratic
from tcnn.layers.terms.relative import Relative

Position = Isotropic | Quadratic | Relative


def _names(term: type[Position]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(term))


NAMES: dict[PositionKind, tuple[str, ...]] = {
    "isotropic": _names(Isotropic),
    "quadratic": _names(Quadratic),
    "relative": _names(Relative)[:3],
    "relative-content": _names(Relative),
}
"""Names of the parameters of every kind."""
PARAMETERS = tuple(dict.fromkeys(name for names in NAMES.values() for name in names))
"""Names of the parameters of all kinds."""
_TERMS: dict[PositionKind, Callable[..., Position]] = {
    "isotropic": Isotropic, "quadratic": Quadratic, "relative": Relative, "relative-content": Relative,
}  # fmt: skip


def position_of(kind: PositionKind, tensors: Sequence[Tensor | None]) -> Position | None:
    """The term of a kind from its parameters, in the order of `NAMES`; None where they are None."""
    return None if tensors[0] is None else _TERMS[kind](*tensors)


def of_convolution(kind: PositionKind, geometry: Geometry, head_dim: int, reach: int | None = None) -> Position:
    """The term that a convolution becomes, with which at τ → 0 every head looks at its own tap; float64, on the CPU."""
    if reach is not None and not kind.startswith("relative"):
        raise RequestError(f"position_reach: position {kind} has no embeddings; give it with relative")
    if kind == "isotropic":
        return isotropic.of_convolution(geometry)
    if kind == "quadratic":
        return quadratic.of_convolution(geometry)
    return relative.of_convolution(geometry, head_dim if kind == "relative-content" else None, reach)


def parameters_of(kind: PositionKind, position: Position | None) -> dict[str, Tensor]:
    """The parameters of a term by name; none for a layer without one."""
    if position is None:
        return {}
    own = ((name, getattr(position, name)) for name in NAMES[kind])
    return {name: value for name, value in own if value is not None}


def tensors_of(position: Position | None) -> tuple[Tensor | None, ...]:
    """All parameters of a term, in order; none for a layer without one."""
    return () if position is None else position.tensors


def reach_of(position: Position) -> int | None:
    """Largest shift with an embedding of its own, in pixels; None where there are no embeddings."""
    return position.reach if isinstance(position, Relative) else None


def reads_content(position: Position) -> bool:
    """Whether the positional attention depends on the image."""
    return isinstance(position, Relative) and position.position_query is not None
