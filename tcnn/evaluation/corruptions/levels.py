"""Types of the corruptions: a function on pixels, and five levels for each of two image sizes."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.float32]
"""Image (H, W, C) with C = 1 or 3, between 0 and 1."""

Effect = Callable[[Pixels, Any, np.random.Generator], Pixels]
"""(pixels, level, random numbers) → pixels, which may leave the range; the caller clips."""

SMALL_SIDE = 64
"""Images whose shorter side is up to this many pixels get the levels of CIFAR-10-C."""


class Levels(NamedTuple):
    """The constants of severities 1 to 5, as the benchmark's authors published them."""

    large: tuple[Any, ...]
    """Those of ImageNet-C, made for 224×224."""
    small: tuple[Any, ...]
    """Those of CIFAR-10-C, made for 32×32."""
