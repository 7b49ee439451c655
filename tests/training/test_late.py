"""Late reparametrisation: the optimizer's memory of a filter goes with the filter."""

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.layers.backends.convolution import proj_of
from tcnn.layers.gpsa import GPSA2d
from tcnn.training.recipe.optim import convert_in_training, create_optimizer

CONFIG = FinetuneConfig(
    lr=3e-3, opt="adamw", weight_decay=0.05, conversion=ConversionConfig(target=r"body\.\d", input_size=(9, 7))
)


class Net(nn.Module):
    """Strided, dilated and grouped convolutions between two that stay; smooth, so that gradients compare tightly."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 12, (3, 5), stride=(2, 1), padding=(1, 2), bias=False),
            nn.Conv2d(12, 8, 3, padding=2, dilation=2, groups=4),
        )  # fmt: skip
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        for layer in self.body:
            x = torch.tanh(layer(x))
        return self.head(x.mean((2, 3)))


def one_step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What one update adds to every parameter."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    return {name: p.detach() - before[name] for name, p in model.named_parameters()}


@pytest.mark.parametrize(("opt", "heads"), [("adamw", 0), ("sgd", 0), ("lion", 0), ("adamw", 2), ("lion", 1)])
def test_the_first_update_is_the_one_that_the_cnn_would_have_made(opt: str, heads: int) -> None:
    """Content heads beside the taps have no part in it."""
    torch.manual_seed(0)
    conversion = CONFIG.conversion.model_copy(update={"content_heads": heads})
    config = CONFIG.model_copy(update={"opt": opt, "conversion": conversion})
    model = Net().double()
    optimizer = create_optimizer(model, config)
    batches = [(torch.randn(4, 3, 9, 7, dtype=torch.float64), torch.randint(5, (4,))) for _ in range(4)]
    for x, y in batches[:3]:
        one_step(model, optimizer, x, y)
    converted, moved = convert_in_training(model, optimizer, config)
    assert sum(isinstance(m, GPSA2d) for m in converted.modules()) == 3
    cnn, tcnn = one_step(model, optimizer, *batches[3]), one_step(converted, moved, *batches[3])
    for name, change in cnn.items():
        other = name.replace("body.0.weight", "body.0.proj").replace("body.1.weight", "body.1.proj")
        other = other.replace("body.2.weight", "body.2.proj")
        expected = proj_of(change) if other != name else change
        assert expected.abs().max() > 0
        torch.testing.assert_close(tcnn[other][:, : expected.shape[1]] if other != name else tcnn[other], expected,
                                   rtol=1e-9, atol=1e-13, msg=name)  # fmt: skip


def test_without_its_memory_the_update_is_another() -> None:
    """The test above can fail: a fresh optimizer's first AdamW step differs from the fourth."""
    torch.manual_seed(0)
    model = Net().double()
    optimizer = create_optimizer(model, CONFIG)
    x, y = torch.randn(4, 3, 9, 7, dtype=torch.float64), torch.randint(5, (4,))
    for _ in range(3):
        one_step(model, optimizer, x, y)
    converted, _ = convert_in_training(model, optimizer, CONFIG)
    fresh = create_optimizer(converted, CONFIG)
    cnn, tcnn = one_step(model, optimizer, x, y), one_step(converted, fresh, x, y)
    assert not torch.allclose(tcnn["body.0.proj"], proj_of(cnn["body.0.weight"]), rtol=1e-2)


def test_new_parameters_start_without_a_memory_and_the_optimizer_is_left_alone() -> None:
    torch.manual_seed(0)
    model = Net().double()
    optimizer = create_optimizer(model, CONFIG)
    one_step(model, optimizer, torch.randn(4, 3, 9, 7, dtype=torch.float64), torch.randint(5, (4,)))
    kept = optimizer.state[model.body[0].weight]["exp_avg"].clone()
    converted, moved = convert_in_training(model, optimizer, CONFIG)
    layer = converted.get_submodule("body.0")
    assert isinstance(layer, GPSA2d)
    for parameter in (layer.query, layer.key, layer.value, layer.gating_param, layer.locality_raw):
        assert parameter not in moved.state
    memory = moved.state[layer.proj]["exp_avg"]
    assert torch.equal(memory, proj_of(kept))
    memory.zero_()
    assert torch.equal(optimizer.state[model.body[0].weight]["exp_avg"], kept)


def test_moments_of_a_standardised_weight_are_not_taken_for_those_of_its_filter() -> None:
    torch.manual_seed(0)
    config = FinetuneConfig()
    model = timm.create_model("test_nfnet", num_classes=4)
    optimizer = create_optimizer(model, config)
    one_step(model, optimizer, torch.randn(2, 3, 64, 64), torch.randint(4, (2,)))
    converted, moved = convert_in_training(model, optimizer, config, ConversionConfig(input_size=(64, 64)))
    layers = [m for m in converted.modules() if isinstance(m, GPSA2d)]
    assert layers
    for layer in layers:
        assert layer.proj not in moved.state
        assert layer.bias is None or layer.bias in moved.state


def test_every_group_counts_its_own_steps() -> None:
    """LAMB's counter is a tensor: shared by all groups it would go up once for each of them at every step."""
    torch.manual_seed(0)
    config = CONFIG.model_copy(update={"opt": "lamb"})
    model = Net()
    optimizer = create_optimizer(model, config)
    x, y = torch.randn(4, 3, 9, 7), torch.randint(5, (4,))
    for _ in range(3):
        one_step(model, optimizer, x, y)
    converted, moved = convert_in_training(model, optimizer, config)
    assert len(moved.param_groups) > 1
    for steps in (3, 4, 5):
        assert {int(group["step"]) for group in moved.param_groups} == {steps}
        one_step(converted, moved, x, y)
    assert {int(group["step"]) for group in optimizer.param_groups} == {3}


@pytest.mark.parametrize("opt", ["adafactor", "adafactorbv"])
def test_sums_over_the_rows_of_a_filter_start_afresh(opt: str) -> None:
    """They say nothing of W_out, which has other rows; all else goes on, and the user is told."""
    torch.manual_seed(0)
    config = CONFIG.model_copy(update={"opt": opt, "conversion": ConversionConfig(target="1|2", input_size=(9, 7))})
    model = nn.Sequential(
        nn.Conv2d(3, 32, 1), nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 4, 3, padding=1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip
    optimizer = create_optimizer(model, config)
    x, y = torch.randn(4, 3, 9, 7), torch.randint(5, (4,))
    one_step(model, optimizer, x, y)
    said: list[str] = []
    converted, moved = convert_in_training(model, optimizer, config, warn=said.append)
    assert said == [
        f"{opt} keeps sums over the rows and columns of a filter, which W_out does not have: its state of 1 filter "
        "starts afresh"
    ]
    states = {name: moved.state.get(parameter, {}) for name, parameter in converted.named_parameters()}
    assert states["5.weight"]
    assert states["1.bias"]
    assert states["2.proj"], "which is too small to be factored"
    assert not states["1.proj"]
    for change in one_step(converted, moved, x, y).values():
        assert change.isfinite().all()
