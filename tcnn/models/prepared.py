"""Layers that were prepared for inference, and models that hold some: what made them can no longer be done to them."""

from torch import nn

from tcnn.errors import RequestError
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.fused import FusedGPSA2d

PREPARED: dict[type[nn.Module], str] = {FoldedGPSA2d: "folded", FusedGPSA2d: "fused"}
"""Every kind of layer that is for inference only, and what was done to the GPSA layer in whose place it stands."""


def refuse_prepared(model: nn.Module, verb: str, but: tuple[type[nn.Module], ...] = ()) -> None:
    """Raise `RequestError` for a model with layers that are for inference only.

    Args:
        verb: what cannot be done with it.
        but: kinds with which it can.
    """
    for name, module in model.named_modules():
        for kind, done in PREPARED.items():
            if isinstance(module, kind) and kind not in but:
                raise RequestError(
                    f"{name or type(model).__name__}: was {done}, for inference only; {verb} the model that it was "
                    f"{done} from"
                )
