"""Pictures and models that tests of evaluation share: five pets, and seven animals."""

from collections.abc import Callable
from pathlib import Path

import pytest
from data_pictures import ANIMALS, PETS, draw_classes
from timm.models import save_for_hf
from torch import nn

import tcnn
from tcnn.data.image_set import ImageSet, open_dataset


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(draw_classes(tmp_path_factory.mktemp("pets"), PETS, 3))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> str:
    return str(tcnn.save(tcnn.convert(lively(num_classes=5)).model, tmp_path_factory.mktemp("t") / "t.safetensors"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> str:
    directory = tmp_path_factory.mktemp("source")
    save_for_hf(lively(num_classes=5), directory, safe_serialization=True)
    return f"local-dir:{directory}"


@pytest.fixture(scope="module")
def imagenet_model(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> str:
    directory = tmp_path_factory.mktemp("imagenet")
    save_for_hf(lively(), directory, safe_serialization=True)
    return f"local-dir:{directory}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("pictures"), ANIMALS, 5)


@pytest.fixture(scope="module")
def data(root: Path) -> ImageSet:
    return open_dataset(str(root), "val")


@pytest.fixture(scope="module")
def model(lively: Callable[..., nn.Module]) -> nn.Module:
    return lively(num_classes=7)
