"""Layers in two gloo processes, values and gradients: on DTensors, parameters and input, against the layer alone;
those that look across images against one process that has the whole batch.
"""

import copy
from collections.abc import Callable, Collection
from functools import partial

import pytest
import torch
import torch.distributed as dist
from forked import ranks
from layer_forms import EXPOSED, FORMS, REORDERED, TRAINED, image
from timm.layers import BatchNormAct2d, DropPath
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor, init_device_mesh
from torch.nn import functional as F

from tcnn.layers.shards import is_sharded
from tcnn.training.distributed import join_processes
from tcnn.training.updates.sync_batch import sync_batch

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


def layers() -> dict[str, nn.Module]:
    """Everything that looks across images, by what is special about it."""
    return {
        "2d": nn.BatchNorm2d(5), "act": BatchNormAct2d(5), "plain": nn.BatchNorm2d(5, affine=False),
        "no memory": nn.BatchNorm2d(5, track_running_stats=False), "cumulative": nn.BatchNorm2d(5, momentum=None),
        "1d": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(5 * 6)), "double": nn.BatchNorm2d(5).double(),
        "path": nn.Sequential(nn.Conv2d(5, 5, 1), DropPath(0.5), DropPath(0.3)), "dropout": nn.Dropout(0.4),
        "inplace": nn.Sequential(nn.Conv2d(5, 5, 1), nn.Dropout(0.4, inplace=True)),
        "frozen": nn.BatchNorm2d(5).eval(), "no path": DropPath(0.5).eval(), "channels": nn.Dropout2d(0.4),
        "alpha": nn.AlphaDropout(0.4), "alpha of channels": nn.FeatureAlphaDropout(0.4), "slopes": nn.RReLU(),
        "slopes in place": nn.Sequential(nn.Conv2d(5, 5, 1), nn.RReLU(inplace=True)),
        "instances": nn.InstanceNorm2d(5, affine=True, track_running_stats=True), "no statistics": nn.InstanceNorm2d(5),
        "last": Calls(lambda x: F.dropout(x.to(memory_format=torch.channels_last), 0.4)),
        "windows": Calls(lambda x: F.dropout(x.flatten(0, 1), 0.4).view_as(x)), "attention": Attentive(),
        "fused": Calls(lambda x: F.scaled_dot_product_attention(x / 30, x / 30, x, dropout_p=0.4)),
        "choice": Calls(lambda x: F.gumbel_softmax(x, dim=1)), "like": Calls(lambda x: x + torch.randn_like(x)),
        "size": Calls(lambda x: x * torch.rand(len(x), 1, 1, 1)), "numbers": Calls(lambda x: x + torch.randn(5, 1, 1)),
        "whole batch": Calls(lambda x: x * torch.empty(1, 1, 1, 1).bernoulli_(0.5)), "weights": DropConnect(5, 5, 1),
        "nothing, then something": Calls(lambda x: F.dropout(x + torch.empty_like(x).bernoulli_(p=0.0), 0.4)),
        "chosen": Calls(lambda x: x * torch.bernoulli(x.detach().sigmoid() / 2)),
    }  # fmt: skip


class Calls(nn.Module):
    """A layer that is a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Attentive(nn.MultiheadAttention):
    """Attention between the positions of a map, with dropout of its weights."""

    def __init__(self) -> None:
        super().__init__(5, 1, dropout=0.4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        tokens = x.flatten(2).mT / 30
        return super().forward(tokens, tokens, tokens)[0].mT.view_as(x)


class DropConnect(nn.Conv2d):
    """A convolution whose weights are dropped, the same for all images; they have as many rows as there are images."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, F.dropout(self.weight, 0.4), self.bias)


def learn(layer: nn.Module, x: Tensor, weights: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Outputs and gradients of the images, gradients of the parameters, buffers."""
    torch.manual_seed(7)
    x.requires_grad_()
    y = layer(x)
    (y * weights).sum().backward()
    return [y, x.grad], [p.grad for p in layer.parameters()], [b.clone() for b in layer.buffers()]


def compare_batches() -> None:
    """In each of two processes: its half of the batch against the whole of it."""
    with join_processes("cpu") as processes:
        assert processes.world == 2
        torch.manual_seed(0)
        rows = slice(4 * processes.rank, 4 * processes.rank + 4)
        for name, layer in layers().items():
            dtype = torch.float64 if name == "double" else torch.float32
            # Far from zero and of unlike images, where sums of squares would lose what matters.
            images = 30 + torch.arange(8).view(8, 1, 1, 1) + torch.randn(8, 5, 2, 3)
            weights = torch.randn(8, 5, 2, 3, dtype=dtype)
            if name == "1d":
                weights = weights.flatten(1)
            images = images.to(dtype)
            before = {key: value.clone() for key, value in layer.state_dict().items()}
            expected, of_parameters, buffers = learn(layer, images.clone(), weights)
            layer.load_state_dict(before)
            layer.zero_grad()
            with sync_batch(processes, 4):
                found, own, own_buffers = learn(layer, images[rows].clone(), weights[rows])
            for gradient in own:
                dist.all_reduce(gradient)
            close = 1e-10 if name == "double" else 1e-4
            shared = zip(found + own + own_buffers, [y[rows] for y in expected] + of_parameters + buffers, strict=True)
            for number, (ours, theirs) in enumerate(shared):
                torch.testing.assert_close(
                    ours, theirs, rtol=close, atol=close, msg=partial("{}, {}: {}".format, name, number)
                )


def test_two_processes_compute_what_one_does() -> None:
    assert ranks(2, compare_batches) == [0, 0]
