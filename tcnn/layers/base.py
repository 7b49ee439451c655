"""Base class of the attention layers: parameters, gates, locality strengths, temperatures and convolution geometry."""

from typing import Any

import torch
from torch import Tensor, nn

from tcnn.errors import RequestError, UnsupportedLayerError
from tcnn.layers import functional
from tcnn.layers.backends import convolution
from tcnn.layers.terms import positions
from tcnn.layers.terms.parameters import Parameters, strength_of
from tcnn.layers.terms.positions import Geometry
from tcnn.layers.terms.scopes import Scope

TEMPERATURES = ("gate_temperature", "position_temperature")
"""Names of the buffers that hold the temperatures τ."""


class ConvolutionShaped(nn.Module):
    """A layer with the geometry of a convolution, under the attribute names of `nn.Conv2d`."""

    geometry: Geometry

    @property
    def kernel_size(self) -> positions.Pair:
        """(kh, kw), as `nn.Conv2d` has it: DaViT's forward pass reads it from the layer that was replaced."""
        return self.geometry.kernel_size

    @property
    def stride(self) -> positions.Pair:
        """(rows, columns), as `nn.Conv2d` has it."""
        return self.geometry.stride

    @property
    def dilation(self) -> positions.Pair:
        """(rows, columns), as `nn.Conv2d` has it."""
        return self.geometry.dilation


class AttentionLayer(ConvolutionShaped):
    """Base class of `GPSA2d` and `FoldedGPSA2d`: attention parameters, values derived from them, geometry.

    Derived values are computed in every call and never cached, so they cannot be stale; `tcnn.fuse` prepares a layer
    for inference.

    Shapes: K heads, d head width, C channels, G groups, H×W padded map, Ho×Wo output map. ``gating_param``,
    ``locality_raw``, ``attention_centers`` and both temperatures are None where all heads are content heads.
    """

    scope: Scope
    in_channels: int
    out_channels: int
    groups: int
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
    locality_raw: nn.Parameter
    attention_centers: nn.Parameter
    gate_temperature: Tensor
    """Temperature τ of the gates: σ(λ/τ)."""
    position_temperature: Tensor
    """Temperature τ of the positional attention: its strengths are α/τ."""
    known_hard: bool = False
    """Whether a layer on a GPU is known to be in the hard limit (equal to its convolution): see `set_temperatures`."""
    _minima: tuple[float, float] = (0.0, 0.0)
    """The smallest λ and the smallest α, while `known_hard`."""

    @property
    def tensors(self) -> Parameters:
        """The current parameters of the attention as a `Parameters` tuple."""
        return Parameters(
            self.query, self.key, self.value, self.proj, self.bias, self.gating_param, self.locality_raw,
            self.attention_centers, self.gate_temperature, self.position_temperature, self.heads, self.groups,
        )  # fmt: skip

    @property
    def locality_strength(self) -> Tensor:
        """Locality strength α > 0, (P,), in 1/pixel² at τ = 1, at least float32: (1/β)·log(1 + exp(β·raw)), β = 5."""
        return strength_of(self.locality_raw)

    @property
    def gate(self) -> Tensor:
        """Gate σ(λ/τ) of every head, (K,), at least float32: 1 is positional attention only, 0 content only."""
        return self.tensors.gate

    @property
    def strength(self) -> Tensor:
        """Locality strength divided by its temperature, α/τ, (P,), in 1/pixel², at least float32.

        It says how fast positional attention falls off around its centre.
        """
        return self.tensors.strength

    def positional_factors(self, size: positions.Pair) -> tuple[Tensor, Tensor]:
        """Row factor (K, Ho, H) and column factor (K, Wo, W) of the positional attention on a padded map (H, W).

        Zeros for content heads.
        """
        return functional.positional_factors(self.tensors, size, self.geometry)

    def set_temperature(self, temperature: float, hold: bool = False) -> None:
        """Set one temperature τ for gates and positions, as in the paper: `set_temperatures` with both equal."""
        _check_temperature("temperature", temperature)
        self.set_temperatures(temperature, temperature, hold)

    @torch.no_grad()
    def set_temperatures(self, gate: float, position: float, hold: bool = False) -> None:
        """Set the temperatures τ > 0 of the gates and of the positional attention.

        With `hold` the caller promises that only gradient updates change λ, α and Δ until the temperatures are set
        again.

        On a CPU every call checks whether the layer is in the hard limit, where it is computed as a convolution. On a
        GPU that check would make the host wait, so the layer is computed as attention unless `hold` is given: then the
        host checks once and keeps track of τ itself until the layer leaves the hard limit, because up to there the
        gradients of λ, α and Δ are zero. `hold` has an effect in training mode only, and ends when parameters are
        loaded or the layer is moved.

        Does nothing where no head has a positional part. Raises `RequestError` for a τ that is not above 0.
        """
        for name, tau in zip(TEMPERATURES, (gate, position), strict=True):
            _check_temperature(name, tau)
        if not self.heads > self.content_heads:
            return
        self.gate_temperature.fill_(gate)
        self.position_temperature.fill_(position)
        elsewhere = self.gate_temperature.device.type not in ("cpu", "meta")
        self.known_hard = hold and elsewhere and self._stays_hard(gate, position)

    def _stays_hard(self, gate: float, position: float) -> bool:
        """Whether the layer is in the hard limit at these temperatures, which are set; reads its values at most once.

        While it is `known_hard` the smallest λ and α are known, too, and stay as they are.
        """
        limit = convolution.HARD_STRENGTH
        if max(gate, position) > 1 / limit:
            return False
        if self.known_hard:
            return self._minima[0] / gate >= limit and self._minima[1] / position >= limit
        if not convolution.is_hard(self.tensors, self.geometry):
            return False
        self._minima = self.gating_param.min().item(), self.locality_strength.min().item()
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
        return super()._apply(*args, **kwargs)


def _check_temperature(name: str, temperature: float) -> None:
    if not temperature > 0:
        raise RequestError(f"{name}: expected a number above 0, got {temperature}")
