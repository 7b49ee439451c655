"""The paper's choices by model (Transformed CNNs, Table 1)."""

import pytest

from tcnn.config import FinetuneConfig
from tcnn.training.recipe.model_defaults import drop_path_for, size_for

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
