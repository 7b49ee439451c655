"""`Operations`: a context that notes every operation of PyTorch, and the tensors that it puts out."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Context that notes every operation, with the shape and dtype of each tensor that it puts out."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[tuple[str, torch.Size, torch.dtype]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.outputs.append((func.overloadpacket.__name__, tensor.shape, tensor.dtype))
        return result
