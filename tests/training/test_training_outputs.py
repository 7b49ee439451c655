"""A model whose output in training differs from that in evaluation is refused before a run is written."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from tiny_runs import COLOURS, TwoConvs, colours
from torch import Tensor, nn

import tcnn
from tcnn.errors import RequestError
from tcnn.training.recipe.objective import check_training_output

IMAGE = 3, 64, 64


class Two(TwoConvs):
    """Returns its logits twice in training, as deep supervision does."""

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return (logits, logits) if self.training else logits


class Named(TwoConvs):
    """Returns a dictionary in training."""

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return {"logits": logits} if self.training else logits


def googlenet(**options: Any) -> nn.Module:
    net: nn.Module = torchvision.models.googlenet(weights=None, num_classes=3, init_weights=False, **options)
    return net


@pytest.mark.parametrize(("kind", "found"), [(Two, "tuple"), (Named, "dict")])
def test_more_than_logits_in_training_is_refused_before_anything_is_written(
    kind: type[nn.Module], found: str, tmp_path: Path
) -> None:
    data, out = colours(tmp_path / "data"), tmp_path / "run"
    told = rf"^{kind.__name__}: expected a tensor of logits as its output in training mode, found {found}; "
    for _ in range(2):
        with pytest.raises(RequestError, match=told):
            tcnn.finetune(kind(), data, out=out, quiet=True, epochs=1, batch_size=4, workers=0, size=32)
        assert not out.exists() or not list(out.iterdir())


def test_auxiliary_outputs_are_named_with_the_way_out() -> None:
    net = googlenet()
    told = r"^GoogLeNet: expected a tensor of logits .* found GoogLeNetOutputs; set its aux_logits to False"
    with pytest.raises(RequestError, match=told):
        check_training_output(net, IMAGE)
    net.aux_logits = False
    check_training_output(net, IMAGE)


@pytest.mark.parametrize("name", ["test_resnet", "t_test_resnet", "test_vit"])
def test_models_that_return_logits_pass_and_stay_as_they_are(name: str) -> None:
    net = timm.create_model(name, num_classes=len(COLOURS)).eval()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    check_training_output(net, (3, *(net.pretrained_cfg["input_size"][1:])))
    assert not net.training
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_what_cannot_run_without_values_is_left_to_the_first_step() -> None:
    class Branches(TwoConvs):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x) if float(x.sum()) >= 0 else super().forward(-x)

    check_training_output(Branches(), IMAGE)


def test_a_model_that_states_its_classes_is_asked_too() -> None:
    """timm's Inception has auxiliary logits if it is told so, and states its number of classes."""
    net = timm.create_model("inception_v3", num_classes=3, aux_logits=True)
    with pytest.raises(RequestError, match=r"^InceptionV3: expected a tensor of logits .* found tuple"):
        check_training_output(net, (3, 299, 299))
