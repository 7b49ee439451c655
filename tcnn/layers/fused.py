"""A layer prepared for inference: what depends on its parameters alone has been computed, and the parameters are gone.

Shapes: B batch, C channels, G groups, K heads, d head width, h×w map.
"""

from collections.abc import Callable
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from tcnn.errors import RequestError
from tcnn.layers import functional
from tcnn.layers.backends import convolution, dense
from tcnn.layers.base import AttentionLayer
from tcnn.layers.functional import Factors, convolution_and_attention
from tcnn.layers.terms import positions
from tcnn.layers.terms.eager import is_eager
from tcnn.layers.terms.parameters import Parameters, fold_value
from tcnn.layers.terms.positions import Pair
from tcnn.layers.terms.products import Matrix, Packed, pack
from tcnn.layers.terms.scopes import GLOBAL

torch.fx.wrap("convolution_and_attention")

PLACED_ELEMENTS = 2**22
"""Largest positional attention (queries × heads × keys) that is kept for a size of map."""
SIZES = 4
"""Sizes of maps whose positional attention is kept."""
MATRICES = ("query_key", "query", "key", "proj")
POSITIONAL = ("gating_param", "locality_raw", "attention_centers", "gate_temperature", "position_temperature")


class FusedGPSA2d(nn.Module):
    """The function of a `GPSA2d` or `FoldedGPSA2d`, for inference: as a layer of timm after `fuse()`.

    In the hard limit it is a convolution. Elsewhere W_val is part of W_out (with groups only where it is the identity),
    W_qry and W_key are one matrix where they see the same pixels, matrices lie in the order in which the processor
    multiplies by them, and the positional attention of the last few sizes of maps is kept.

    It has no parameters. Its tensors are in the state dict (``kernel``, ``proj``, ``query_key`` …) and nowhere else, so
    nothing that is kept can differ from them. `.train()` is refused; gradients of the input are not.

    Args:
        packed: whether matrices may lie in the processor's own order, of which files know nothing.
    """

    def __init__(self, layer: AttentionLayer, packed: bool = True) -> None:
        super().__init__()
        self.geometry = layer.geometry
        self.scope = layer.scope
        self.in_channels, self.out_channels = layer.in_channels, layer.out_channels
        self.groups = layer.groups
        self._packed = packed
        with torch.inference_mode(False), torch.no_grad():  # gradients of the input may be asked for later
            self.heads, tensors = _prepare(layer)
            self._kept: dict[str, Matrix] = {
                name: self._ordered(name, tensor) for name, tensor in tensors.items() if tensor is not None
            }
        self._placed: dict[tuple[Pair, torch.device], tuple[Factors, Tensor | None]] = {}
        super().train(False)

    @property
    def kernel_size(self) -> Pair:
        """(kh, kw), as `nn.Conv2d` has it."""
        return self.geometry.kernel_size

    @property
    def stride(self) -> Pair:
        """(rows, columns), as `nn.Conv2d` has it."""
        return self.geometry.stride

    @property
    def dilation(self) -> Pair:
        """(rows, columns), as `nn.Conv2d` has it."""
        return self.geometry.dilation

    def forward(self, x: Tensor) -> Tensor:
        kernel, given = self._tensor("kernel"), cast("object", x)  # symbolic tracing gives something else than a tensor
        parameters = self.parameters_of() if "proj" in self._kept else None
        return convolution_and_attention(
            x, self.geometry, self.scope, kernel, self._tensor("value"), self._tensor("bias"), self.groups, parameters,
            None if isinstance(given, Proxy) else self.positional,
        )  # fmt: skip

    def train(self, mode: bool = True) -> Self:
        """Refused with `RequestError`, but for ``train(False)``."""
        if mode:
            raise RequestError(f"{type(self).__name__}: fused for inference; train the model that was fused")
        return super().train(False)

    def positional(self, x: Tensor) -> tuple[Factors, Tensor | None]:
        """The factors of the positional attention for maps of x's size, and `dense.place` of them if it is small."""
        size = x.shape[-2], x.shape[-1]
        if not is_eager(x) or x.is_meta:
            return self._positional(size), None
        found = self._placed.get((size, x.device))
        if found is None:
            with torch.inference_mode(False), torch.no_grad():  # what is kept may be asked for gradients of the input
                factors = self._positional(size)
                found = factors, self._small(factors, size)
            while len(self._placed) >= SIZES:
                self._placed.pop(next(iter(self._placed)))
            self._placed[size, x.device] = found
        return found

    def _positional(self, size: Pair) -> Factors:
        return functional.positional_factors(self.parameters_of(), self._padded(size), self.geometry)

    def _padded(self, size: Pair) -> Pair:
        left, right, top, bottom = positions.padding_of(size, self.geometry)
        return top + size[0] + bottom, left + size[1] + right

    def _small(self, factors: Factors, size: Pair) -> Tensor | None:
        """`dense.place`, where the content part sees the whole map and that is small enough to be kept."""
        rows, columns = dense.inside(factors, size, self.geometry)
        elements = rows.numel() * columns.numel() // max(1, self.heads)
        if elements > PLACED_ELEMENTS or not self.scope.covers(self._padded(size), size):
            return None
        sinks = 0 if positions.zero_padded(self.geometry) else None  # how many has no say here
        return dense.place(dense.Heads(rows, rows, rows, rows, columns, self.parameters_of().gate, sinks)).contiguous()

    def parameters_of(self) -> Parameters:
        """The tensors of the attention; with a convolution beside it the bias is the convolution's."""
        bias = None if "kernel" in self._kept else self._tensor("bias")
        gate, strength, centres, of_gates, of_positions = (self._tensor(name) for name in POSITIONAL)
        return Parameters(
            self._kept.get("query"), self._kept.get("key"), self._tensor("value"), self._kept["proj"], bias,
            gate, strength, centres, of_gates, of_positions, self.heads, self.groups, self._kept.get("query_key"),
        )  # fmt: skip

    def _ordered(self, name: str, tensor: Tensor) -> Matrix:
        """A copy, matrices in the order in which they are multiplied by; that of a grouped projection is its own."""
        is_matrix = self._packed and name in MATRICES and (name != "proj" or self.groups == 1)
        packed = pack(tensor) if is_matrix else tensor
        return packed if isinstance(packed, Packed) else tensor.clone()

    def _tensor(self, name: str) -> Tensor | None:
        found = self._kept.get(name)
        return found.plain() if isinstance(found, Packed) else found

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As every module's: moves and casts the tensors, which are put in order again."""
        self._kept = {name: self._ordered(name, fn(_plain(matrix))) for name, matrix in self._kept.items()}
        self._placed.clear()
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update({prefix + name: _plain(matrix) for name, matrix in self._kept.items()})

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        for name, matrix in self._kept.items():
            given = state_dict.get(prefix + name)
            if given is None:
                missing_keys.append(prefix + name)
            elif given.shape != matrix.shape:
                error_msgs.append(f"{prefix}{name}: expected {tuple(matrix.shape)}, found {tuple(given.shape)}")
            else:
                was = _plain(matrix)
                self._kept[name] = self._ordered(name, given.detach().to(was.device, was.dtype, copy=True))
        self._placed.clear()
        own = {prefix + name for name in self._kept}
        unexpected_keys += [k for k in state_dict if k.startswith(prefix) and k not in own]

    def extra_repr(self) -> str:
        g = self.geometry
        what = f"heads={self.heads}" if "proj" in self._kept else "convolution"
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={g.kernel_size}, stride={g.stride}, "
            f"padding={g.padding}, dilation={g.dilation}, groups={self.groups}, {what}, for inference only"
            + ("" if self.scope == GLOBAL else f", content={str(self.scope)!r}")
        )


def _prepare(layer: AttentionLayer) -> tuple[int, dict[str, Tensor | None]]:
    """How many heads attend, and what the function of a layer needs, by name; every matrix as it is multiplied by."""
    kernel: Tensor | None = getattr(layer, "weight", None)
    if not layer.heads:
        return 0, {"kernel": kernel, "value": layer.value, "bias": layer.bias}
    parameters = fold_value(layer.tensors)
    if kernel is None and convolution.is_hard(parameters, layer.geometry):
        kernel = convolution.filter_of(parameters.positional.plain_proj, layer.geometry)
        if not parameters.content_heads:
            return 0, {"kernel": kernel, "value": parameters.value, "bias": layer.bias}
        parameters = parameters.content
    together, alone = dense.asks_every_pixel(layer.geometry), layer.scope == GLOBAL
    return parameters.heads, {
        "kernel": kernel,
        "value": parameters.value,
        "bias": layer.bias,
        "query_key": dense.both_of(parameters) if together else None,
        "query": None if together and alone else cast("Tensor", parameters.query),
        "key": None if together and alone else cast("Tensor", parameters.key),
        "proj": parameters.plain_proj,
        **{name: getattr(parameters, name) for name in POSITIONAL},
    }


def _plain(matrix: Matrix) -> Tensor:
    return matrix.plain() if isinstance(matrix, Packed) else matrix
