"""The attributes of a convolution that its replacement keeps, for models whose forward pass reads them.

DaViT asks for the kernel's size; others pool or pad beside a convolution as it does. What the layers compute with is
their `Geometry`.
"""

from typing import Literal

from torch import nn

from tcnn.errors import UnsupportedLayerError
from tcnn.layers.terms import positions
from tcnn.layers.terms.positions import Geometry, PaddingMode, Pair
from tcnn.layers.terms.scopes import GLOBAL, Scope


class ConvolutionShaped(nn.Module):
    """A layer with the geometry of a convolution, under the attribute names of `nn.Conv2d`.

    All are derived of the geometry alone, so that a loaded layer answers as the one that was saved.
    """

    geometry: Geometry
    scope: Scope
    in_channels: int
    out_channels: int
    groups: int
    transposed = False
    """As `nn.Conv2d` has it."""
    output_padding: Pair = (0, 0)
    """As `nn.Conv2d` has it."""

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

    @property
    def padding(self) -> Pair | Literal["same"]:
        """(rows, columns), as `nn.Conv2d` has it; "same" where that pads one side more than the other.

        (0, 0) of a layer that pads by TensorFlow's rule, as timm's convolutions have it.

        Raises `UnsupportedLayerError` for a padding that no `nn.Conv2d` is built with: its attributes were changed.
        """
        if self.geometry.padding == "dynamic":
            return 0, 0
        left, right, top, bottom = self.geometry.padding
        if (left, top) == (right, bottom):
            return top, left
        if self.geometry.padding == positions.padding_like_input(self.kernel_size, self.dilation):
            return "same"
        raise UnsupportedLayerError(
            f"{type(self).__name__}: an nn.Conv2d has no padding like its (left, right, top, bottom) = "
            f"{self.geometry.padding}; read geometry.padding of it"
        )

    @property
    def padding_mode(self) -> PaddingMode:
        """As `nn.Conv2d` has it."""
        return self.geometry.padding_mode

    def _describe(self, *own: str) -> str:
        """`extra_repr` as of `nn.Conv2d`, what is a layer's `own`, and the scope of content attention."""
        g = self.geometry
        convolution = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={g.kernel_size}, stride={g.stride}, "
            f"padding={g.padding}, dilation={g.dilation}, groups={self.groups}"
        )
        content = () if self.scope == GLOBAL else (f"content={str(self.scope)!r}",)
        return ", ".join((convolution, *own, *content))
