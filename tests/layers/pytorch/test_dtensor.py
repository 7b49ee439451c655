"""Layers on DTensors, parameters and input, in two gloo processes, against the layer alone: values and gradients."""

import copy
from collections.abc import Collection

import pytest
import torch
from forked import ranks
from layer_forms import FORMS, REORDERED, TRAINED, exposed, image
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor, init_device_mesh

from tcnn.layers.shards import is_sharded
from tcnn.training.distributed import join_processes

EXPOSED = {
    "exposed": lambda: exposed(0.7),
    "exposed window": lambda: exposed(0.7, content="window:3", content_heads=1),
    "exposed, by content": lambda: exposed(0.7, position="relative-content"),
}
EVERY = FORMS | EXPOSED
QUICK = ("hard", "folded", "fused window", "exposed window")
"""One of each: a plain layer, one that was folded, one that is fused, one that attends to parts and is looked at."""
PLACEMENTS = [Shard(0), Replicate(), Shard(1), Shard(2)]


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    """The output and the gradients of the input and of every parameter, whole."""
    x = x.detach().requires_grad_()
    y = module(x)
    weights = torch.arange(y.numel(), dtype=y.dtype).view(y.shape).cos()
    if isinstance(y, DTensor):
        weights = distribute_tensor(weights, y.device_mesh, y.placements)
    (y * weights).sum().backward()
    found = [y.detach(), x.grad, *(p.grad for p in module.parameters())]
    return [t.full_tensor() if isinstance(t, DTensor) else t for t in found if t is not None]


def close(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(
        a.shape == b.shape and (a - b).norm() <= REORDERED * max(float(b.norm()), 1e-3)
        for a, b in zip(found, expected, strict=True)
    )


def compare(names: Collection[str]) -> None:
    """In each of two processes, these forms on batches of two and three, which do not divide, and on one image."""
    with join_processes("cpu"):
        mesh = init_device_mesh("cpu", (2,))
        for name in names:
            module = EVERY[name]()
            sharded = distribute_module(copy.deepcopy(module), mesh)
            for x, placements in (
                (image(batch=2), PLACEMENTS), (image(batch=3), PLACEMENTS[:1]), (image(batch=2)[0], PLACEMENTS[1:3]),
            ):  # fmt: skip
                module.zero_grad()
                expected = gradients(module, x)
                for placement in placements:
                    sharded.zero_grad()
                    found = gradients(sharded, distribute_tensor(x, mesh, [placement]))
                    assert close(found, expected), (name, tuple(x.shape), placement)
            if name in TRAINED or name in EXPOSED:
                assert all(isinstance(p.grad, DTensor) for p in sharded.parameters())
            y = sharded(distribute_tensor(image(batch=2), mesh, [Shard(0)]))
            assert y.placements == (Shard(0),) and y.to_local().shape[0] == 1, "each computes its own images"


@pytest.mark.parametrize(
    "names", [QUICK, pytest.param(tuple(EVERY.keys() - QUICK), marks=pytest.mark.slow)], ids=["some", "others"]
)
def test_a_layer_on_dtensors(names: Collection[str]) -> None:
    assert ranks(2, compare, names) == [0, 0]


def test_what_is_no_dtensor() -> None:
    assert not is_sharded(image())
    assert not is_sharded(nn.Parameter(image()))
