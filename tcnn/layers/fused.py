"""GPSA layer fused for inference: products of its parameters are precomputed and the parameters are dropped.

Shapes: B batch, C channels, G groups, K heads, d head width, h×w map.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor
from torch.fx import Proxy, Tracer

from tcnn.errors import RequestError, UnsupportedLayerError
from tcnn.layers import functional
from tcnn.layers.backends import convolution, dense
from tcnn.layers.base import AttentionLayer
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.functional import convolution_and_attention
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.shaped import ConvolutionShaped
from tcnn.layers.terms import kinds, positions
from tcnn.layers.terms.execution import is_eager
from tcnn.layers.terms.parameters import Parameters, fold_value, is_identity
from tcnn.layers.terms.positions import Factors, Pair
from tcnn.layers.terms.products import Packed, pack
from tcnn.layers.terms.scopes import GLOBAL

MAX_CACHED_ELEMENTS = 2**22
"""Largest positional attention map (elements: queries × heads × keys) that is cached for one map size."""
MAX_CACHED_SIZES = 4
"""Number of map sizes whose positional attention is cached."""
MATRICES = ("query_key", "query", "key", "proj")
GATING = ("gating_param", "gate_temperature", "position_temperature")


@dataclass(frozen=True)
class _Derived:
    """What is computed of the layer's tensors and kept while they are the same."""

    sources: tuple[tuple[weakref.ref[Tensor], int], ...] = ()
    """The tensors, and how often each had been written."""
    packed: dict[str, Packed] = field(default_factory=dict)
    """Matrices in the processor's layout, by name."""
    positional: dict[tuple[Pair, torch.device], tuple[Factors, Tensor | None]] = field(default_factory=dict)
    """By map size; replaced and never written, for another thread may be reading it."""

    def is_of(self, tensors: list[Tensor]) -> bool:
        """Whether it was computed of these tensors, as they are now."""
        return len(tensors) == len(self.sources) and all(
            source() is tensor and version == tensor._version
            for tensor, (source, version) in zip(tensors, self.sources, strict=True)
        )


class FusedGPSA2d(ConvolutionShaped):
    """`GPSA2d` or `FoldedGPSA2d` fused for inference, like a timm layer after `fuse()`.

    In the hard limit it is a convolution. Otherwise W_val is multiplied into W_out (with groups only where it is the
    identity), W_qry and W_key are one matrix where queries and keys are the same pixels, matrices are in the
    processor's blocked layout (oneDNN), and the positional attention of the last few map sizes is cached.

    Where W_val was multiplied into W_out, W_out of the taps is kept beside the product, as ``filter``, for models that
    read their convolutions' ``weight``. It takes as much memory as the product.

    It has no parameters. Its tensors (``kernel``, ``proj``, ``query_key`` …) are buffers, which may be loaded, written,
    moved, averaged or substituted (`torch.func`) like any others: what is derived of them is derived anew when one has
    changed, and is not kept at all where that could not be seen. `.train()` raises `RequestError`; gradients of the
    input are supported.

    Args:
        packed: whether matrices may be kept in the processor's layout beside, which is never written to files.
    """

    proj: Tensor
    _filter_in: Literal["kernel", "proj", "filter"] = "filter"
    """The buffer with the values of the unfused layer's ``weight``."""

    def __init__(self, layer: AttentionLayer, packed: bool = True) -> None:
        super().__init__()
        self.geometry = layer.geometry
        self.scope = layer.scope
        self.in_channels, self.out_channels = layer.in_channels, layer.out_channels
        self.groups = layer.groups
        self.position = layer.position
        self._packed = packed
        with torch.inference_mode(False), torch.no_grad():  # gradients of the input may be asked for later
            self.heads, tensors = _prepare(layer)
            self._filter_in = _where_filter_is(layer, tensors)
            if self._filter_in == "filter":
                tensors["filter"] = cast("GPSA2d", layer).filter.contiguous()
            for name, tensor in tensors.items():
                if tensor is not None or name == "bias":  # which models read from their convolutions
                    self.register_buffer(name, None if tensor is None else tensor.detach().clone())
        self._derived = _Derived()
        super().train(False)

    @property
    def weight(self) -> Tensor | None:
        """The unfused layer's ``weight``, (C_out, C_in/G, kh, kw), for models that read it from their convolutions.

        Raises `UnsupportedLayerError` where it was lost in the product of W_out and W_val: see ``filter``.
        """
        if self._filter_in == "proj":
            taps = self.geometry.heads * (self.in_channels // self.groups)
            return convolution.filter_of(self.proj[:, :taps], self.geometry)
        found = self._tensor(self._filter_in)
        if found is None and self._filter_in == "filter":
            raise UnsupportedLayerError(
                f"{type(self).__name__}: the model reads its weight, which layers fused by older versions of tcnn have "
                "not kept; fuse the model again"
            )
        return found

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        whole = f"{prefix}kernel" in state_dict or f"{prefix}proj" in state_dict
        if whole and self._tensor("filter") is not None and f"{prefix}filter" not in state_dict:
            self.register_buffer("filter", None)  # a state of an older version, of whose filter nothing is known
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def forward(self, input: Tensor) -> Tensor:
        given: object = input
        if isinstance(given, Proxy):
            return cast("Tensor", self._traced(given))
        parameters, positional = None, None
        if "proj" in self._buffers:
            derived = self._up_to_date(input)
            parameters = self.attention_parameters(derived)
            if derived is not None and not input.is_meta and self.position != "relative-content":
                positional = partial(self.positional, derived=derived)
        return convolution_and_attention(
            input, self.geometry, self.scope, self._tensor("kernel"), self._tensor("value"), self._tensor("bias"),
            self.groups, parameters, positional,
        )  # fmt: skip

    @property
    def _itself(self) -> Self:
        return self

    def _traced(self, input: Proxy) -> Proxy:
        """A call of this module in the graph of `torch.fx`, in anybody's tracer.

        Tensors given to a call of a function would become constants of the graph, which cannot be moved, nor copied
        where they are opaque.
        """
        tracer = cast("Tracer", input.tracer)
        # Of a layer traced alone, which is the root, the path is empty.
        return tracer.create_proxy("call_module", tracer.path_of_module(self) or "_itself", (input,), {})

    def train(self, mode: bool = True) -> Self:
        """Raise `RequestError`, except for ``train(False)``: a fused layer cannot be trained.

        By ``eval()`` all that is kept is forgotten: after writes that leave no trace in a tensor (`torch.distributed`,
        ``.data``, shared memory).
        """
        if mode:
            raise RequestError(f"{type(self).__name__}: fused for inference; train the model that was fused")
        self._derived = _Derived()
        return super().train(False)

    def positional(self, x: Tensor, derived: _Derived) -> tuple[Factors, Tensor | None]:
        """Positional factors for maps of x's size, from the cache, and `dense.gated_positional` if that is small."""
        size = x.shape[-2], x.shape[-1]
        found = derived.positional.get((size, x.device))
        if found is None:
            with torch.inference_mode(False), torch.no_grad():  # what is kept may be asked for gradients of the input
                padded = positions.padded_size(size, self.geometry)
                factors = functional.positional_factors(self.attention_parameters(derived), padded, self.geometry)
                found = factors, self._gated_positional(factors, size)
            kept = [*derived.positional.items()][1 - MAX_CACHED_SIZES :]
            self._derived = replace(derived, positional={**dict(kept), (size, x.device): found})
        return found

    def _gated_positional(self, factors: Factors, size: Pair) -> Tensor | None:
        """`dense.gated_positional`, if content attention is global and the result is small enough to cache."""
        rows, columns = dense.crop_factors(factors, size, self.geometry)
        elements = rows.numel() * (1 if columns is None else columns.numel() // max(1, self.heads))
        if elements > MAX_CACHED_ELEMENTS or not self.scope.covers(positions.padded_size(size, self.geometry), size):
            return None
        sinks = 0 if positions.zero_padded(self.geometry) else None  # their number has no influence here
        heads = dense.Heads(rows, rows, rows, rows, columns, self.attention_parameters(None).gate, sinks)
        return dense.gated_positional(heads).contiguous()

    def attention_parameters(self, derived: _Derived | None) -> Parameters:
        """The tensors of the attention as `Parameters`; if there is a convolution, the bias is the convolution's."""
        packed = {} if derived is None else derived.packed
        query, key, both = (packed.get(name) or self._tensor(name) for name in ("query", "key", "query_key"))
        bias = None if "kernel" in self._buffers else self._tensor("bias")
        gate, of_gates, of_positions = (self._tensor(name) for name in GATING)
        position = kinds.position_of(self.position, [self._tensor(name) for name in kinds.NAMES[self.position]])
        return Parameters(
            query, key, self._tensor("value"), packed.get("proj") or self.proj, bias, gate, position, of_gates,
            of_positions, self.heads, self.groups, both,
        )  # fmt: skip

    def _up_to_date(self, x: Tensor) -> _Derived | None:
        """What is derived of the tensors as they are now; None where it cannot be kept.

        That is where a tracer or a transform is active, gradients of the tensors are asked for, or writing them leaves
        no trace (inference tensors).
        """
        tensors = [tensor for tensor in self._buffers.values() if tensor is not None]
        if not is_eager(x, *tensors) or any(one.requires_grad or one.is_inference() for one in tensors):
            return None
        derived = self._derived
        if not derived.is_of(tensors):
            sources = tuple((weakref.ref(tensor), tensor._version) for tensor in tensors)
            with torch.inference_mode(False), torch.no_grad():
                derived = self._derived = _Derived(sources, self._pack())
        return derived

    def _pack(self) -> dict[str, Packed]:
        """The matrices that the processor has a layout for, except a grouped projection."""
        names = [name for name in MATRICES if self._packed and (name != "proj" or self.groups == 1)]
        made = {name: pack(tensor) for name in names if (tensor := self._tensor(name)) is not None}
        return {name: matrix for name, matrix in made.items() if isinstance(matrix, Packed)}

    def _tensor(self, name: str) -> Tensor | None:
        return self._buffers.get(name)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with torch.inference_mode(False):  # of inference tensors nothing could be kept
            return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_derived": _Derived()}  # of a copy's own tensors

    def extra_repr(self) -> str:
        function = f"heads={self.heads}" if "proj" in self._buffers else "convolution"
        return self._describe(function, "for inference only")


def _where_filter_is(layer: AttentionLayer, tensors: dict[str, Tensor | None]) -> Literal["kernel", "proj", "filter"]:
    """Which of the tensors of a fused layer holds the filter of the layer, if one of them does."""
    if isinstance(layer, FoldedGPSA2d):
        return "kernel"
    if layer.groups == 1 and layer.value is not None and not is_identity(layer.value):
        return "filter"
    return "proj" if tensors["kernel"] is None else "kernel"


def _prepare(layer: AttentionLayer) -> tuple[int, dict[str, Tensor | None]]:
    """The number of attention heads, and the tensors that the function of a layer needs, by name."""
    kernel: Tensor | None = layer.weight if isinstance(layer, FoldedGPSA2d) else None
    if not layer.heads:
        return 0, {"kernel": kernel, "value": layer.value, "bias": layer.bias}
    parameters = fold_value(layer.tensors)
    if kernel is None and convolution.is_hard(parameters, layer.geometry):
        kernel = convolution.filter_of(parameters.positional.plain_proj, layer.geometry).contiguous()
        if not parameters.content_heads:
            return 0, {"kernel": kernel, "value": parameters.value, "bias": layer.bias}
        parameters = parameters.content
    together = dense.queries_are_keys(layer.geometry)
    alone = layer.scope == GLOBAL and not functional.depend_on_content(parameters)
    return parameters.heads, {
        "kernel": kernel,
        "value": parameters.value,
        "bias": layer.bias,
        "query_key": dense.stack_query_key(parameters) if together else None,
        "query": None if together and alone else cast("Tensor", parameters.query),
        "key": None if together and alone else cast("Tensor", parameters.key),
        "proj": parameters.plain_proj,
        **{name: getattr(parameters, name) for name in GATING},
        **kinds.parameters_of(layer.position, parameters.position),
    }
