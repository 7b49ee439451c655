"""Layers that look across images, in two gloo processes against one that has the whole batch: values and gradients."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch, torch.distributed as dist
from timm.layers import BatchNormAct2d, DropPath
from torch import nn

from tcnn.training.distributed import joined
from tcnn.training.whole_batch import whole_batch

LAYERS = {
    "2d": nn.BatchNorm2d(5), "act": BatchNormAct2d(5), "plain": nn.BatchNorm2d(5, affine=False),
    "no memory": nn.BatchNorm2d(5, track_running_stats=False), "cumulative": nn.BatchNorm2d(5, momentum=None),
    "1d": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(5 * 6)), "double": nn.BatchNorm2d(5).double(),
    "path": nn.Sequential(nn.Conv2d(5, 5, 1), DropPath(0.5), DropPath(0.3)), "dropout": nn.Dropout(0.4),
    "inplace": nn.Sequential(nn.Conv2d(5, 5, 1), nn.Dropout(0.4, inplace=True)),
    "frozen": nn.BatchNorm2d(5).eval(), "no path": DropPath(0.5).eval(),
}

def learn(layer, x, weights):
    torch.manual_seed(7)
    x.requires_grad_()
    y = layer(x)
    (y * weights).sum().backward()
    return [y, x.grad], [p.grad for p in layer.parameters()], [b.clone() for b in layer.buffers()]

with joined("cpu") as processes:
    torch.manual_seed(0)
    rows = slice(4 * processes.rank, 4 * processes.rank + 4)
    for name, layer in LAYERS.items():
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
        with whole_batch(processes):
            found, own, own_buffers = learn(layer, images[rows].clone(), weights[rows])
        for gradient in own:
            dist.all_reduce(gradient)
        close = 1e-10 if name == "double" else 1e-4
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b[rows], rtol=close, atol=close, msg=lambda text: f"{name}: {text}")
        for a, b in zip(own + own_buffers, of_parameters + buffers, strict=True):
            torch.testing.assert_close(a, b, rtol=close, atol=close, msg=lambda text: f"{name}: {text}")
        if processes.first:
            print("same:", name)
"""


def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    script = tmp_path / "layers.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("same:") == 12
