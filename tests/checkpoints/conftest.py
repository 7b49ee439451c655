"""A converted model and the file that it was written to; nobody changes either."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

import tcnn


@pytest.fixture(scope="session")
def converted(lively: Callable[..., nn.Module]) -> nn.Module:
    return tcnn.convert(lively(num_classes=10)).model


@pytest.fixture(scope="session")
def written(converted: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tcnn.save(converted, tmp_path_factory.mktemp("written") / "model.safetensors")
