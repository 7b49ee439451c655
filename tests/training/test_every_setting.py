"""Every setting of a run either changes what comes of it or is refused where it is given, and then has no effect.

Each is given another value in tiny runs of several kinds. What is refused because it has no effect is then had from a
configuration, where it may stand, and the weights are those of the run without it, to the bit.
"""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import tcnn
from tcnn.config import FinetuneConfig, finetune_config
from tcnn.config.finetune import RUNTIME
from tcnn.errors import RequestError
from tcnn.training.recipe.effects import has_momentum

OTHER: dict[str, Any] = {
    "convert": False, "convert_at": 1, "conversion": {"content_heads": 2}, "filters": "random", "init": "impulse",
    "freeze": "trunk", "freeze_gpsa": True, "gating": False, "size": 48, "drop_path": 0.3, "seed": 1, "val_split": 0.4,
    "fraction": 0.5, "epochs": 3, "batch_size": 4, "micro_batch": 4, "opt": "sgd", "lr": 3e-3, "gating_lr": 5.0,
    "attention_lr": 1.0, "value_lr": 1.0, "output_lr": 1.0, "content_output_scale": 0.01, "position_lr": 1.0,
    "warmup_epochs": 0.7, "warmup_lr": 1e-3, "min_lr": 1e-3, "weight_decay": 0.5, "momentum": 0.5, "clip_grad": 0.1,
    "ema": 0.5, "anneal": "none", "anneal_epochs": 0.3, "anneal_path": "drift", "gate_temperature": 0.3,
    "position_temperature": 0.3, "hold": "all", "bn_reestimate": 2, "repeats": 2, "auto_augment": "rand-m3",
    "color_jitter": 0.4, "train_interpolation": "bilinear", "scale": (0.5, 0.6), "ratio": (1.5, 1.6), "crop_padding": 4,
    "hflip": 0.0, "vflip": 1.0, "reprob": 1.0, "mixup": 0.5, "cutmix": 0.5, "mixup_prob": 0.5, "mixup_switch_prob": 0.9,
    "smoothing": 0.3, "teacher": "source", "distillation": "hard", "distillation_weight": 0.9,
    "distillation_temperature": 4.0, "matching": 1.0,
}  # fmt: skip
"""Settings, each with a value that no preset has."""
OF_THE_MACHINE = {*RUNTIME, "amp", "channels_last", "max_unreadable"}
"""How a run is executed, or a bound that these images do not reach."""
TINY: dict[str, Any] = {"epochs": 2, "batch_size": 8, "size": 32, "workers": 0, "device": "cpu", "val_split": 0.2}
ANNEALED = TINY | {"warmup_epochs": 1, "repeats": 1}


def resnet() -> nn.Module:
    return timm.create_model("test_resnet", num_classes=3)


def convit() -> nn.Module:
    return timm.create_model("convit_tiny", num_classes=3, img_size=32, depth=2, local_up_to_layer=1)


def attentive() -> nn.Module:
    return timm.create_model("cordonnier_quadratic", num_classes=3, depth=1, embed_dim=16, mlp_dim=16, heads=2)


def annealed_already() -> nn.Module:
    return tcnn.convert(resnet(), temperature=1.0).model


class Kind(NamedTuple):
    """A kind of run: its network, its preset, and what is set beside it."""

    make: Callable[[], nn.Module]
    preset: str
    settings: dict[str, Any]


KINDS = {
    "cnn": Kind(resnet, "quick", TINY | {"convert": False}),
    "annealed": Kind(resnet, "paper", ANNEALED),
    "held": Kind(resnet, "quick", TINY),
    "at once": Kind(resnet, "paper", ANNEALED | {"anneal": "none"}),
    "at its end": Kind(annealed_already, "paper", ANNEALED),
    "frozen": Kind(resnet, "paper", ANNEALED | {"freeze_gpsa": True}),
    "without gates": Kind(resnet, "quick", TINY | {"gating": False}),
    "converted late": Kind(resnet, "quick", TINY | {"convert_at": 1, "anneal": "warmup", "warmup_epochs": 0.5}),
    "convit": Kind(convit, "quick", TINY | {"convert": False}),
    "attentive": Kind(attentive, "cifar", TINY | {"convert": False}),
    "distilled": Kind(resnet, "paper", ANNEALED | {"teacher": "source", "opt": "sgd"}),
}
SOME = [
    ("cnn", "gating_lr"), ("cnn", "freeze_gpsa"), ("annealed", "momentum"), ("annealed", "gating_lr"),
    ("held", "position_lr"), ("frozen", "output_lr"),
]  # fmt: skip
"""One of every rule, for the tests that are quick."""
ALIKE = {
    *list(OTHER)[list(OTHER).index("repeats") : list(OTHER).index("teacher")], "size", "drop_path", "seed", "val_split",
    "fraction", "epochs", "batch_size", "micro_batch", "lr", "warmup_epochs", "warmup_lr", "min_lr", "weight_decay",
    "clip_grad",
}  # fmt: skip
"""They have the same effect in every kind of run, and are given in one."""
ALL = [
    pytest.param(kind, name, marks=[] if (kind, name) in SOME else pytest.mark.slow)
    for kind in KINDS
    for name in OTHER
    if kind == "cnn" or name not in ALIKE
]

Trained = dict[str, dict[str, Tensor]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise, of which every augmentation makes something else."""
    root, generator = tmp_path_factory.mktemp("noise"), np.random.default_rng(0)
    for label in ("a", "b", "c"):
        (root / label).mkdir()
        for number in range(10):
            pixels = generator.integers(0, 256, (40, 44, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def train(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """Runs one, and returns the weights in all its files."""
    out = tmp_path_factory.mktemp("run") / "run"

    def train(kind: str, more: dict[str, Any], **given: Any) -> Trained:
        make, preset, settings = KINDS[kind]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = make()
        config = finetune_config(preset, options={**settings, **more})
        shutil.rmtree(out, ignore_errors=True)
        tcnn.finetune(model, data, config=config, out=out, quiet=True, **given)
        return {file.name: load_file(file) for file in sorted(out.glob("*.safetensors"))}

    return train


@pytest.fixture(scope="module")
def plain(train: Callable[..., Trained]) -> Callable[[str], Trained]:
    """What comes of a kind of run without any other setting."""
    return cache(lambda kind: train(kind, {}))


def same(one: Trained, other: Trained) -> bool:
    """Whether the files have the same weights, to the bit."""
    return one.keys() == other.keys() and all(
        first.keys() == other[file].keys()
        and all(torch.equal(tensor, other[file][name]) for name, tensor in first.items())
        for file, first in one.items()
    )


def test_these_are_all() -> None:
    assert OTHER.keys() | OF_THE_MACHINE == set(FinetuneConfig.model_fields)
    assert not OTHER.keys() & OF_THE_MACHINE


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_it_has_an_effect_or_is_refused(
    kind: str, name: str, train: Callable[..., Trained], plain: Callable[[str], Trained]
) -> None:
    given = {name: OTHER[name]}
    if KINDS[kind].settings.get(name) == OTHER[name] or (kind, name) == ("at its end", "anneal"):
        return  # it is so already: τ at its final value, too, which is what `none` asks for
    try:
        found = train(kind, {}, **given)
    except RequestError as error:
        if "has no effect" in str(error):
            assert same(train(kind, given), plain(kind)), "it was refused, and has an effect"
        return
    assert not same(found, plain(kind)), "it has no effect, and was not refused"


def test_what_a_setting_has_anyway_is_no_mistake(
    train: Callable[..., Trained], plain: Callable[[str], Trained]
) -> None:
    settings = {"gating": True, "freeze_gpsa": False, "gating_lr": 0.1, "attention_lr": None, "momentum": 0.9}
    assert same(train("cnn", {}, **settings), plain("cnn"))


@pytest.mark.parametrize(
    ("opt", "has"),
    [("adamw", False), ("SGD", True), ("lookahead_sgd", True), ("lookahead_adam", False), ("none", True)],
)
def test_an_optimizers_momentum_is_timms_to_know(opt: str, has: bool) -> None:
    assert has_momentum(opt) is has
