"""What draws random numbers, or averages over a batch, in each process by itself is found before the first step."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from data_pictures import draw_classes
from forked import ranks
from timm.layers import DropPath
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tcnn.training.distributed import Processes, join_processes
from tcnn.training.finetune import finetune
from tcnn.training.updates.sync_draws import COMPOSED, FILLS, WholeDraws, draws
from tcnn.training.updates.sync_trial import apart, apart_note, trial_images

OPAQUE = ("attention", "sdp", "mem_eff", "nested", "cudnn", "rnn", "lstm", "gru", "_functional", "randperm")
"""In names of operations that draw otherwise than a number per value: the trial finds what uses them."""


class Centred(nn.Module):
    """Its mean is over the images of one process."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Shuffled(nn.Module):
    """Every image gets a part of another one, of the same process."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * x[torch.randperm(len(x))]


class Remembering(nn.Module):
    """A running mean of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.copy_(x.mean())
        return x


class Python(nn.Module):
    """Draws where PyTorch's seeds are not used; the processes were not seeded alike."""

    def forward(self, x: Tensor) -> Tensor:
        return x * random.random()


class Recurrent(nn.Module):
    """Positions come first, and images after them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(4, 4, 2, dropout=0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x.flatten(2).permute(2, 0, 1))[0]
        return y.permute(1, 2, 0).view_as(x)


class Picky(nn.Module):
    """For batches of one size."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(2, 4, 6, 6)


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.Flatten(), nn.LazyLinear(3)).train()


def tried() -> None:
    """What each of two processes does."""
    with join_processes("cpu") as processes:
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        within = nn.Sequential(nn.BatchNorm2d(4), nn.Dropout2d(0.5), nn.RReLU(inplace=True), DropPath(0.5), Centred())
        model = network(Shuffled(), within, nn.InstanceNorm2d(4, track_running_stats=True), Remembering(), Recurrent())
        model(x)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        state = torch.get_rng_state()
        found = apart(model, x, processes)
        assert found == ["1", "2.4", "4", "5.layers"], found
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), state)
        assert apart_note(model, found) == (
            "several processes: Centred (2.4), LSTM (5.layers), Remembering (4), Shuffled (1) draws random numbers or "
            "averages in each process by itself; the run is not that of one process"
        )
        assert apart(nn.Sequential(nn.Conv2d(3, 4, 3), Picky()), x, processes) is None
        assert (apart_note(model, None) or "").startswith("several processes: a pass over random images failed")
        random.seed(processes.rank)
        model = network(Python(), nn.Dropout(0.5))
        model(x)
        assert apart(model, x, processes) == ["1"]


def test_modules_that_are_on_their_own_are_found() -> None:
    assert ranks(2, tried) == [0, 0]


def run(root: Path) -> None:
    """What each of two processes does; the first has the notes."""
    options = {"size": 32, "epochs": 1, "batch_size": 8, "workers": 0, "device": "cpu", "convert": False}
    for name, layer in (("draws", nn.Dropout2d(0.5)), ("centres", Centred())):
        model = network(layer)
        model(torch.zeros(2, 3, 32, 32))
        said: list[str] = []
        finetune(model, str(root / "data"), out=root / name, say=said.append, preset="quick", **options)
        found = any("Centred (1) draws random numbers or averages" in line for line in said)
        assert found is (name == "centres" and os.environ["RANK"] == "0"), said


@pytest.mark.slow
def test_a_run_says_so_before_it_begins(tmp_path: Path) -> None:
    draw_classes(tmp_path / "data", ["a", "b", "c"], images=10)
    assert ranks(2, run, tmp_path) == [0, 0]


@pytest.mark.parametrize(("images", "tried"), [(1, 1), (2, 2), (64, 2), (15, 3), (7, 7)])
def test_how_many_images_are_tried(images: int, tried: int) -> None:
    assert trial_images(images) == tried


def test_every_operation_that_draws_is_known() -> None:
    """PyTorch marks those that draw; what composes others is seen through what it is composed of."""
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        packet, _, overload = name.partition(".")
        if namespace != "aten" or any(word in packet for word in OPAQUE):
            continue
        operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if torch.Tag.nondeterministic_seeded in operation.tags:
            assert packet.removesuffix("_") in FILLS | COMPOSED, full


def test_attention_without_dropout_draws_nothing() -> None:
    """A compiler would break its graph there."""
    found = {}

    class Seen(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
            found[func.__name__] = draws(func, args, kwargs or {})
            return func(*args, **(kwargs or {}))

    x = torch.randn(2, 3, 4)
    for p in (0.0, 0.5):
        with Seen():
            nn.MultiheadAttention(4, 1, dropout=p)(x, x, x)
            nn.functional.scaled_dot_product_attention(x, x, x, None, p)
        assert found["multi_head_attention_forward"] is found["scaled_dot_product_attention"] is (p > 0)


def test_a_mask_for_all_images_is_not_kept() -> None:
    """It would be W times the memory until the backward pass."""
    with WholeDraws(Processes(rank=1, world=4), 2):
        mask = torch.rand(2, 8)
    assert mask.untyped_storage().nbytes() == 2 * 8 * 4
