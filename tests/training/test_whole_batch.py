"""Layers that look across images, in two gloo processes against one that has the whole batch: values and gradients."""

from functools import partial

import torch
import torch.distributed as dist
from forked import ranks
from timm.layers import BatchNormAct2d, DropPath
from torch import Tensor, nn

from tcnn.training.distributed import join_processes
from tcnn.training.updates.sync_batch import sync_batch


def layers() -> dict[str, nn.Module]:
    """Everything that looks across images, by what is special about it."""
    return {
        "2d": nn.BatchNorm2d(5), "act": BatchNormAct2d(5), "plain": nn.BatchNorm2d(5, affine=False),
        "no memory": nn.BatchNorm2d(5, track_running_stats=False), "cumulative": nn.BatchNorm2d(5, momentum=None),
        "1d": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(5 * 6)), "double": nn.BatchNorm2d(5).double(),
        "path": nn.Sequential(nn.Conv2d(5, 5, 1), DropPath(0.5), DropPath(0.3)), "dropout": nn.Dropout(0.4),
        "inplace": nn.Sequential(nn.Conv2d(5, 5, 1), nn.Dropout(0.4, inplace=True)),
        "frozen": nn.BatchNorm2d(5).eval(), "no path": DropPath(0.5).eval(),
    }  # fmt: skip


def learn(layer: nn.Module, x: Tensor, weights: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Outputs and gradients of the images, gradients of the parameters, buffers."""
    torch.manual_seed(7)
    x.requires_grad_()
    y = layer(x)
    (y * weights).sum().backward()
    return [y, x.grad], [p.grad for p in layer.parameters()], [b.clone() for b in layer.buffers()]


def compare() -> None:
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
            with sync_batch(processes):
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
    assert ranks(2, compare) == [0, 0]
