"""`GPSA2d`: gated positional self-attention over a feature map, the layer that replaces a convolution.

Shapes: B batch, C channels, H×W padded map, Ho×Wo output map, M = Ho·Wo queries, N = H·W keys, K heads, d head width,
G groups.
"""

import torch
from timm.layers import use_fused_attn
from torch import Tensor, nn

from tcnn.arguments import at_least, at_most, typed
from tcnn.config import HARD_TEMPERATURE, PositionKind
from tcnn.config.conversion import MOST_HEADS
from tcnn.errors import UnsupportedLayerError
from tcnn.layers import filters
from tcnn.layers.backends import convolution, reference
from tcnn.layers.backends.reference import AttentionInputs
from tcnn.layers.base import TEMPERATURES, FilterInProjection, Steps
from tcnn.layers.exposed import AttentionPoint, applied
from tcnn.layers.functional import check_input, gpsa, refuse_no_tensor
from tcnn.layers.initialise import QueryKey, draw_query_key
from tcnn.layers.terms import kinds, positions, scopes
from tcnn.layers.terms.attention import AttentionMaps
from tcnn.layers.terms.positions import Geometry

torch.fx.wrap("applied")
torch.fx.wrap("gpsa")  # symbolic tracing sees one call, not the choices that are made in it


def default_head_dim(in_channels: int, heads: int) -> int:
    """Default head width d: C_in // K rounded down to a multiple of 8, at least 8."""
    return max(8, in_channels // heads // 8 * 8)


class GPSA2d(FilterInProjection):
    r"""Gated positional self-attention with one head per kernel tap (Transformed CNNs, Eq. 4–7).

    .. math::
        A_h = (1 - σ(λ_h/τ))\,\mathrm{softmax}_k(Q_h K_h^⊤/\sqrt d)
              + σ(λ_h/τ)\,\mathrm{softmax}_k(-(α_h/τ)\,‖δ - Δ_h‖²)
        \qquad Y = b + \sum_h A_h X W_{val} W_{out}^h

    The input is padded explicitly, as the convolution pads it. Keys and values are all positions of the padded map;
    queries are the kernel-centre pixel of every output pixel, so a stride only thins out the queries.

    ==============  ========================  ===========================  ======================================
    paper           here                      shape                        at conversion
    ==============  ========================  ===========================  ======================================
    W_qry, W_key    ``query``, ``key``        (K·d, C_in)                  truncated normal, std 0.02
    W_val           ``value``                 (C_in, C_in), all heads      identity
    W_out^h         ``proj``                  (C_out, K·C_in/G)            tap h of the filter
    b               ``bias``                  (C_out,)                     the convolution's bias
    λ_h             ``gating_param``          (P,)                         1
    α_h             ``locality_strength``     (P,)                         1; stored as softplus⁻¹ (β = 5)
    Δ_h             ``attention_centers``     (P, 2) row, column, pixels   the tap's offset from the centre
    τ of λ          ``gate_temperature``      (), a buffer                 1/46: the convolution; 1: the paper
    τ of α          ``position_temperature``  (), a buffer                 the same
    ==============  ========================  ===========================  ======================================

    ``query``, ``key`` and ``value`` have PyTorch's (out, in) layout. The first P heads, one per tap, are row-major over
    the kernel; the other K − P, content heads, have no positional part: a gate of exactly 0. At conversion their W_out
    is 0, so that they change nothing until it has learnt. In the paper K = P.

    Other kinds of `position` have other logits than −(α_h/τ)‖δ − Δ_h‖², and other parameters than α and Δ:

    ====================  =====================================  =====================================================
    ``quadratic``         −(1/τ)(δ − Δ_h)ᵀ L_h L_hᵀ (δ − Δ_h)    ``precision_raw`` (P, 3), ``attention_centers``
    ``relative``          (1/τ) v_h·r_δ                          ``row_embedding``, ``column_embedding`` (2R + 1, P),
                                                                 ``position_vector`` (P, 2, P)
    ``relative-content``  (1/τ) (v_h + Ŵ_h q/√d)·r_δ             these and ``position_query`` (P, 2, P, d)
    ====================  =====================================  =====================================================

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as in
            :class:`torch.nn.Conv2d`; ``padding`` may also be "dynamic" (TensorFlow's SAME, of zeros).
        head_dim: d; default ``C_in // K`` rounded down to a multiple of 8, at least 8.
        temperature: τ > 0, of gates and positions. It divides λ and α: τ → 0 is a convolution, τ = 1 the paper's layer.
        content: what the content part sees: ``"global"``, every pixel; ``"window:W"``, the W×W window of the padded map
            in which the query lies; ``"pooled:R"``, means on an R×R grid. The last two need memory linear in pixels.
        content_heads: how many heads stand beside those of the taps.
        query_key: how W_qry and W_key are drawn: ``"normal"``, a truncated normal distribution of standard deviation
            0.02; ``"mimetic"``, so that W_qryᵀ W_key ≈ 0.7·Z + 0.7·I as in trained transformers (`mimetic`).
        position: kind of the positional attention (`terms.kinds`); each begins as the convolution.
        position_reach: largest shift in pixels with a relative embedding of its own; default 15, or one more than the
            farthest tap's.

    Input (B, C_in, H, W) or (C_in, H, W), any H and W; output (B, C_out, Ho, Wo) as the convolution's.
    """

    value: nn.Parameter
    attn: AttentionPoint | None
    """Where attention is not fused: what its maps pass through."""
    annealing: Steps | None = None
    """What raises τ in training, if anything does (`tcnn.anneal`)."""

    @typed("content")
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: positions.PaddingMode = "zeros",
        head_dim: int | None = None,
        temperature: float = HARD_TEMPERATURE,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        content: str = "global",
        content_heads: int = 0,
        query_key: QueryKey = "normal",
        position: PositionKind = "isotropic",
        position_reach: int | None = None,
    ) -> None:
        super().__init__()
        at_least(1, in_channels=in_channels, out_channels=out_channels, kernel_size=min(filters.pair(kernel_size)))
        # nn.Conv2d knows how to read and check these arguments; on the meta device it costs nothing.
        conv = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride, 0 if padding == "dynamic" else padding, dilation,
            groups, bias, padding_mode, device="meta",
        )  # fmt: skip
        geometry = filters.geometry_of(conv)
        if padding == "dynamic":
            if padding_mode != "zeros":
                raise UnsupportedLayerError(
                    f"padding_mode: expected 'zeros' with padding 'dynamic', TensorFlow's SAME, got {padding_mode!r}"
                )
            geometry = Geometry(geometry.kernel_size, geometry.stride, geometry.dilation, "dynamic")
        self._build(
            geometry, in_channels, out_channels, groups, bias, head_dim, device, dtype, content, content_heads,
            position, position_reach,
        )  # fmt: skip
        self.reset_parameters(temperature, query_key=query_key)

    def _build(
        self,
        geometry: Geometry,
        in_channels: int,
        out_channels: int,
        groups: int,
        bias: bool,
        head_dim: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        content: str,
        content_heads: int,
        position: PositionKind,
        position_reach: int | None,
    ) -> None:
        at_least(0, content_heads=content_heads)
        at_most(MOST_HEADS, content_heads=content_heads, position_reach=position_reach or 0)
        taps, heads = geometry.heads, geometry.heads + content_heads
        self.scope = scopes.parse(content)
        self.geometry = geometry
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.groups = groups
        self.heads, self.content_heads = heads, content_heads
        self.fused_attn = bool(use_fused_attn())
        self.head_dim = default_head_dim(in_channels, taps) if head_dim is None else head_dim
        at_least(1, head_dim=self.head_dim)

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        self.query = empty(heads * self.head_dim, in_channels)
        self.key = empty(heads * self.head_dim, in_channels)
        self.value = empty(in_channels, in_channels)
        self.proj = empty(out_channels, heads * in_channels // groups)
        self.register_parameter("bias", empty(out_channels) if bias else None)
        self.gating_param = empty(taps)
        self.position = position
        term = kinds.of_convolution(position, geometry, self.head_dim, position_reach)
        self.position_reach = kinds.reach_of(term)
        for name, tensor in kinds.parameters_of(position, term).items():
            self.register_parameter(name, empty(*tensor.shape))
        for name in TEMPERATURES:
            self.register_buffer(name, torch.empty((), device=device, dtype=dtype))
        self._refuse_lost_taps()

    @torch.no_grad()
    def reset_parameters(
        self,
        temperature: float = HARD_TEMPERATURE,
        generator: torch.Generator | None = None,
        query_key: QueryKey = "normal",
    ) -> None:
        """Initialise the parameters: the attention as at conversion, filters and bias as in a new `nn.Conv2d`.

        W_out of content heads is drawn as the filters are.
        """
        self._reset_attention(temperature, generator, query_key)
        bound = self.tap_proj.shape[1] ** -0.5
        for parameter in (self.proj, self.bias):
            if parameter is not None:
                nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def _reset_attention(
        self, temperature: float, generator: torch.Generator | None, query_key: QueryKey = "normal"
    ) -> None:
        self.set_temperature(temperature)
        draw_query_key(self.query, self.key, self.heads, query_key, generator)
        self.value.copy_(torch.eye(self.in_channels, device=self.value.device, dtype=self.value.dtype))
        self.gating_param.fill_(1)
        term = kinds.of_convolution(self.position, self.geometry, self.head_dim, self.position_reach)
        for name, tensor in kinds.parameters_of(self.position, term).items():
            self.get_parameter(name).copy_(tensor)

    @classmethod
    @torch.no_grad()
    @typed("content")
    def from_conv2d(
        cls,
        conv: nn.Conv2d,
        head_dim: int | None = None,
        temperature: float = HARD_TEMPERATURE,
        generator: torch.Generator | None = None,
        content: str = "global",
        content_heads: int = 0,
        query_key: QueryKey = "normal",
        position: PositionKind = "isotropic",
        position_reach: int | None = None,
    ) -> "GPSA2d":
        """Convert a convolution into a layer that computes the same function (at the default temperature).

        Device, dtype, training mode and `requires_grad` (the filter's, and the bias's own) follow the convolution.
        `generator` (CPU) draws query and key. `content` is the scope of content attention, which at the default
        temperature changes nothing. `content_heads` are added to the heads of the taps, with a W_out of zeros.
        `position` is the kind of the positional attention; each is equivalent at the default temperature.
        Raises `UnsupportedLayerError` for a convolution that cannot be reproduced; nothing is approximated.
        """
        layer = cls.__new__(cls)
        FilterInProjection.__init__(layer)
        geometry = filters.geometry_of(conv)
        weight = filters.effective_filter(conv)
        bias = conv.bias
        layer._build(
            geometry, conv.in_channels, conv.out_channels, conv.groups, bias is not None, head_dim,
            weight.device, weight.dtype, content, content_heads, position, position_reach,
        )  # fmt: skip
        layer._reset_attention(temperature, generator, query_key)
        layer.proj.zero_()
        layer.tap_proj.copy_(convolution.proj_of(weight))
        layer.requires_grad_(conv.weight.requires_grad)
        if layer.bias is not None and bias is not None:
            layer.bias.copy_(bias).requires_grad_(bias.requires_grad)
        return layer.train(conv.training)

    @property
    def content(self) -> str:
        """Scope of content attention: `global`, `window:W` or `pooled:R`."""
        return str(self.scope)

    @property
    def fused_attn(self) -> bool:
        """Whether attention is computed in the fastest way, as timm's attention layers have it; see `exposed`."""
        return self.attn is None

    @fused_attn.setter
    def fused_attn(self, fused: bool) -> None:
        self.attn = None if fused else AttentionPoint()

    def forward(self, input: Tensor) -> Tensor:
        annealing = None if torch.compiler.is_compiling() else self.annealing
        if annealing is None or not annealing.entered(self, input):
            return self._attend(input)
        y = self._attend(input)
        annealing.left(y)
        return y

    def _attend(self, input: Tensor) -> Tensor:
        if self.attn is not None:
            refuse_no_tensor(input)
            weights = self.attn(input, self.tensors, self.geometry, self.scope)
            return applied(weights, input, self.tensors, self.geometry)
        return gpsa(input, self.tensors, self.geometry, self.scope, self.known_hard and self.training)

    def attention(self, x: Tensor) -> AttentionMaps:
        """Attention maps on an input (B, C_in, H, W), for inspection: the maps that `forward` applies."""
        check_input(x, self.in_channels, self.geometry)
        factors = self.positional_factors(positions.padded_size(x.shape[-2:], self.geometry), x)
        return reference.maps(AttentionInputs(x, self.geometry, self.scope, factors, self.tensors))

    def extra_repr(self) -> str:
        own = [
            f"bias={self.bias is not None}", f"padding_mode={self.geometry.padding_mode!r}", f"heads={self.heads}",
            f"head_dim={self.head_dim}",
        ]  # fmt: skip
        if self.content_heads:
            own.append(f"content_heads={self.content_heads}")
        if self.position != "isotropic":
            own.append(f"position={self.position!r}")
        return self._describe(*own)
