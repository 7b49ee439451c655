"""Table 2 of d'Ascoli et al. 2021: parameters and cost of the T-ResNet-RS, on the meta device, without data.

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
from tcnn.layers.backends.selection import use_backend


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
