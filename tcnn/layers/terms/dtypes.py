"""Half precision is too coarse for softmaxes, gates and distances: they are computed in float32 at least."""

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Cast half precision to float32, in which softmaxes, gates and distances are computed; other dtypes stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
