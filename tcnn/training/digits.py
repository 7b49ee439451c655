"""A small real data set and a plain loop: what the demo trains on, and how.

scikit-learn bundles 1,797 scans of handwritten digits (8×8 pixels, 17 levels; UCI, Alpaydın & Kaynak 1998). They are
enlarged to 64×64, so that a small ResNet's last stage still has a map to attend over.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from timm.optim import param_groups_weight_decay
from torch import Tensor, nn
from torch.nn import functional as F

from tcnn.errors import EnvironmentFailure
from tcnn.layers.gpsa import GPSA2d

HELD_OUT = 450


class Digits(NamedTuple):
    """Images (N, 1, 64, 64) of zero mean and unit variance, and their labels (N,)."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


def load_digits(seed: int = 0) -> Digits:
    """The scans, shuffled by `seed`; the last 450 are held out. Raises `EnvironmentFailure` without scikit-learn."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise EnvironmentFailure("the demo needs scikit-learn for its images: pip install 'tcnn[demo]'") from error
    bunch = datasets.load_digits()
    images = torch.as_tensor(bunch.images, dtype=torch.float32)[:, None]
    images = F.interpolate(images, size=(64, 64), mode="bilinear", align_corners=False)
    images = (images - images.mean()) / images.std()
    labels = torch.as_tensor(bunch.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, test = order[:-HELD_OUT], order[-HELD_OUT:]
    return Digits(images[train], labels[train], images[test], labels[test])


def fit(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epochs: int,
    learning_rate: float,
    seed: int = 0,
    batch_size: int = 64,
    anneal_epochs: int = 0,
    progress: Callable[[int], None] = lambda epoch: None,
) -> None:
    """Train in place with AdamW and a one-cycle schedule; shifts of up to four pixels are the only augmentation.

    `anneal_epochs` > 0 moves every GPSA layer's temperature log-linearly from where it stands to 1 over these epochs;
    the gating parameters then learn at 100 times the rate, without weight decay (d'Ascoli et al. 2021, §3).
    """
    layers = [module for module in model.modules() if isinstance(module, GPSA2d)]
    optimizer = torch.optim.AdamW(_groups(model, learning_rate), lr=learning_rate)
    batches = (len(images) + batch_size - 1) // batch_size
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rates, total_steps=epochs * batches)
    generator = torch.Generator().manual_seed(seed)
    start = [layer.temperature.item() for layer in layers]
    model.train()
    for epoch in range(epochs):
        for step, batch in enumerate(torch.randperm(len(images), generator=generator).split(batch_size)):
            if anneal_epochs and layers:
                done = min(1.0, (epoch * batches + step + 1) / (anneal_epochs * batches))
                for layer, temperature in zip(layers, start, strict=True):
                    layer.temperature.fill_(temperature ** (1 - done))
            down, right = torch.randint(-4, 5, (2,), generator=generator).tolist()
            shifted = images[batch].roll((down, right), dims=(-2, -1))
            loss = F.cross_entropy(model(shifted), labels[batch], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        progress(epoch + 1)
    model.eval()


def _groups(model: nn.Module, learning_rate: float) -> list[dict[str, object]]:
    gates = [(name, p) for name, p in model.named_parameters() if name.endswith("gating_param")]
    names = [name for name, _ in gates]
    groups = param_groups_weight_decay(model, weight_decay=0.05, no_weight_decay_list=names)
    ids = {id(p) for _, p in gates}
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in ids]
        group["lr"] = learning_rate
    if gates:
        groups.append({"params": [p for _, p in gates], "weight_decay": 0.0, "lr": 100 * learning_rate})
    return groups


@torch.no_grad()
def predictions(model: nn.Module, images: Tensor) -> Tensor:
    """The predicted class of every image, (N,)."""
    model.eval()
    return torch.cat([model(batch).argmax(1) for batch in images.split(256)])


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """The share of right predictions."""
    return (predicted == labels).double().mean().item()
