"""Take off what wraps a whole model: `torch.compile`, `DataParallel` and `DistributedDataParallel`."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tcnn.errors import RequestError


def unwrapped(model: nn.Module) -> nn.Module:
    """The module that `torch.compile`, `DataParallel` or `DistributedDataParallel` wrapped, or the model itself.

    A wrapper has the same tensors under names with `_orig_mod.` or `module.` before them, which no file of the model
    knows. The compiler's would compile whatever is hooked to its layers; that of several processes would wait for the
    others.

    Raises `RequestError` for anything that is no module.
    """
    while True:
        if not isinstance(model, nn.Module):
            raise _no_module(model)
        if type(model).__name__ == "OptimizedModule":  # by name: its class comes with the compiler, seconds to import
            model = model.get_submodule("_orig_mod")
        elif isinstance(model, nn.DataParallel | DistributedDataParallel):
            model = model.module
        else:
            return model


def _no_module(value: object) -> RequestError:
    with_report = isinstance(value, tuple) and isinstance(getattr(value, "model", None), nn.Module)
    advice = "take its .model" if with_report else "load it by tcnn.load or timm.create_model"
    return RequestError(f"model: expected a module, found {named(value)}; {advice}")


def named(value: object) -> str:
    """What stands where a module should: names as they are, anything else, such as a state dict, by its type."""
    return repr(value) if isinstance(value, str | type) else f"a value of type {type(value).__name__}"
