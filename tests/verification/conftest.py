"""A CNN and its conversion, made once a file; every test has a copy."""

import copy

import pytest
from nets import seeded_model
from torch import nn

import tcnn


@pytest.fixture(scope="module")
def made() -> tuple[nn.Module, nn.Module]:
    source = seeded_model("test_resnet")
    return source, tcnn.convert(source).model


@pytest.fixture
def pair(made: tuple[nn.Module, nn.Module]) -> tuple[nn.Module, nn.Module]:
    """A copy of both."""
    return copy.deepcopy(made)
