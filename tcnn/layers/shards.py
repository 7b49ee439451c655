"""A layer on DTensors: each device computes its share of the batch, with whole parameters, as data parallelism does.

`torch.distributed.tensor.distribute_module` makes a module's parameters and buffers DTensors, and so must its input be.
The layer makes positions and padding of its own, which are plain tensors and may not be mixed with DTensors; so it is
computed on local tensors throughout. An image is never divided, for every pixel attends to every other.
"""

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tcnn.layers.terms.isotropic import Isotropic
from tcnn.layers.terms.parameters import Parameters
from tcnn.layers.terms.quadratic import Quadratic
from tcnn.layers.terms.relative import Relative

for _kind in (Parameters, Isotropic, Quadratic, Relative):  # what may hold DTensors
    pytree.register_dataclass(_kind)


def is_sharded(x: Tensor) -> "TypeGuard[Any]":
    """Whether x is a DTensor."""
    if type(x) is Tensor or not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor  # takes 0.1 s, and only who has one needs it

    return isinstance(x, DTensor)


def on_shards(compute: Callable[..., Tensor], x: Any, *others: object, beside: Any = None) -> Tensor:
    """`compute(x, *others)` on this device's images, as a DTensor that is sharded as x; `compute(beside, x, *others)`.

    Args:
        x: a DTensor (B, …), sharded by images or replicated; in any other way, it is replicated first.
        beside: another DTensor (B, …), of the same images, each of which is computed with that of x.
        others: what may hold DTensors anywhere in it, which are replicated. Each device's gradient of one is that of
            its own images; their sum over the devices is what the DTensor receives.
    """
    from torch.distributed.tensor import DTensor, Partial, Replicate

    images = [place if place.is_shard(0) else Replicate() for place in x.placements]
    gradients = [Partial() if place.is_shard() else Replicate() for place in images]

    def whole(other: DTensor) -> Tensor:
        mesh = other.device_mesh
        return other.redistribute(mesh, [Replicate()] * mesh.ndim).to_local(grad_placements=gradients)

    batches = [
        batch.redistribute(x.device_mesh, images).to_local(grad_placements=images)
        for batch in ([x] if beside is None else [beside, x])
    ]
    y = compute(*batches, *pytree.tree_map_only(DTensor, whole, others))
    size, stride = (len(x), *y.shape[1:]), y.stride()
    return DTensor.from_local(y, x.device_mesh, images, run_check=False, shape=torch.Size(size), stride=stride)
