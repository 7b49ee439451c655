"""Conversion during training with every optimizer that can be chosen: killed anywhere, it goes on to the last bit."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sampled import sampled
from timm.optim import list_optimizers
from tiny_runs import colours, run, seeded, tiny
from torch import Tensor, nn

from tcnn.errors import RequestError
from tcnn.training.recipe.optim import create_optimizer

STEPS = 3
"""In each of the two epochs, between which the network is converted."""


def network() -> nn.Module:
    """Wide enough for Adafactor to keep sums over rows and columns in place of moments."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip


def can_be_made(name: str) -> bool:
    """Whether timm can make an optimizer here, and it is not refused."""
    try:
        return create_optimizer(seeded(network), tiny(opt=name)) is not None
    except RequestError:
        return False


EVERY = (*list_optimizers(), "lookahead_adamw", "lookahead_lamb", "lookahead_adafactor")
FEW = ("adafactor", "lookahead_adamw")
NAMES = [name for name in EVERY if not name.startswith("kron") and can_be_made(name)]
"""What Kron keeps is refused after its first update, see `test_resume_optimizers`."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("colours"))


def train(data: Path, out: Path, opt: str, **options: Any) -> dict[str, Tensor]:
    """The weights in the end; a resume point is kept of every update."""
    run(
        seeded(network), data, out, opt=opt, convert_at=1, checkpoint_steps=1, keep=100, conversion={"target": "2"},
        **options,
    )  # fmt: skip
    return load_file(out / "last.safetensors")


@pytest.mark.parametrize("opt", sampled(NAMES, FEW))
def test_resumed_before_and_after_the_conversion(tmp_path: Path, data: Path, opt: str) -> None:
    whole = train(data, tmp_path / "whole", opt)
    assert {"2.proj", "2.gating_param"} <= whole.keys()
    assert all(tensor.isfinite().all() for tensor in whole.values())
    points = sorted((tmp_path / "whole" / "resume").iterdir())
    updates = [int(point.name.split("-")[1]) for point in points]
    assert {*updates} == {*range(1, 2 * STEPS + 1)}
    for point, done in zip(points, updates, strict=True):
        if not STEPS - 1 <= done <= STEPS + 2:
            continue
        out = tmp_path / point.stem
        others = [other.name for other in points if other != point]
        shutil.copytree(tmp_path / "whole", out, ignore=shutil.ignore_patterns(*others))
        resumed = train(data, out, opt, resume=True)
        assert [name for name in whole if not torch.equal(resumed[name], whole[name])] == [], point.stem


def test_a_run_says_what_starts_afresh(tmp_path: Path, data: Path) -> None:
    """Once, where it is converted; a run that is resumed after that has nothing to start afresh."""
    said: list[str] = []
    for resume in (False, True):
        train(data, tmp_path / "run", "adafactor", say=said.append, resume=resume)
        assert sum("its state of 1 filter starts afresh" in line for line in said) == 1
