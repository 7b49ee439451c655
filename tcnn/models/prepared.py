"""Refuse models with layers for inference only (folded or fused) where they cannot be used."""

from torch import nn

from tcnn.errors import RequestError
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.fused import FusedGPSA2d

PREPARED: dict[type[nn.Module], str] = {FoldedGPSA2d: "folded", FusedGPSA2d: "fused"}
"""The kinds of layers for inference only, and what was done to the GPSA layer in their place."""


def refuse_prepared(model: nn.Module, verb: str, but: tuple[type[nn.Module], ...] = ()) -> None:
    """Raise `RequestError` for a model with layers that are for inference only.

    Args:
        verb: the refused operation.
        but: kinds of layers that it supports.
    """
    for name, module in model.named_modules():
        for kind, done in PREPARED.items():
            if isinstance(module, kind) and kind not in but:
                raise RequestError(
                    f"{name or type(model).__name__}: was {done}, for inference only; {verb} the model that it was "
                    f"{done} from"
                )
