"""What every layer that attends has: a place in a convolution's stead, matrices, and heads that know where to look."""

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
"""The buffers that hold τ."""


class AttentionLayer(nn.Module):
    """The parameters of the attention by their names, what follows from them, and the geometry of the convolution.

    Nothing that was computed is kept from one call to the next, so nothing can be stale: `tcnn.fuse` prepares a layer
    for inference.

    Shapes: K heads, d head width, C channels, G groups, H×W padded map, Ho×Wo output map. ``gating_param``,
    ``locality_raw``, ``attention_centers`` and both temperatures are None where all heads are content heads.
    """

    geometry: Geometry
    scope: Scope
    in_channels: int
    out_channels: int
    groups: int
    heads: int
    content_heads: int = 0
    """How many of the heads, the last, have no positional part: a gate of exactly 0, and no parameters for it."""
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
    """τ of the gates: σ(λ/τ)."""
    position_temperature: Tensor
    """τ of the positions: strengths are α/τ."""
    held: bool = False
    """Whether a GPU's layer is known to be in the hard limit: see `set_temperature`."""
    _least: tuple[float, float] = (0.0, 0.0)
    """The least λ and the least α, while held."""

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

    @property
    def tensors(self) -> Parameters:
        """The tensors as they are now, by the paper's names."""
        return Parameters(
            self.query, self.key, self.value, self.proj, self.bias, self.gating_param, self.locality_raw,
            self.attention_centers, self.gate_temperature, self.position_temperature, self.heads, self.groups,
        )  # fmt: skip

    @property
    def locality_strength(self) -> Tensor:
        """α > 0, (P,), in 1/pixel² at τ = 1, at least float32: (1/β)·log(1 + exp(β·raw)), β = 5."""
        return strength_of(self.locality_raw)

    @property
    def gate(self) -> Tensor:
        """σ(λ/τ), (K,), at least float32: 1 looks at positions only, 0 at content only."""
        return self.tensors.gate

    @property
    def strength(self) -> Tensor:
        """α/τ, (P,), in 1/pixel², at least float32: how fast positional attention falls off around its centre."""
        return self.tensors.strength

    def positional_factors(self, size: positions.Pair) -> tuple[Tensor, Tensor]:
        """Rows (K, Ho, H) and columns (K, Wo, W) of the positional attention on a padded map of `size` (H, W).

        Zeros for content heads.
        """
        return functional.positional_factors(self.tensors, size, self.geometry)

    def set_temperature(self, temperature: float, hold: bool = False) -> None:
        """`set_temperatures` with one τ for gates and positions, as the paper has it."""
        _check("temperature", temperature)
        self.set_temperatures(temperature, temperature, hold)

    @torch.no_grad()
    def set_temperatures(self, gate: float, position: float, hold: bool = False) -> None:
        """Set the τ > 0 of gates and that of positions; with `hold`, say that until they are set again nothing but
        gradients will change λ, α and Δ.

        On a CPU a layer looks in every call whether it is a convolution. A GPU would make the host wait for that, so
        there it is computed as attention, unless it is held: then the host looks once, and follows τ by itself until
        the layer leaves the hard limit, for up to there the gradients of λ, α and Δ are zeros. Being held has no
        meaning outside of training mode, and ends when parameters are loaded or the layer is moved.

        Does nothing where no head has a positional part. Raises `RequestError` for a τ that is not above 0.
        """
        for name, tau in zip(TEMPERATURES, (gate, position), strict=True):
            _check(name, tau)
        if not self.heads > self.content_heads:
            return
        self.gate_temperature.fill_(gate)
        self.position_temperature.fill_(position)
        device, limit = self.gate_temperature.device.type, convolution.STRENGTH
        if not hold or device in ("cpu", "meta") or max(gate, position) > 1 / limit:
            self.held = False
        elif not self.held:
            self.held = convolution.is_hard(self.tensors, self.geometry)
            if self.held:
                self._least = self.gating_param.min().item(), self.locality_strength.min().item()
        else:
            self.held = self._least[0] / gate >= limit and self._least[1] / position >= limit

    def __prepare_scriptable__(self) -> Any:
        """Asked by `torch.jit.script`."""
        raise UnsupportedLayerError(
            "TorchScript cannot express attention: use torch.compile or torch.export (tcnn.export)"
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self.held = False
        both = state_dict.pop(f"{prefix}temperature", None)
        if both is not None:  # until version 0.2 gates and positions shared one
            for name in TEMPERATURES:
                state_dict.setdefault(prefix + name, both.clone())
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.held = False
        return super()._apply(*args, **kwargs)


def _check(name: str, temperature: float) -> None:
    if not temperature > 0:
        raise RequestError(f"{name}: expected a number above 0, got {temperature}")
