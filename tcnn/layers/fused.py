"""GPSA layer fused for inference: products of its parameters are precomputed and the parameters are dropped.

Shapes: B batch, C channels, G groups, K heads, d head width, h×w map.
"""

from collections.abc import Callable
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.fx import Proxy, Tracer

from tcnn.errors import RequestError
from tcnn.layers import functional
from tcnn.layers.backends import convolution, dense
from tcnn.layers.base import AttentionLayer, ConvolutionShaped
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.functional import convolution_and_attention
from tcnn.layers.terms import kinds, positions
from tcnn.layers.terms.execution import is_eager
from tcnn.layers.terms.parameters import Parameters, fold_value, is_identity
from tcnn.layers.terms.positions import Factors, Pair
from tcnn.layers.terms.products import Matrix, Packed, pack
from tcnn.layers.terms.scopes import GLOBAL

MAX_CACHED_ELEMENTS = 2**22
"""Largest positional attention map (elements: queries × heads × keys) that is cached for one map size."""
MAX_CACHED_SIZES = 4
"""Number of map sizes whose positional attention is cached."""
MATRICES = ("query_key", "query", "key", "proj")
GATING = ("gating_param", "gate_temperature", "position_temperature")


class FusedGPSA2d(ConvolutionShaped):
    """`GPSA2d` or `FoldedGPSA2d` fused for inference, like a timm layer after `fuse()`.

    In the hard limit it is a convolution. Otherwise W_val is multiplied into W_out (with groups only where it is the
    identity), W_qry and W_key are one matrix where queries and keys are the same pixels, matrices are in the
    processor's blocked layout (oneDNN), and the positional attention of the last few map sizes is cached.

    It has no parameters. Its tensors are in the state dict (``kernel``, ``proj``, ``query_key`` …) and nowhere else, so
    cached values cannot differ from them. `.train()` raises `RequestError`; gradients of the input are supported.

    Args:
        packed: whether matrices may be stored in the processor's layout, which is never written to files.
    """

    def __init__(self, layer: AttentionLayer, packed: bool = True) -> None:
        super().__init__()
        self.geometry = layer.geometry
        self.scope = layer.scope
        self.in_channels, self.out_channels = layer.in_channels, layer.out_channels
        self.groups = layer.groups
        self.position = layer.position
        self._packed = packed
        self._keeps_filter = isinstance(layer, FoldedGPSA2d) or layer.value is None or is_identity(layer.value)
        with torch.inference_mode(False), torch.no_grad():  # gradients of the input may be asked for later
            self.heads, tensors = _prepare(layer)
            self._tensors: dict[str, Matrix] = {
                name: self._packed_copy(name, tensor) for name, tensor in tensors.items() if tensor is not None
            }
        self._positional_cache: dict[tuple[Pair, torch.device], tuple[Factors, Tensor | None]] = {}
        super().train(False)

    @property
    def weight(self) -> Tensor:
        """The filter, (C_out, C_in/G, kh, kw), for models that ask their convolutions for its dtype or shape.

        Its values are NaN, which take no memory, where they were lost in the product of W_out and W_val.
        """
        kernel, proj = self._tensor("kernel"), self._tensors.get("proj")
        if kernel is not None and self._keeps_filter:
            return kernel
        like = next(
            (one for one in (kernel, proj) if isinstance(one, Tensor)),
            torch.empty((), dtype=torch.float32, device="cpu"),
        )
        shape = self.out_channels, self.in_channels // self.groups, *self.kernel_size
        return torch.full((), torch.nan, dtype=like.dtype, device=like.device).expand(shape)

    def forward(self, input: Tensor) -> Tensor:
        given: object = input
        if isinstance(given, Proxy):
            return cast("Tensor", self._traced(given))
        parameters = self.attention_parameters() if "proj" in self._tensors else None
        return convolution_and_attention(
            input, self.geometry, self.scope, self._tensor("kernel"), self._tensor("value"), self._tensor("bias"),
            self.groups, parameters, self.positional,
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
        """Raise `RequestError`, except for ``train(False)``: a fused layer cannot be trained."""
        if mode:
            raise RequestError(f"{type(self).__name__}: fused for inference; train the model that was fused")
        return super().train(False)

    def positional(self, x: Tensor) -> tuple[Factors, Tensor | None]:
        """Positional factors for maps of x's size, from the cache, and `dense.gated_positional` if that is small."""
        size = x.shape[-2], x.shape[-1]
        if not is_eager(x) or x.is_meta or self.position == "relative-content":
            return self._positional(size, x), None
        found = self._positional_cache.get((size, x.device))
        if found is None:
            with torch.inference_mode(False), torch.no_grad():  # what is kept may be asked for gradients of the input
                factors = self._positional(size)
                found = factors, self._gated_positional(factors, size)
            # A dict in the place of the old one, which another thread may be reading.
            kept = [*self._positional_cache.items()][1 - MAX_CACHED_SIZES :]
            self._positional_cache = {**dict(kept), (size, x.device): found}
        return found

    def _positional(self, size: Pair, x: Tensor | None = None) -> Factors:
        padded = positions.padded_size(size, self.geometry)
        return functional.positional_factors(self.attention_parameters(), padded, self.geometry, x)

    def _gated_positional(self, factors: Factors, size: Pair) -> Tensor | None:
        """`dense.gated_positional`, if content attention is global and the result is small enough to cache."""
        rows, columns = dense.crop_factors(factors, size, self.geometry)
        elements = rows.numel() * (1 if columns is None else columns.numel() // max(1, self.heads))
        if elements > MAX_CACHED_ELEMENTS or not self.scope.covers(positions.padded_size(size, self.geometry), size):
            return None
        sinks = 0 if positions.zero_padded(self.geometry) else None  # their number has no influence here
        heads = dense.Heads(rows, rows, rows, rows, columns, self.attention_parameters().gate, sinks)
        return dense.gated_positional(heads).contiguous()

    def attention_parameters(self) -> Parameters:
        """The tensors of the attention as `Parameters`; if there is a convolution, the bias is the convolution's."""
        bias = None if "kernel" in self._tensors else self._tensor("bias")
        gate, of_gates, of_positions = (self._tensor(name) for name in GATING)
        position = kinds.position_of(self.position, [self._tensor(name) for name in kinds.NAMES[self.position]])
        return Parameters(
            self._tensors.get("query"), self._tensors.get("key"), self._tensor("value"), self._tensors["proj"], bias,
            gate, position, of_gates, of_positions, self.heads, self.groups, self._tensors.get("query_key"),
        )  # fmt: skip

    def _packed_copy(self, name: str, tensor: Tensor) -> Matrix:
        """A copy of a tensor; matrices are packed into the processor's layout, except a grouped projection."""
        is_matrix = self._packed and name in MATRICES and (name != "proj" or self.groups == 1)
        packed = pack(tensor) if is_matrix else tensor
        return packed if isinstance(packed, Packed) else tensor.clone()

    def _tensor(self, name: str) -> Tensor | None:
        found = self._tensors.get(name)
        return found.plain() if isinstance(found, Packed) else found

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or cast the tensors, as `nn.Module._apply` does, and pack them again."""
        self._tensors = {name: self._packed_copy(name, fn(_unpacked(matrix))) for name, matrix in self._tensors.items()}
        self._positional_cache = {}
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update({prefix + name: _unpacked(matrix) for name, matrix in self._tensors.items()})

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        for name, matrix in self._tensors.items():
            given = state_dict.get(prefix + name)
            if given is None:
                missing_keys.append(prefix + name)
            elif given.shape != matrix.shape:
                error_msgs.append(f"{prefix}{name}: expected {tuple(matrix.shape)}, found {tuple(given.shape)}")
            else:
                was = _unpacked(matrix)
                self._tensors[name] = self._packed_copy(name, given.detach().to(was.device, was.dtype, copy=True))
        self._positional_cache = {}
        own = {prefix + name for name in self._tensors}
        unexpected_keys += [k for k in state_dict if k.startswith(prefix) and k not in own]

    def extra_repr(self) -> str:
        function = f"heads={self.heads}" if "proj" in self._tensors else "convolution"
        return self._describe(function, "for inference only")


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


def _unpacked(matrix: Matrix) -> Tensor:
    return matrix.plain() if isinstance(matrix, Packed) else matrix
