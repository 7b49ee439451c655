"""Who learns how fast, and when: parameter groups, learning rates and temperature."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import timm
import torch
from tiny_runs import TwoConvs, seeded, tiny
from torch import nn

from tcnn import convert
from tcnn.config import FinetuneConfig
from tcnn.conversion.annealing import temperature
from tcnn.errors import RequestError
from tcnn.models.running import gpsa_layers
from tcnn.training.recipe.effects import rate_notes
from tcnn.training.recipe.freezing import ablate
from tcnn.training.recipe.optim import create_optimizer, create_schedule, parameter_groups

DECAY, LR, GATING = 0.05, 1e-4, 0.1
MODELS = ["test_resnet", "test_convnext", "test_efficientnet", "test_byobnet"]


def converted(name: str = "test_resnet") -> nn.Module:
    return convert(timm.create_model(name, num_classes=3)).model


def by_name(model: nn.Module, config: FinetuneConfig) -> dict[str, dict[str, Any]]:
    """The group of every parameter that is in one; fails if it is in two."""
    groups = parameter_groups(model, config)
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(held) == len(set(held))
    of = {id(parameter): group for group in groups for parameter in group["params"]}
    return {name: of[id(parameter)] for name, parameter in model.named_parameters() if id(parameter) in of}


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_in_one_group_and_the_right_one(name: str) -> None:
    model = converted(name)
    layers = gpsa_layers(model)
    assert layers
    found = by_name(model, FinetuneConfig())
    assert found.keys() == {name for name, _ in model.named_parameters()}
    excluded = {
        f"{layer}.{own}"
        for layer in layers
        for own in ("gating_param", "locality_raw", "attention_centers", "value", "bias")
    }
    for key, parameter in model.named_parameters():
        group = found[key]
        assert group["lr"] == (GATING if key.endswith(".gating_param") else LR), key
        plain = parameter.dim() > 1 and key not in excluded
        if not hasattr(model, "no_weight_decay"):
            assert group["weight_decay"] == (DECAY if plain else 0.0), key
    for layer in layers:
        for own in ("query", "key", "proj"):
            assert found[f"{layer}.{own}"]["weight_decay"] == DECAY
    gates = [group for group in parameter_groups(model, FinetuneConfig()) if group["lr"] == GATING]
    assert [len(group["params"]) for group in gates] == [len(layers)], "λ is alone in its group"


@pytest.mark.parametrize("opt", ["adamw", "sgd", "lamb"])
def test_the_value_matrix_is_not_pulled_to_zero(opt: str) -> None:
    """W_val = I has no gradient to withstand a decay; the filters behind it do decay."""
    model = converted()
    optimizer = create_optimizer(model, FinetuneConfig(opt=opt, lr=0.1, weight_decay=0.5))
    layer = next(iter(gpsa_layers(model).values()))
    before = layer.proj.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(layer.value, torch.eye(layer.in_channels))
    assert 0 < layer.proj.norm() < 0.99 * before.norm()


def test_what_is_frozen_is_in_no_group() -> None:
    model = converted()
    model.get_submodule("layer1").requires_grad_(False)
    found = by_name(model, FinetuneConfig())
    assert found.keys() == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert not any(name.startswith("layer1.") for name in found)


@pytest.mark.parametrize(("settings", "left"), [({"freeze_gpsa": True}, set()), ({"gating": False}, {"gating_param"})])
def test_ablations_are_in_no_group(settings: dict[str, bool], left: set[str]) -> None:
    model = converted()
    config = FinetuneConfig(**settings)
    ablate(model, config)
    found = by_name(model, config)
    for layer, module in gpsa_layers(model).items():
        trained = {name for name, _ in module.named_parameters() if f"{layer}.{name}" in found}
        everything = {name for name, _ in module.named_parameters()}
        assert trained == (everything - left if left else set())
    assert "fc.weight" in found


@pytest.mark.parametrize("kind", [set, list, tuple, frozenset])
def test_the_models_own_list_is_honoured(kind: Callable[[list[str]], Iterable[str]]) -> None:
    class Listed(TwoConvs):
        def no_weight_decay(self) -> Iterable[str]:
            return kind(["head.weight"])

    found = by_name(Listed(), FinetuneConfig())
    assert found["head.weight"]["weight_decay"] == 0
    assert found["last.weight"]["weight_decay"] == DECAY


def test_the_optimizer_has_these_groups() -> None:
    model = converted()
    optimizer = create_optimizer(model, FinetuneConfig(weight_decay=0.02, lr=3e-4, gating_lr=0.2))
    assert type(optimizer).__name__ == "AdamW"
    seen = {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups}
    assert seen == {(3e-4, 0.02), (3e-4, 0.0), (0.2, 0.0)}


@pytest.mark.parametrize("name", ["adamx", "adahessian", ""])
def test_an_optimizer_that_cannot_be_made(name: str) -> None:
    with pytest.raises(RequestError, match=r"^opt: ") as caught:
        create_optimizer(TwoConvs(), FinetuneConfig(opt=name))
    assert "\n" not in str(caught.value)


def test_nothing_to_train() -> None:
    with pytest.raises(RequestError, match="nothing to train"):
        create_optimizer(TwoConvs().requires_grad_(False), FinetuneConfig())


@pytest.mark.parametrize(("epochs", "warmup", "steps"), [(10, 3, 7), (4, 0, 5), (5, 1.5, 4), (2, 2, 3)])
def test_learning_rates_follow_the_formula_at_every_update(epochs: int, warmup: float, steps: int) -> None:
    """Linear from warmup_lr; then cosine over the whole length, of which the warm-up is the beginning (timm)."""
    config = tiny(
        epochs=epochs, warmup_epochs=warmup, lr=1e-3, gating_lr=0.2, position_lr=0.03, warmup_lr=1e-5, min_lr=1e-6
    )
    model = converted()
    optimizer = create_optimizer(model, config)
    layers = gpsa_layers(model).values()
    tops = {id(layer.gating_param): 0.2 for layer in layers} | {id(layer.locality_raw): 0.03 for layer in layers}
    schedule = create_schedule(optimizer, config, steps)
    for update in range(epochs * steps):
        schedule.step_update(update)
        for group in optimizer.param_groups:
            top = tops.get(id(group["params"][0]), 1e-3)
            if update < warmup * steps:
                expected = 1e-5 + (top - 1e-5) * update / (warmup * steps)
            else:
                expected = 1e-6 + (top - 1e-6) * 0.5 * (1 + math.cos(math.pi * update / (epochs * steps)))
            assert group["lr"] == pytest.approx(expected, rel=1e-12), (update, top)
    schedule.step_update(epochs * steps)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-6] * len(optimizer.param_groups)


def test_no_schedule_raises_a_learning_rate() -> None:
    """Each group warms up from `warmup_lr` and decays to `min_lr`, where these are below its own rate; 0 stays 0."""
    config = tiny(
        epochs=4, warmup_epochs=1, lr=1e-3, gating_lr=0.0, position_lr=1e-7, value_lr=3e-5, warmup_lr=1e-5, min_lr=1e-4
    )
    model = converted()
    optimizer = create_optimizer(model, config)
    schedule = create_schedule(optimizer, config, 5)
    layer = next(iter(gpsa_layers(model).values()))
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    seen: dict[str, list[float]] = {"gating_param": [], "locality_raw": [], "value": [], "query": []}
    for update in range(21):
        schedule.step_update(update)
        for name, rates in seen.items():
            rates.append(groups[id(layer.get_parameter(name))]["lr"])
    assert set(seen["gating_param"]) == {0.0}
    assert set(seen["locality_raw"]) == {1e-7}
    assert seen["value"][:6] == pytest.approx([1e-5, 1.4e-5, 1.8e-5, 2.2e-5, 2.6e-5, 3e-5])
    assert set(seen["value"][5:]) == {3e-5}
    assert (seen["query"][0], max(seen["query"]) <= 1e-3, seen["query"][-1]) == (1e-5, True, 1e-4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, []),
        ({"value_lr": 0.0}, []),
        ({"value_lr": 1e-6, "warmup_lr": 1e-6, "min_lr": 1e-6}, []),
        ({"lr": 1e-7, "warmup_epochs": 0, "anneal_epochs": 1}, ["min_lr: lr=1e-07: no decay, being below 1e-06"]),
        ({"value_lr": 3e-6, "warmup_lr": 1e-5}, ["warmup_lr: value_lr=3e-06: no warm-up, being below 1e-05"]),
        ({"min_lr": 0.5}, ["min_lr: lr=0.001, gating_lr=0.1, position_lr=0.02: no decay, being below 0.5"]),
    ],
)  # fmt: skip
def test_rates_that_do_not_change_are_said(options: dict[str, Any], said: list[str]) -> None:
    assert rate_notes(converted(), tiny(**{"lr": 1e-3, "gating_lr": 0.1, **options})) == said


def test_rates_of_what_a_model_lacks_are_not_said() -> None:
    assert rate_notes(TwoConvs(), tiny(lr=1e-3, value_lr=1e-7)) == []
    assert len(rate_notes(TwoConvs(), tiny(lr=1e-3, value_lr=1e-7, epochs=3, convert_at=1))) == 2


def test_a_schedule_needs_no_memory() -> None:
    """A new one that is told the update gives what an old one gives."""
    config = tiny(epochs=5)
    old, new = (create_optimizer(seeded(TwoConvs), config) for _ in range(2))
    schedule = create_schedule(old, config, 4)
    for update in range(14):
        schedule.step_update(update)
    create_schedule(new, config, 4).step_update(13)
    assert [group["lr"] for group in new.param_groups] == [group["lr"] for group in old.param_groups]


def test_temperature_is_log_linear_and_ends_at_one() -> None:
    start, length = 1 / 46, 23
    values = torch.tensor([temperature(update, start, length) for update in range(length)], dtype=torch.float64)
    assert values[-1] == 1
    assert values[0] == pytest.approx(start ** (1 - 1 / length), rel=1e-15), "the first step is a step already"
    steps = values.log().diff()
    torch.testing.assert_close(steps, torch.full_like(steps, math.log(46) / length), rtol=1e-12, atol=1e-14)
    assert [temperature(update, start, length) for update in (length, 10 * length)] == [1, 1]


def test_no_annealing() -> None:
    assert temperature(0, 1 / 46, 0) == 1
    assert temperature(0, 1.0, 10) == 1
