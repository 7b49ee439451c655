"""Half precision is too coarse for softmaxes, gates and distances: they are computed in float32 at least."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Cast half precision to float32, in which softmaxes, gates and distances are computed; other dtypes stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Context in which products have the dtype of their tensors, on a kind of device, whatever autocast is active."""
    active = torch.amp.autocast_mode.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if active else nullcontext()
