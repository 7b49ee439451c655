"""`fuse`: prepare a model's attention layers for inference, as timm's `reparameterize_model` prepares convolutions."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from tcnn.conversion.carry import copy_with
from tcnn.errors import RequestError
from tcnn.layers.base import AttentionLayer
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.fused import FusedGPSA2d
from tcnn.models.checks import refuse_prepared, refuse_without_values, unwrapped
from tcnn.models.trace import evaluating


def fuse(model: nn.Module) -> nn.Module:
    """Fuse a T-CNN for inference: a copy in evaluation mode, the same function, faster, and no longer trainable.

    In every layer W_val is multiplied into W_out, matrices are packed into the processor's layout, and the positional
    attention of a map size is computed once; a layer in the hard limit becomes a convolution. An unfused model caches
    nothing and computes this in every call.

    Raises: `RequestError` for a model without attention layers, or one that was fused before; `UnsupportedLayerError`
    for a layer with hooks, which its replacement would lose.
    """
    model = unwrapped(model)
    refuse_prepared(model, "fuse", but=(FoldedGPSA2d,))
    refuse_without_values(model, "fuse")
    if not any(isinstance(module, AttentionLayer) for module in model.modules()):
        raise RequestError(f"{type(model).__name__}: expected a model with GPSA layers, found none; convert it first")
    layers = {name: m for name, m in model.named_modules() if isinstance(m, AttentionLayer)}
    with evaluating(model):
        return copy_with(model, {name: FusedGPSA2d(layer) for name, layer in layers.items()})


@contextmanager
def fused(model: nn.Module, packed: bool = True) -> Iterator[None]:
    """Context in which a model in evaluation mode has fused layers; afterwards it has its own again and can be trained.

    Layers with hooks stay, since the hooks are meant for them. So does a model that is a single layer.
    """
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, AttentionLayer) and not (child._forward_hooks or child._forward_pre_hooks)
    ]
    made = {id(layer): FusedGPSA2d(layer, packed) for _, _, layer in places}
    try:
        for parent, name, layer in places:
            parent._modules[name] = made[id(layer)]
        yield
    finally:
        for parent, name, layer in places:
            parent._modules[name] = layer
