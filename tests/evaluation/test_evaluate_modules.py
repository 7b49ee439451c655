"""`evaluate` of modules with weights in another dtype, without values, and of what is none."""

import copy
from collections.abc import Callable

import pytest
import torch
from data_pictures import draw_classes
from torch import nn

from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.errors import RequestError
from tcnn.evaluation.evaluate import evaluate
from tcnn.evaluation.outcomes import outcomes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return open_dataset(str(draw_classes(tmp_path_factory.mktemp("pictures"), ("ant", "bee", "cat"), 4)), "val")


@pytest.fixture(scope="module")
def model(lively: Callable[..., nn.Module]) -> nn.Module:
    return lively(num_classes=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_in_another_dtype(model: nn.Module, data: ImageSet, dtype: torch.dtype) -> None:
    """Its images are in it, too."""
    expected = evaluate(model, data)
    found = evaluate(copy.deepcopy(model).to(dtype), data)
    assert found.images == expected.images
    assert found.loss == pytest.approx(expected.loss, rel=1e-5 if dtype == torch.float64 else 0.02)
    answers = outcomes(copy.deepcopy(model).to(dtype), data)
    assert int(answers.right.sum()) == found.right


def test_what_is_no_model_or_has_no_values(model: nn.Module, data: ImageSet) -> None:
    with pytest.raises(RequestError, match=r"^model: expected a module, found 'resnet18'; load it by tcnn\.load or"):
        evaluate("resnet18", data)
    with pytest.raises(RequestError, match=r"expected values to evaluate, found none: .* is on the meta device"):
        evaluate(copy.deepcopy(model).to("meta"), data)
