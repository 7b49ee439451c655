"""Kinds of values that settings have: pixels, counts, devices and dtypes, temperatures; how large they may be.

Some settings take more than they hold: a square by its side, a device or a dtype of torch. Type checkers see them as
descriptors (`Takes`), pydantic as what is held, with what makes that of what is given.
"""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from tcnn.errors import RequestError

MOST_PIXELS = 2**16
"""Side of the largest image that may be asked for; PyTorch and PIL end with an OverflowError far above."""
MOST = 10**6
"""Largest number of images, epochs or channels that may be asked for; far above, NumPy and PyTorch end with an
OverflowError, or the machine for lack of memory."""
NEVER = 10**9
"""Largest number of what is counted until something happens."""
Side = Annotated[int, Field(ge=1, le=MOST_PIXELS)]
Size = tuple[Side, Side]
"""(height, width) in pixels."""


def _square(size: object) -> object:
    return (size, size) if isinstance(size, Integral) else size


def _by_name(value: object) -> object:
    return str(value).removeprefix("torch.") if type(value).__module__ == "torch" else value


TORCHS = BeforeValidator(_by_name)
"""A device or dtype of torch, which is not loaded here, is taken by its name."""
StoredT = TypeVar("StoredT")
GivenT = TypeVar("GivenT")

if TYPE_CHECKING:
    import torch

    class Takes(Generic[StoredT, GivenT]):
        """A setting that takes more than it holds, as type checkers see it: a descriptor's `__set__` types the
        constructor's argument, its `__get__` what is read.
        """

        def __get__(self, config: object, kind: object = None) -> StoredT: ...
        def __set__(self, config: object, value: GivenT) -> None: ...

    def setting(*, default: Any, description: str) -> Any:
        """pydantic's `Field`, whose default is what is held, not a descriptor."""

    SideOrSize = Takes[Size | None, int | Size | None]
    Sizes = Takes[tuple[Size, ...], Sequence[int | Size]]
    Device = Takes[str, str | torch.device]
    Amp = Takes[Literal["float32", "bfloat16", "float16"], Literal["float32", "bfloat16", "float16"] | torch.dtype]
    AutoAmp = Takes[
        Literal["auto", "float32", "bfloat16", "float16"],
        Literal["auto", "float32", "bfloat16", "float16"] | torch.dtype,
    ]
else:
    setting = Field
    SideOrSize = Annotated[Size, BeforeValidator(_square)] | None
    """(height, width) in pixels, of a square also its side, or None."""
    Sizes = tuple[Size, ...]
    Device = Annotated[str, TORCHS]
    Amp = Annotated[Literal["float32", "bfloat16", "float16"], TORCHS]
    AutoAmp = Annotated[Literal["auto", "float32", "bfloat16", "float16"], TORCHS]


def sides_of(size: int | Size) -> Size:
    """(height, width) of a size as it is given, a side or both, NumPy's numbers too; raises `RequestError`."""
    height, width = size if isinstance(size, Sequence) else (size, size)
    if not 1 <= min(height, width) <= max(height, width) <= MOST_PIXELS:
        raise RequestError(f"size: expected 1 to {MOST_PIXELS} pixels each way, found {height}×{width}")
    return int(height), int(width)


def _in_float32(temperature: float) -> float:
    if 0 < temperature < math.inf and not 2.0**-126 <= temperature <= (2 - 2.0**-23) * 2.0**127:
        raise ValueError("expected from 1e-38 to 3e+38, as float32 has")
    return temperature


def _none_for_infinity(limit: float | None) -> float | None:
    return None if limit == math.inf else limit


Limit = Annotated[float | None, Field(gt=0), AfterValidator(_none_for_infinity)]
"""A limit, which infinity does not set: as None it is what JSON has a word for."""

Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_in_float32)]
"""τ, dimensionless; layers hold it in float32."""
