"""Take off what wraps a whole model: `torch.compile`, `DataParallel` and `DistributedDataParallel`."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def unwrapped(model: nn.Module) -> nn.Module:
    """The module that `torch.compile`, `DataParallel` or `DistributedDataParallel` wrapped, or the model itself.

    A wrapper has the same tensors under names with `_orig_mod.` or `module.` before them, which no file of the model
    knows. The compiler's would compile whatever is hooked to its layers; that of several processes would wait for the
    others.
    """
    while True:
        if type(model).__name__ == "OptimizedModule":  # by name: its class comes with the compiler, seconds to import
            model = model.get_submodule("_orig_mod")
        elif isinstance(model, nn.DataParallel | DistributedDataParallel):
            model = model.module
        else:
            return model
