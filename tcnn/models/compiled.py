"""Take off the wrapper of `torch.compile`."""

from torch import nn


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that `torch.compile` wrapped, or the model itself.

    The wrapper has the same tensors under names with `_orig_mod.` before them, which no file of the model knows; and it
    would compile whatever is hooked to its layers.
    """
    while type(model).__name__ == "OptimizedModule":  # by name: its class comes with the compiler, seconds to import
        model = model.get_submodule("_orig_mod")
    return model
