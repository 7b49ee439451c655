"""Whether every s-th pixel of a dilated CNN's maps is a pixel of its source's, by numbers, whatever the cause.

Layers that are not known (`nn.Upsample`, `nn.PixelShuffle`) and functions that a forward pass calls (`F.avg_pool2d` of
three pixels, `F.interpolate`) may mix the pixels between the old ones into these. So both CNNs are run on one small
image, and all maps are compared with the source's: where one has grown, its pixels of the old map, else all.

Only operations on the whole map (squeeze-and-excitation, group normalisation, the final mean) may see more of it. So
that they give the same nevertheless, a layer's output is replaced by noise once it is compared: in the dilated CNN by
the source's noise on the old pixels, and by the same in another order on those between. Means, variances and maxima are
then the source's. Weights are noise, too: neither branches whose scale is 0 nor models without values, or whose values
take much memory, stand in the way.

What has changed its shape otherwise ends the comparison, and is refused. Only along an axis of all pixels of a map,
which attention has, may there be as many as in the grown map.

Shapes: B images (one), C channels, h×w the source's map, H×W the dilated CNN's.
"""

import math
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from tcnn.conversion.strides.noise import between, drawn, grown, unfolded, weights
from tcnn.layers.terms.positions import Pair
from tcnn.models.outputs import tensors
from tcnn.models.precision import exact_arithmetic
from tcnn.models.state import same_start

TOLERANCE = 1e-3
"""Relative difference, in float32, up to which two maps differ by rounding; a tenth is little for mixed pixels."""
PASSING = (nn.Identity, nn.modules.dropout._DropoutNd)
"""Layers that return what they get, which attention has on what is no map, too."""


class Place(NamedTuple):
    """Where in a forward pass a map was seen: at a layer's input or output, or as an output of the model (no name)."""

    name: str
    input: bool


class _NotComparable(Exception):
    """Nothing that runs from this place on can be compared."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.place = place


def misplaced(
    source: nn.Module, dilated: nn.Module, factors: AbstractSet[Pair], shape: tuple[int, ...]
) -> Place | None:
    """The first place where the pixels of the old map are not what they were; None if there is none.

    Args:
        source, dilated: in evaluation mode, without data (`meta_copy`).
        factors: by how much a map may have grown, along rows and columns.
        shape: of the image, (C, H, W).

    Raises: what a model raises on an image of this shape.
    """
    # Whatever is set around: with values, on the CPU, in float32.
    with unset_fake_temporarily(), torch.device("cpu"), exact_arithmetic(), torch.autocast("cpu", enabled=False):
        return _first_misplaced(source, dilated, factors, shape)


def _first_misplaced(
    source: nn.Module, dilated: nn.Module, factors: AbstractSet[Pair], shape: tuple[int, ...]
) -> Place | None:
    """`misplaced`, where all that counts is set."""
    old = _Run(source, 0)
    old.look(shape)
    new = _Run(dilated, 1, old, factors)
    new.look(shape)
    found = _differences(old, new)
    if found and not new.whole:
        # Where the map's end cuts pixels off, its mean is another. What the old pixels give by themselves does not
        # depend on the order of those between.
        other = _Run(dilated, 2, old, factors)
        other.look(shape)
        found &= _differences(new, other)
    return new.seen[min(found)][0] if found else new.misfit


class _Run:
    """One forward pass with noise for every layer's output.

    Args:
        order: of the pixels between the old ones. old: the source's pass. factors: as in `misplaced`.
    """

    def __init__(
        self, model: nn.Module, order: int, old: "_Run | None" = None, factors: AbstractSet[Pair] = frozenset()
    ) -> None:
        self.model, self.order, self.old, self.factors = model, order, old, factors
        self.seen: list[tuple[Place, list[Tensor]]] = []
        """Maps, (B, C, h, w) or (B, h, w, C); of a dilated CNN the old pixels; nothing of attention between them."""
        self.whole = True
        """Whether every grown map has all pixels between the old ones."""
        self.misfit: Place | None = None
        """Where a map has changed its shape by other factors, if one has."""
        self._grown: dict[Pair, tuple[Pair, Pair, Pair]] = {}
        """Old and new height and width, and the factors, of the grown maps, by their old and new numbers of pixels."""
        self.layers: list[str] = [name for name, one in model.named_modules() if _is_layer(one)]
        """Those whose outputs are noise; a layer in the place of another may have several in it."""
        if old is not None:
            self.layers = old.layers

    @torch.no_grad()
    def look(self, shape: tuple[int, ...]) -> None:
        """Run the model on noise of this shape."""
        image = drawn((1, *shape), 0, "image")
        try:
            with self._hooked(), same_start(self.model):
                output = functional_call(self.model, weights(self.model), (image,))
            self._see(Place("", input=False), output)
        except _NotComparable as end:
            self.misfit = end.place

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        handles = []
        for name in self.layers:
            layer = self.model.get_submodule(name)

            def before(_: nn.Module, args: Any, named: Any, name: str = name) -> None:
                self._see(Place(name, input=True), (args, named))

            def after(layer: nn.Module, args: Any, output: Any, name: str = name) -> Any:
                return self._after(name, layer, output)

            handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(layer.register_forward_hook(after))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _see(self, place: Place, value: Any) -> None:
        """Keep the maps in an input or output."""
        found = [leaf for leaf in (*tree_leaves(value), *tensors(value)) if isinstance(leaf, Tensor)]
        maps = [leaf for leaf in dict.fromkeys(found) if _is_map(leaf)]
        if self.old is None:
            self.seen.append((place, [one.clone() for one in maps]))
            return
        number = len(self.seen)
        if number >= len(self.old.seen) or self.old.seen[number][0] != place:
            raise _NotComparable(place)
        self.seen.append(
            (place, [self._old_pixels(place, *pair) for pair in zip(self.old.seen[number][1], maps, strict=False)])
        )

    def _old_pixels(self, place: Place, old: Tensor, new: Tensor) -> Tensor:
        """The pixels of the old map in this one, which may have grown; none of attention between pixels."""
        if old.shape == new.shape:
            return new.clone()
        how = grown(old.shape, new.shape, self.factors)
        if how is None:
            self._check_attention(place, old.shape, new.shape)
            return new.new_empty(0)
        rows, columns = (slice(None, None, s) for s in how.factors)
        small, large = ((shape[how.axes[0]], shape[how.axes[1]]) for shape in (old.shape, new.shape))
        self.whole &= all(n == s * o for o, n, s in zip(small, large, how.factors, strict=True))
        self._grown[math.prod(small), math.prod(large)] = small, large, how.factors
        return new.movedim(how.axes, (2, 3))[:, :, rows, columns].movedim((2, 3), how.axes).clone()

    def _check_attention(self, place: Place, old: torch.Size, new: torch.Size) -> None:
        """Raise unless all axes along which the shapes differ are the pixels of a grown map."""
        if any(o != n and (o, n) not in self._grown for o, n in zip(old, new, strict=True)):
            raise _NotComparable(place)

    def _after(self, name: str, layer: nn.Module, output: Any) -> Any:
        """Keep a layer's output; returns noise in its place, if it is a map that the layer has made."""
        place = Place(name, input=False)
        self._see(place, output)
        if isinstance(layer, PASSING) or not _is_map(output):
            return output
        seen = self.seen if self.old is None else self.old.seen
        _, maps = seen[len(self.seen) - 1]
        if not maps:
            raise _NotComparable(place)
        shape = maps[0].shape
        noise = drawn(shape, len(self.seen), name).to(output.dtype)
        if (maps[0] >= 0).all():  # linear attention divides by a sum of what a ReLU has left
            noise = noise.abs()
        if shape == output.shape:
            return noise
        how = grown(shape, output.shape, self.factors)
        if how is None:
            return unfolded(noise, output.shape, self._grown, self.order)
        return between(noise, output.shape, how, self.order)


def _differences(one: _Run, other: _Run) -> set[int]:
    """The numbers of the places whose maps differ by more than rounding."""
    return {
        number
        for number, ((_, first), (_, second)) in enumerate(zip(one.seen, other.seen, strict=False))
        if any(_differ(x, y) for x, y in zip(first, second, strict=False))
    }


def _differ(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape or not x.numel():
        return False
    x, y = x.nan_to_num(0, 0, 0), y.nan_to_num(0, 0, 0)
    return bool((x - y).norm() > TOLERANCE * x.norm())


def _is_map(value: Any) -> bool:
    """Whether a value may be a map; in 16 bits, which a model may compute in, rounding is too coarse to tell."""
    return isinstance(value, Tensor) and value.dim() == 4 and value.dtype in (torch.float32, torch.float64)


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) or next(module.children(), None) is None
