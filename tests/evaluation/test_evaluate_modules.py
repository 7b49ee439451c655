"""`evaluate` of modules: left as they were, with weights in another dtype, in low precision, grey, whose answers are no
numbers, without values; and of what is none."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.errors import RequestError
from tcnn.evaluation.evaluate import evaluate
from tcnn.evaluation.outcomes import outcomes


def test_every_module_keeps_its_mode(model: nn.Module, data: ImageSet) -> None:
    model.train()
    model.layer2.eval()
    before = {name: module.training for name, module in model.named_modules()}
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    evaluate(model, data, size=40)
    with pytest.raises(RequestError):
        evaluate(model, data, size=40, class_subset=[0])
    assert {name: module.training for name, module in model.named_modules()} == before
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    model.eval()


def test_training_goes_on_afterwards(model: nn.Module, data: ImageSet) -> None:
    """Nothing made in inference mode stays behind in the model."""
    evaluate(model, data, size=40)
    model(torch.randn(2, 3, 40, 40)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.zero_grad()


class Sick(nn.Module):
    """Right about every other image; the rest is not a number."""

    def __init__(self, targets: Tensor) -> None:
        super().__init__()
        self.targets, self.place, self.pretrained_cfg = targets, 0, {"input_size": (3, 16, 16)}

    def forward(self, images: Tensor) -> Tensor:
        targets = self.targets[self.place : self.place + len(images)]
        logits = nn.functional.one_hot(targets, 7).float()
        logits[self.place % 2 :: 2] = float("nan")
        self.place += len(images)
        return logits


def test_what_is_not_a_number_is_wrong(data: ImageSet) -> None:
    found = evaluate(Sick(data.targets), data, batch_size=5)
    assert found.right < 20
    assert found.right == found.right5
    assert np.isnan(found.loss)
    assert json.loads(found.model_dump_json())["loss"] is None
    done: list[int] = []
    told = outcomes(Sick(data.targets), data, batch_size=5, progress=done.append)
    assert sum(done) == len(data)
    assert [*told.predicted[1::2]] == [*data.targets[1::2]] and {*told.predicted[::2]} == {-1}
    assert (told.confidence[1::2] > 1 / 7).all() and not told.confidence[::2].any()


def test_low_precision(model: nn.Module, data: ImageSet) -> None:
    exact, coarse = evaluate(model, data, size=40), evaluate(model, data, size=40, amp="bfloat16")
    assert coarse.loss != exact.loss
    assert coarse.loss == pytest.approx(exact.loss, rel=0.05)


def test_grey_images(root: Path) -> None:
    grey = timm.create_model("test_resnet", num_classes=7, in_chans=1)
    assert evaluate(grey, open_dataset(str(root), "val", in_chans=1), size=32).images == 35


@pytest.mark.parametrize(
    "dtype", [torch.float16, *(pytest.param(d, marks=pytest.mark.slow) for d in (torch.bfloat16, torch.float64))]
)
def test_weights_in_another_dtype(model: nn.Module, data: ImageSet, dtype: torch.dtype) -> None:
    """Its images are in it, too."""
    expected = evaluate(model, data)
    found = evaluate(copy.deepcopy(model).to(dtype), data)
    assert found.images == expected.images
    assert found.loss == pytest.approx(expected.loss, rel=1e-5 if dtype == torch.float64 else 0.02)
    answers = outcomes(copy.deepcopy(model).to(dtype), data)
    assert int(answers.right.sum()) == found.right


def test_what_is_no_model_or_has_no_values(model: nn.Module, data: ImageSet) -> None:
    with pytest.raises(RequestError, match=r"^model: expected a module, found a value of type int; "):
        evaluate(3, data)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="nosuch_model"):
        evaluate("nosuch_model", data)
    with pytest.raises(RequestError, match=r"expected values to evaluate, found none: .* is on the meta device"):
        evaluate(copy.deepcopy(model).to("meta"), data)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Linear(3, 3), r"^Linear does not run on an image of 3×32×32 \("),
        (nn.ModuleList([nn.Conv2d(3, 3, 3)]), r"^ModuleList: expected a model that runs on a batch of images, found "),
        (
            nn.Conv2d(1, 7, 3),
            r"^data: expected images of 1 channel, as the model takes, found 3; open them with in_ch",
        ),
    ],
)
def test_what_does_not_run_on_the_images_is_told_in_one_line(module: nn.Module, said: str, data: ImageSet) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        evaluate(module, data, size=32)
    assert "\n" not in str(caught.value)
