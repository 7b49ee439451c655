"""Folded GPSA layer: some heads are one convolution, the others remain attention; the same function at less cost.

Shapes: B batch, C channels, H×W padded map, M queries, N keys, K heads of the GPSA layer, n ≤ K heads that remain,
a ≤ n of them with a positional part, d head width, G groups.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tcnn.config import PositionKind
from tcnn.errors import UnsupportedLayerError
from tcnn.layers.base import TEMPERATURES, AttentionLayer
from tcnn.layers.functional import convolution_and_attention
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.shards import is_sharded
from tcnn.layers.terms import kinds as terms
from tcnn.layers.terms import scopes
from tcnn.layers.terms.parameters import is_identity
from tcnn.layers.terms.positions import Geometry

torch.fx.wrap("convolution_and_attention")

HeadKind = Literal["convolution", "content", "attention", "dropped"]
"""What a head becomes when a layer is folded: a convolution's tap, content attention alone, full attention, or nothing.
"""


def keeps_value(layer: GPSA2d) -> bool:
    """Whether W_val cannot be folded: it mixes channels of groups that the grouped filter keeps apart."""
    return layer.groups > 1 and not is_identity(layer.value)


def fold_value_into_taps(layer: GPSA2d) -> Tensor:
    """W_out^h of every head with W_val multiplied into it where possible, (K, C_out, C_in/G), in the layer's dtype.

    A head computes A_h X W_val W_out^h, so the two matrices are one product, computed in float64 and rounded once. With
    groups the product would be dense, G times the work; then W_val stays a 1×1 convolution before the taps, which is as
    exact, padding included, since it has no bias and acts on one pixel at a time.
    """
    taps = layer.proj.detach().unflatten(1, (layer.heads, -1)).transpose(0, 1)
    if layer.groups > 1 or is_identity(layer.value):
        return taps  # not even a zero changes its sign
    return (taps.double() @ layer.value.detach().double()).to(taps.dtype)


def convolution_filter(layer: GPSA2d, targets: Sequence[int | None]) -> Tensor:
    """The convolution filter of the heads that are folded into taps, (C_out, C_in/G, kh, kw).

    Args:
        targets: the tap of every head, row-major over the kernel, or None. Two heads may share a tap.
    """
    taps = fold_value_into_taps(layer)
    found = taps.new_zeros(layer.geometry.heads, *taps.shape[1:])
    taken: set[int] = set()
    for head, tap in enumerate(targets):
        if tap is not None:
            found[tap] = found[tap] + taps[head] if tap in taken else taps[head]
            taken.add(tap)
    return found.permute(1, 2, 0).unflatten(2, layer.geometry.kernel_size).contiguous()


class FoldedGPSA2d(AttentionLayer):
    r"""Convolution plus attention: a `GPSA2d` whose convolutional heads were folded into one filter.

    .. math::
        Y = b + w * X + \sum_{h ≤ n} A_h X W_{out}^h

    with :math:`A_h` as in `GPSA2d` for the first a heads and :math:`A_h = softmax_k(Q_h K_h^⊤/\sqrt d)` for the others.
    W_val is part of the filter w and of W_out; only with groups it stays (``value``), and then X is X W_val.

    =========================================================  =======================================================
    ``weight``                                                 w, (C_out, C_in/G, kh, kw), or None
    ``query``, ``key``                                         (n·d, C_in), or None if n = 0
    ``proj``                                                   W_out, (C_out, n·C_in/G), or None if n = 0
    ``value``                                                  W_val, (C_in, C_in), or None
    ``gating_param``, ``locality_raw``, ``attention_centers``  λ (a,), softplus⁻¹ of α (a,), Δ (a, 2); None if a = 0;
                                                               other names for other kinds of ``position``
    ``gate_temperature``, ``position_temperature``             τ, two buffers, or None if a = 0
    =========================================================  =======================================================

    Args:
        kinds: what every head of the GPSA layer became; the parameters keep the order of the heads, those with a
            positional part first.
        value: whether the layer keeps a W_val.
        content: scope of content attention, as for `GPSA2d`.
        position, position_reach: of the positional attention, as for `GPSA2d`.

    Input and output as `GPSA2d`'s. Create it with `from_gpsa2d`; the constructor leaves its parameters uninitialised.
    """

    weight: nn.Parameter | None
    _is_loading: bool = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        geometry: Geometry,
        groups: int,
        bias: bool,
        head_dim: int,
        kinds: Sequence[HeadKind],
        value: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        content: str = "global",
        position: PositionKind = "isotropic",
        position_reach: int | None = None,
    ) -> None:
        super().__init__()
        self.geometry = geometry
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.groups = groups
        self.head_dim = head_dim
        self.kinds = tuple(kinds)
        self.scope = scopes.parse(content)
        self.positional_heads = self.kinds.count("attention")
        self.content_heads = self.kinds.count("content")
        self.heads = heads = self.positional_heads + self.content_heads
        convolves = "convolution" in self.kinds or not heads

        def parameter(name: str, there: bool, *shape: int) -> None:
            empty = nn.Parameter(torch.empty(*shape, device=device, dtype=dtype)) if there else None
            self.register_parameter(name, empty)

        parameter("weight", convolves, out_channels, in_channels // groups, *geometry.kernel_size)
        parameter("bias", bias, out_channels)
        parameter("value", value, in_channels, in_channels)
        parameter("query", heads > 0, heads * head_dim, in_channels)
        parameter("key", heads > 0, heads * head_dim, in_channels)
        parameter("proj", heads > 0, out_channels, heads * in_channels // groups)
        parameter("gating_param", self.positional_heads > 0, self.positional_heads)
        self.position, self.position_reach = position, position_reach
        whole = terms.of_convolution(position, geometry, head_dim, position_reach)
        shapes = terms.parameters_of(position, whole.take(range(self.positional_heads)))
        for name, tensor in shapes.items():
            parameter(name, self.positional_heads > 0, *tensor.shape)
        for name in TEMPERATURES:
            empty = torch.empty((), device=device, dtype=dtype) if self.positional_heads else None
            self.register_buffer(name, empty)

    @classmethod
    @torch.no_grad()
    def from_gpsa2d(cls, layer: GPSA2d, kinds: Sequence[HeadKind], targets: Sequence[int | None]) -> "FoldedGPSA2d":
        """Fold the heads of a `GPSA2d` as `kinds` says.

        Args:
            targets: the tap of every head of kind "convolution", row-major over the kernel.
        """
        folded = cls(
            layer.in_channels, layer.out_channels, layer.geometry, layer.groups, layer.bias is not None, layer.head_dim,
            kinds, keeps_value(layer), layer.proj.device, layer.proj.dtype, layer.content, layer.position,
            layer.position_reach,
        )  # fmt: skip
        positional = [head for head, kind in enumerate(kinds) if kind == "attention"]
        term = layer.positional_term
        assert term is not None  # noqa: S101 - a whole layer has its taps
        remaining = positional + [head for head, kind in enumerate(kinds) if kind == "content"]
        own: dict[str, Tensor | None] = {
            "bias": layer.bias,
            "value": layer.value,
            "weight": convolution_filter(
                layer, [tap if kind == "convolution" else None for tap, kind in zip(targets, kinds, strict=True)]
            ),
            "query": layer.query.unflatten(0, (layer.heads, -1))[remaining].flatten(0, 1),
            "key": layer.key.unflatten(0, (layer.heads, -1))[remaining].flatten(0, 1),
            "proj": fold_value_into_taps(layer)[remaining].transpose(0, 1).flatten(1),
            "gating_param": layer.gating_param[positional],
            **terms.parameters_of(layer.position, term.take(positional)),
            **{name: getattr(layer, name) for name in TEMPERATURES},
        }
        for name, tensor in (*folded.named_parameters(), *folded.named_buffers()):
            given = own[name]
            assert given is not None  # noqa: S101 - a bias is there in both or in neither
            tensor.copy_(given)
        trainable = any(parameter.requires_grad for parameter in layer.parameters())
        return folded.requires_grad_(trainable).train(layer.training)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As `nn.Module`; raises `UnsupportedLayerError` for another ``weight`` beside heads that attend.

        What merges a batch norm into a convolution sets it, and would scale the output of some heads alone.
        """
        there = name == "weight" and self._parameters.get(name) is not None
        if there and self.heads and not self._is_loading and not (param is not None and is_sharded(param)):
            raise UnsupportedLayerError(
                f"FoldedGPSA2d: its weight is the filter of some heads only, and {self.heads} more attend, with "
                "filters in `proj`; change both in place, or leave a batch norm beside the layer"
            )
        super().register_parameter(name, param)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._is_loading = True  # with ``assign=True`` that sets all parameters
        try:
            super()._load_from_state_dict(*args, **kwargs)
        finally:
            self._is_loading = False

    def forward(self, input: Tensor) -> Tensor:
        tensors = replace(self.tensors, bias=None if self.weight is not None else self.bias) if self.heads else None
        return convolution_and_attention(
            input, self.geometry, self.scope, self.weight, self.value, self.bias, self.groups, tensors
        )

    def extra_repr(self) -> str:
        counts = (f"{kind}={self.kinds.count(kind)}" for kind in dict.fromkeys(self.kinds))
        return self._describe(f"bias={self.bias is not None}", *counts)
