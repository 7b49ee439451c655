"""Tables of d'Ascoli et al. 2021: Table 1, the choices by model; Table 2, parameters and cost of the T-ResNet-RS, on
the meta device, without data.

The paper's "Flops" are 2 × multiply-adds, as torch's own counter counts them: matrix products and convolutions.
Measured here: 38.03, 65.95, 88.96, 95.54, 132.97 and 167.07 M parameters; 15.8, 23.2, 65.2 and 79.5 G where the paper
has 17.6, 25.1, 65.8 and 80.2.
"""

from functools import cache

import pytest
import torch
from nets import meta_model
from sampled import sampled
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tcnn
from tcnn.config import FinetuneConfig
from tcnn.layers.backends.selection import use_backend
from tcnn.training.preparing.settings import drop_path_for, size_for


@cache
def t_resnet(name: str) -> nn.Module:
    return tcnn.convert(meta_model(name), stride="remove").model.eval()


def flops(model: nn.Module, size: int) -> float:
    """2 × multiply-adds of one image of size × size, by the formula as it is written."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter, use_backend("reference"):
        model.eval()(torch.empty(1, 3, size, size, device="meta"))
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "millions"),
    sampled(
        [
            ("resnetrs50", 38),
            ("resnetrs101", 66),
            ("resnetrs152", 89),
            ("resnetrs200", 96),
            ("resnetrs270", 133),
            ("resnetrs350", 167),
        ],
        [("resnetrs50", 38)],
    ),
)
def test_parameters(name: str, millions: int) -> None:
    assert round(sum(parameter.numel() for parameter in t_resnet(name).parameters()) / 1e6) == millions


@pytest.mark.parametrize(
    ("name", "size", "paper", "ours"),
    sampled(
        [
            ("resnetrs50", 224, 17.6, 15.79),
            ("resnetrs101", 224, 25.1, 23.23),
            ("resnetrs152", 320, 65.8, 65.21),
            ("resnetrs200", 320, 80.2, 79.48),
        ],
        [("resnetrs50", 224, 17.6, 15.79)],
    ),
)
def test_cost(name: str, size: int, paper: float, ours: float) -> None:
    """At most the paper's, and exactly what was measured: a change of the arithmetic must be noticed."""
    found = flops(t_resnet(name), size) / 1e9
    assert found <= paper
    assert found == pytest.approx(ours, abs=0.005)


@pytest.mark.slow
def test_the_same_counter_gives_the_papers_number_for_the_cnn() -> None:
    assert round(flops(meta_model("resnetrs50"), 160) / 1e9, 1) == 4.6


PAPER = [(50, 224, 0.1), (101, 224, 0.1), (152, 320, 0.2), (200, 320, 0.2), (270, 320, 0.2), (350, 320, 0.2)]
"""Columns "Res." and "dr" under "Fine-tuning" of Table 1."""


@pytest.mark.parametrize(("depth", "size", "drop_path"), PAPER)
def test_table_1(depth: int, size: int, drop_path: float) -> None:
    config, name = FinetuneConfig(), f"resnetrs{depth}"
    assert size_for(config, name, {"input_size": (3, 160, 160), "test_input_size": (3, 192, 192)}) == (size, size)
    assert drop_path_for(config, name, 1) == drop_path


@pytest.mark.parametrize(
    ("cfg", "size"),
    [
        ({"input_size": (3, 160, 160), "test_input_size": (3, 224, 192)}, (224, 192)),
        ({"input_size": (3, 160, 128), "test_input_size": None}, (160, 128)),
        ({"input_size": (1, 28, 28)}, (28, 28)),
        ({}, (224, 224)),
    ],
)
def test_other_models_are_trained_at_their_test_size(cfg: dict[str, object], size: tuple[int, int]) -> None:
    assert size_for(FinetuneConfig(), "resnet50d", cfg) == size


@pytest.mark.parametrize(("given", "size"), [(96, (96, 96)), ((64, 48), (64, 48))])
def test_a_given_size_wins(given: object, size: tuple[int, int]) -> None:
    assert size_for(FinetuneConfig(size=given), "resnetrs50", {"input_size": (3, 160, 160)}) == size


@pytest.mark.parametrize(("parameters", "rate"), [(25_000_000, 0.1), (59_999_999, 0.1), (60_000_000, 0.2)])
def test_stochastic_depth_by_size(parameters: int, rate: float) -> None:
    assert drop_path_for(FinetuneConfig(), "resnet50d", parameters) == rate


@pytest.mark.parametrize("name", ["resnetrs350", "resnet50d"])
@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_a_given_stochastic_depth_wins(name: str, rate: float) -> None:
    assert drop_path_for(FinetuneConfig(drop_path=rate), name, 10**9) == rate
