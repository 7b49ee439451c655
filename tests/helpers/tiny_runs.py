"""Fine-tuning in half a second: three classes that a glance tells apart, and two-layer networks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from timm.layers import DropPath
from torch import Tensor, nn
from torch.optim import Optimizer

from tcnn.config import FinetuneConfig, finetune_config
from tcnn.training.finetune import finetune
from tcnn.training.recipe.optim import create_optimizer
from tcnn.training.single_run import FinetuneResult

COLOURS = ("blue", "green", "red")
TINY: dict[str, Any] = {
    "epochs": 2, "warmup_epochs": 1, "batch_size": 8, "size": 32, "workers": 0, "val_split": 0.2, "device": "cpu",
    "anneal_epochs": None, "anneal": "warmup",
}  # fmt: skip
"""24 training images in 3 steps of 8, and 6 for validation."""


def colours(root: Path, images: int = 10, classes: tuple[str, ...] = COLOURS) -> Path:
    """Class folders of plain images, each of its own brightness."""
    for name in classes:
        for number in range(images):
            path = root / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), name).point(lambda value, add=4 * number: value // 2 + add).save(path)
    return root


def tiny(**options: Any) -> FinetuneConfig:
    """The quick preset, made tiny, annealed and without content heads; keywords go over it."""
    conversion = options.pop("conversion", {})
    if isinstance(conversion, dict):
        conversion = {"content_heads": 0, **conversion}
    return finetune_config("quick", options={**TINY, **options, "conversion": conversion})


def run(model: Any, data: Any, out: Path, **options: Any) -> FinetuneResult:
    """A tiny run with random weights; keywords are settings, or arguments of `finetune`."""
    arguments = (
        "val",
        "resume",
        "force",
        "allow_changes",
        "report",
        "say",
        "quiet",
        "stop",
        "weights",
        "pretrained",
        "baseline",
        "compare",
    )
    given = {key: options.pop(key) for key in arguments if key in options}
    return finetune(model, data if not isinstance(data, Path) else str(data), config=tiny(**options), out=out,
                    **{"pretrained": False, **given})  # fmt: skip


class TwoConvs(nn.Module):
    """Two convolutions and a head, without batch normalisation; it does not say how many classes it has."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=4, padding=1)
        self.last = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.stem(x).relu()).mean((2, 3)))


class Linear32(TwoConvs):
    """Logits in float32, under autocast as well, from features in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.stem(x).relu()).mean((2, 3)).float())


class Normed(TwoConvs):
    """With batch normalisation before the layer that is converted, and stochastic depth."""

    def __init__(self, drop_path: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=4, padding=1, bias=False)
        self.norm, self.path = nn.BatchNorm2d(8), DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        return self.head((x[..., ::2, ::2] + self.path(self.last(x))).mean((2, 3)))


class RunsOutOfMemory(TwoConvs):
    """Fails as a GPU does when it is given more than so many images in training."""

    most = 2

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory (as if)")
        return super().forward(x)


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> Any:
    """A module whose weights are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def trained(opt: str = "adamw", seed: int = 0, steps: int = 3) -> tuple[nn.Module, Optimizer]:
    """A module and an optimizer that remembers something."""
    model = seeded(TwoConvs, seed)
    optimizer = create_optimizer(model, tiny(opt=opt))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        model(torch.randn(2, 3, 8, 8, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer
