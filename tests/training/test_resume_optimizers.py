"""Resume points of optimizers: what each remembers comes back in its order in memory, and what cannot is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from timm.optim._optim_factory import OptimInfo, default_registry
from tiny_runs import TwoConvs, colours, run, seeded, tiny, trained
from torch import nn
from torch.optim import Optimizer

from tcnn.errors import RequestError
from tcnn.training.recipe.optim import create_optimizer, parameter_states
from tcnn.training.runs.resume import Position, read_point, restore, save_point


@pytest.mark.parametrize("opt", ["adamw", "sgd", "lamb", "adan", "adafactor", "lion", "rmsproptf", "lookahead_adamw"])
@pytest.mark.parametrize("steps", [0, 11])
def test_a_state_comes_back_and_goes_on_alike(tmp_path: Path, opt: str, steps: int) -> None:
    """The next update, too, is the same to the last bit; the twelfth is one at which Lookahead looks back."""
    model, optimizer = trained(opt, steps=steps)
    average = seeded(TwoConvs, 9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**7)
    scaler.scale(torch.ones(1))  # it begins with the first loss
    path = save_point(tmp_path, Position(updates=5), model, optimizer, average, scaler.state_dict(), 2)
    other = seeded(TwoConvs, 3)
    other_optimizer = create_optimizer(other, tiny(opt=opt))
    other_average, other_scaler = seeded(TwoConvs, 4), torch.amp.GradScaler("cpu")
    restore(read_point(path), other, other_optimizer, other_average, other_scaler)
    for own, step in ((model, optimizer), (other, other_optimizer)):
        own(torch.ones(2, 3, 8, 8)).square().sum().backward()
        step.step()
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
    for name, tensor in average.state_dict().items():
        assert torch.equal(other_average.state_dict()[name], tensor), name
    assert other_scaler.state_dict() == scaler.state_dict()


@pytest.mark.parametrize("opt", ["lamb", "adafactor", "adamw"])
def test_order_in_memory_comes_back(tmp_path: Path, opt: str) -> None:
    """An optimizer's sums over channels-last tensors are in their order: row-major ones would give other last bits."""
    model, other = (seeded(TwoConvs).to(memory_format=torch.channels_last) for _ in range(2))
    optimizer, other_optimizer = (create_optimizer(each, tiny(opt=opt, lr=0.01)) for each in (model, other))

    def step(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
        images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        model(images.to(memory_format=torch.channels_last)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for seed in range(3):
        step(model, optimizer, seed)
    path = save_point(tmp_path, Position(updates=3), model, optimizer, None, {}, 2)
    restore(read_point(path), other, other_optimizer, None, torch.amp.GradScaler("cpu"))
    for seed in range(3, 6):
        for own, its in ((model, optimizer), (other, other_optimizer)):
            step(own, its, seed)
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two), name
        for key, value in parameter_states(optimizer)[one].items():
            if isinstance(value, torch.Tensor):
                assert value.stride() == parameter_states(other_optimizer)[two][key].stride(), (name, key)


class Listing(torch.optim.SGD):
    """Keeps a list, as timm's Kron does."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["factors"] = [torch.ones(1)]


def test_an_optimizer_that_cannot_be_resumed_is_refused_at_once(tmp_path: Path) -> None:
    """After the first update, not at the first resume point, which may be an epoch later."""
    default_registry.register(OptimInfo("listing", Listing, "for a test"))
    seen: list[str] = []
    with pytest.raises(RequestError, match=r"^opt: Listing keeps a list for .*; choose another optimizer$"):
        run(
            seeded(TwoConvs),
            colours(tmp_path / "data"),
            tmp_path / "run",
            opt="listing",
            report=lambda now: seen.append(now.phase),
        )
    assert "training" not in seen
