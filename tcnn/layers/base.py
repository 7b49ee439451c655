"""Base class of the attention layers: parameters, gates, locality strengths and temperatures."""

from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tcnn.config import PositionKind
from tcnn.errors import RequestError, UnsupportedLayerError, shorten
from tcnn.layers import functional
from tcnn.layers.backends import convolution
from tcnn.layers.shaped import ConvolutionShaped
from tcnn.layers.terms import kinds, positions
from tcnn.layers.terms.kinds import Position
from tcnn.layers.terms.parameters import Parameters
from tcnn.layers.terms.positions import Factors

TEMPERATURES = ("gate_temperature", "position_temperature")
"""Names of the buffers that hold the temperatures τ."""


class Steps(Protocol):
    """Follows the forward passes of layers in training, to know where a step begins."""

    def entered(self, layer: Any, x: Tensor) -> bool:
        """Before a forward pass; returns whether `left` is to be called after it."""

    def left(self, output: Tensor) -> None:
        """After it, with its output."""


class AttentionLayer(ConvolutionShaped):
    """Base class of `GPSA2d` and `FoldedGPSA2d`: attention parameters, values derived from them, geometry.

    Derived values are computed in every call and never cached, so they cannot be stale; `tcnn.fuse` prepares a layer
    for inference.

    Shapes: K heads, d head width, C channels, G groups, H×W padded map, Ho×Wo output map. ``gating_param``, the
    parameters of the positional term (`terms.kinds`) and both temperatures are None where all heads are content heads.
    """

    heads: int
    content_heads: int = 0
    """Number of heads without a positional part, which come last: their gate is exactly 0 and has no parameters."""
    head_dim: int
    query: nn.Parameter
    key: nn.Parameter
    value: nn.Parameter | None
    proj: nn.Parameter
    bias: nn.Parameter | None
    gating_param: nn.Parameter
    position: PositionKind = "isotropic"
    """Kind of the positional attention, which names its parameters (`terms.kinds.NAMES`)."""
    position_reach: int | None = None
    """Largest shift with a relative embedding of its own, pixels; None where there are no embeddings."""
    locality_raw: nn.Parameter
    attention_centers: nn.Parameter
    gate_temperature: Tensor
    """Temperature τ of the gates: σ(λ/τ)."""
    position_temperature: Tensor
    """Temperature τ of the positional attention: its strengths are α/τ."""
    known_hard: bool = False
    """Whether a layer on a GPU is known to be in the hard limit (equal to its convolution): see `set_temperatures`."""
    _minima: tuple[float, float] = (0.0, 0.0)
    """The smallest λ and the smallest margin of the positions, while `known_hard`."""

    @property
    def tensors(self) -> Parameters:
        """The current parameters of the attention as a `Parameters` tuple.

        In training its temperatures are copies: autograd keeps what a backward pass needs, and finds out if that was
        written meanwhile, as a schedule writes the buffers between two forward passes that share a backward pass.
        """
        taus = self.gate_temperature, self.position_temperature
        if self.training and torch.is_grad_enabled() and taus[0] is not None:
            taus = taus[0].clone(), taus[1].clone()
        return Parameters(
            self.query, self.key, self.value, self.proj, self.bias, self.gating_param, self.positional_term,
            *taus, self.heads, self.groups,
        )  # fmt: skip

    @property
    def positional_term(self) -> Position | None:
        """The positional term with its current parameters; None where no head has one."""
        return kinds.position_of(self.position, [getattr(self, name) for name in kinds.NAMES[self.position]])

    @property
    def locality_strength(self) -> Tensor:
        """Locality strength α > 0, (P,), in 1/pixel² at τ = 1, at least float32: (1/β)·log(1 + exp(β·raw)), β = 5.

        Of other kinds of positional attention than the isotropic, that of a Gaussian like it at τ = 1 (`summary`).
        """
        return self._summary(at_one=True)[0]

    @property
    def head_centres(self) -> Tensor:
        """Centre Δ of every head's positional attention, (P, 2), row and column, pixels, at least float32."""
        return self._summary()[1]

    def _summary(self, at_one: bool = False) -> tuple[Tensor, Tensor]:
        """At the layer's temperature, or at τ = 1."""
        term, temperature = self.positional_term, self.tensors.temperature
        assert term is not None  # noqa: S101 - a layer of content heads alone is never asked
        return term.summary(torch.ones_like(temperature) if at_one else temperature)

    @property
    def gate(self) -> Tensor:
        """Gate σ(λ/τ) of every head, (K,), at least float32: 1 is positional attention only, 0 content only."""
        return self.tensors.gate

    @property
    def strength(self) -> Tensor:
        """Strength at the layer's temperature, α/τ, (P,), in 1/pixel², at least float32.

        It says how fast positional attention falls off around its centre. Of learned embeddings it is that of the
        Gaussian like them at τ, which is not that at τ = 1 divided by τ.
        """
        return self._summary()[0]

    def positional_factors(self, size: positions.Pair, x: Tensor | None = None) -> Factors:
        """The positional attention on a padded map of `size` (H, W), as factors or maps (`positions.Factors`).

        Zeros for content heads. Where positions depend on content, x (B, C_in, h, w) is the unpadded map.
        """
        return functional.positional_factors(self.tensors, size, self.geometry, x)

    def set_temperature(self, temperature: float, hold: bool = False) -> None:
        """Set one temperature τ for gates and positions, as in the paper: `set_temperatures` with both equal."""
        _check_temperature("temperature", temperature, self.gate_temperature)
        self.set_temperatures(temperature, temperature, hold)

    @torch.no_grad()
    def set_temperatures(self, gate: float, position: float, hold: bool = False) -> None:
        """Set the temperatures τ > 0 of the gates and of the positional attention.

        With `hold` the caller promises that only gradient updates change λ and the positions until the temperatures
        are set again.

        On a CPU every call checks whether the layer is in the hard limit, where it is computed as a convolution. On a
        GPU that check would make the host wait, so the layer is computed as attention unless `hold` is given: then the
        host checks once and keeps track of τ itself until the layer leaves the hard limit, because up to there the
        gradients of λ and the positions are zero. `hold` has an effect in training mode only, and ends when parameters
        are loaded or the layer is moved.

        Does nothing where no head has a positional part. Raises `RequestError` for a τ that is not above 0, or
        that the layer's dtype has not (of float64 one that float32 has not).
        """
        for name, tau in zip(TEMPERATURES, (gate, position), strict=True):
            _check_temperature(name, tau, getattr(self, name))
        if not self.heads > self.content_heads:
            return
        self.gate_temperature.fill_(gate)
        self.position_temperature.fill_(position)
        elsewhere = self.gate_temperature.device.type not in ("cpu", "meta")
        self.known_hard = hold and elsewhere and self._stays_hard(gate, position)

    def _stays_hard(self, gate: float, position: float) -> bool:
        """Whether the layer is in the hard limit at these temperatures, which are set; reads its values at most once.

        While it is `known_hard` the smallest λ and margin are known, too, and stay as they are.
        """
        limit = convolution.HARD_STRENGTH
        if max(gate, position) > 1 / limit:
            return False
        if self.known_hard:
            return self._minima[0] / gate >= limit and self._minima[1] / position >= limit
        if not convolution.is_hard(self.tensors, self.geometry):
            return False
        term = self.positional_term
        assert term is not None  # noqa: S101 - it is hard
        self._minima = self.gating_param.min().item(), term.margin().min().item()
        return True

    def __prepare_scriptable__(self) -> Any:
        """Refuse `torch.jit.script`, which calls this; raises `UnsupportedLayerError`."""
        raise UnsupportedLayerError(
            "TorchScript cannot express attention: use torch.compile or torch.export (tcnn.export)"
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self.known_hard = False
        both = state_dict.pop(f"{prefix}temperature", None)
        if both is not None:  # until version 0.2 gates and positions shared one
            for name in TEMPERATURES:
                state_dict.setdefault(prefix + name, both.clone())
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.known_hard = False
        super()._apply(*args, **kwargs)
        self._refuse_lost_taps()
        return self

    def _refuse_lost_taps(self) -> None:
        """Raise `UnsupportedLayerError` if the dtype of the layer's centres has not the coordinates of its taps."""
        centres = self._parameters.get("attention_centers")
        if centres is not None and not positions.has_taps(centres.dtype, self.geometry):
            furthest = max(abs(at) for tap in positions.tap_coordinates(self.geometry) for at in tap)
            raise UnsupportedLayerError(
                f"{type(self).__name__}: {centres.dtype} cannot hold the positions of its taps, up to {furthest:.0f} "
                "pixels from the centre; keep it in float32, and use autocast for products in half precision"
            )


class FilterInProjection(AttentionLayer):
    """An `AttentionLayer` whose filter is no parameter, but part of ``proj``.

    What treats a convolution by its parameter ``weight`` (pruning, weight and spectral norm, merging with a batch norm)
    finds none and learns so by `UnsupportedLayerError`: what it wrote would have no influence on the function.
    """

    def __init__(self) -> None:
        super().__init__()
        self._parameters = _WithoutWeight()

    @property
    def filter(self) -> Tensor:
        """W_out as a convolution filter, (C_out, C_in/G, kh, kw), a view; W_val is not multiplied in."""
        return convolution.filter_of(self.tap_proj, self.geometry)

    @property
    def tap_proj(self) -> Tensor:
        """W_out of the heads with a tap, (C_out, P·C_in/G), a view of ``proj``."""
        return self.proj[:, : self.geometry.heads * (self.in_channels // self.groups)]

    @property
    def weight(self) -> Tensor:
        """``filter``, under the name that `nn.Conv2d` has for it: models ask their convolutions for its dtype."""
        return self.filter

    @weight.setter
    def weight(self, value: object) -> None:
        _refuse_weight("weight")

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As `nn.Module` does; raises `UnsupportedLayerError` for ``weight`` and parts of one (``weight_g``)."""
        _refuse_weight(name)
        super().register_parameter(name, param)


class _WithoutWeight(dict[str, nn.Parameter | None]):
    """Parameters of a layer without ``weight``; the old weight and spectral norms look here before anything else."""

    def __missing__(self, name: str) -> None:
        _refuse_weight(name)
        raise KeyError(name)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            _refuse_weight(name)
        super().__delitem__(name)


def _refuse_weight(name: str) -> None:
    if name.partition("_")[0] == "weight":
        raise UnsupportedLayerError(
            f"GPSA2d has no parameter {name}: its filter is part of `proj`; prune, normalise or scale `proj` instead"
        )


def _check_temperature(name: str, temperature: object, buffer: Tensor | None) -> None:
    """Raise for a τ that the buffer's dtype has not; of float64, float32's range, in which settings and files are."""
    held = min(torch.finfo(torch.float32 if buffer is None else buffer.dtype), torch.finfo(torch.float32), key=_largest)
    told = shorten(repr(temperature), 60)
    scalar = isinstance(temperature, Tensor) and temperature.dim() == 0 and not temperature.is_complex()
    if not (scalar or isinstance(temperature, Real)):
        raise RequestError(f"{name}: expected a number above 0, got {told}")
    value: Any = temperature
    if not value > 0:
        raise RequestError(f"{name}: expected a number above 0, got {told}")
    if not held.tiny <= value <= held.max:
        raise RequestError(f"{name}: expected from {held.tiny:.1g} to {held.max:.1g}, as {held.dtype} has, got {told}")


def _largest(held: torch.finfo) -> float:
    return held.max
