"""Weight decay leaves alone what says where attention looks, whoever makes the optimizer."""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import tcnn

POSITIONAL = ("gating_param", "locality_raw", "attention_centers")
SPARED = (*POSITIONAL, "value")
LAYERS = ("layer4.0.conv1", "layer4.0.conv2")
NAMES = {f"{layer}.{parameter}" for layer in LAYERS for parameter in SPARED}


def decays(optimizer: Optimizer, model: nn.Module) -> dict[str, float]:
    """The weight decay of every parameter by its name in the model."""
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    return {name: decay[id(parameter)] for name, parameter in model.named_parameters()}


def assert_exempt(model: nn.Module, optimized: nn.Module | None = None, **options: Any) -> None:
    """Of the model's matrices in GPSA layers the centres and W_val alone do not decay."""
    given = model if optimized is None else optimized
    optimizer = create_optimizer_v2(given, "adamw", lr=1e-3, weight_decay=0.05, **options)
    found = decays(optimizer, model)
    assert found.keys() >= NAMES
    assert {found[name] for name in NAMES} == {0.0}
    assert {found[f"{layer}.{matrix}"] for layer in LAYERS for matrix in ("query", "key", "proj")} == {0.05}


@pytest.fixture
def converted(lively: Callable[..., nn.Module]) -> nn.Module:
    return tcnn.convert(lively()).model


def test_it_names_the_positional_parameters_of_every_layer(converted: nn.Module) -> None:
    assert converted.no_weight_decay() >= NAMES
    assert_exempt(converted)


def test_it_keeps_what_the_model_itself_names(lively: Callable[..., nn.Module]) -> None:
    source = lively("vit_tiny_r_s16_p8_224", img_size=64)
    own = source.no_weight_decay()
    assert {"pos_embed", "cls_token"} <= own
    assert own < tcnn.convert(source, input_size=(64, 64)).model.no_weight_decay()


def test_every_entry_fits_a_parameter(converted: nn.Module) -> None:
    """timm's own tests demand it of every model."""
    from fnmatch import fnmatch

    names = [name for name, _ in converted.named_parameters()]
    assert all(any(fnmatch(name, entry) for name in names) for entry in converted.no_weight_decay())


def test_timms_training_step_leaves_the_hard_limit_as_it_is(converted: nn.Module) -> None:
    """One AdamW step with decay and without gradients for the centres moved every filter."""
    converted.train()
    before = {name: converted.get_parameter(name).clone() for name in NAMES if name.endswith(POSITIONAL)}
    optimizer = create_optimizer_v2(converted, "adamw", lr=0.1, weight_decay=0.5)
    converted(torch.randn(2, 3, 64, 64)).square().sum().backward()
    optimizer.step()
    assert all(torch.equal(converted.get_parameter(name), tensor) for name, tensor in before.items())


def test_it_is_there_however_the_model_came_about(converted: nn.Module, tmp_path: Path) -> None:
    file = tcnn.save(converted, tmp_path / "t.safetensors")
    pickled = pickle.loads(pickle.dumps(converted))
    buffer = io.BytesIO()
    torch.save(converted, buffer)
    buffer.seek(0)
    for model in (
        tcnn.load(file), timm.create_model("t_test_resnet"), copy.deepcopy(converted), pickled,
        torch.load(buffer, weights_only=False),
    ):  # fmt: skip
        assert_exempt(model)
    shape = timm.create_model("t_test_resnet")
    shape.load_state_dict(converted.state_dict())
    assert_exempt(shape)


def test_a_copy_answers_without_the_original(converted: nn.Module) -> None:
    twin = copy.deepcopy(converted)
    answer = converted.no_weight_decay()
    answer.clear()
    assert twin.no_weight_decay() >= NAMES
    assert converted.no_weight_decay() >= NAMES


def test_wrappers_do_not_hide_it(converted: nn.Module, tmp_path: Path) -> None:
    assert_exempt(converted, torch.compile(converted, backend="eager"))
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        assert_exempt(converted, DistributedDataParallel(converted).module)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("feature_cls", ["list", "hook", "getter"])
def test_feature_extractors_have_it_too(feature_cls: str) -> None:
    model = timm.create_model("t_test_resnet", features_only=True, feature_cls=feature_cls)
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05)
    centres = {name: decay for name, decay in decays(optimizer, model).items() if name.endswith(SPARED)}
    assert len(centres) == len(NAMES) and set(centres.values()) == {0.0}


def test_layer_wise_rates_go_with_it(converted: nn.Module) -> None:
    """timm's layer decay: one rate for each layer, its positions without weight decay."""
    assert_exempt(converted, layer_decay=0.5)
    optimizer = create_optimizer_v2(converted, "adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.5)
    scale = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    rates = {name: scale[id(parameter)] for name, parameter in converted.named_parameters()}
    for layer in LAYERS:
        own = {rate for name, rate in rates.items() if name.startswith(f"{layer}.")}
        assert len(own) == 1
    assert rates["layer4.0.conv1.query"] > rates["layer1.0.conv1.weight"]
