"""Refuse models on the meta device, which have shapes and no values, where values are needed."""

from torch import nn

from tcnn.errors import RequestError


def refuse_without_values(model: nn.Module, verb: str) -> None:
    """Raise `RequestError` for a model with a parameter or buffer on the meta device; `verb` is the refused operation.

    A conversion needs no values: this is for what computes with them.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise RequestError(
                f"{type(model).__name__}: expected values to {verb}, found none: {name} is on the meta device; build "
                "the model on another device and load its weights"
            )
