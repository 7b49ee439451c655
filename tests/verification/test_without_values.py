"""A model on the meta device is converted, and refused in one line where values are computed; so is what is no batch of
images."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from nets import meta_model
from torch import nn

import tcnn
from tcnn.errors import RequestError

IMAGES = torch.zeros(1, 3, 32, 32)
VERBS: dict[str, Callable[[nn.Module, nn.Module, Path], object]] = {
    "verify": lambda source, model, path: tcnn.verify(source, model),
    "explain": lambda source, model, path: tcnn.explain(source, model, IMAGES),
    "fold": lambda source, model, path: tcnn.fold(model),
    "prune": lambda source, model, path: tcnn.prune(model),
    "fuse": lambda source, model, path: tcnn.fuse(model),
    "inspect": lambda source, model, path: tcnn.inspect(model, IMAGES),
    "save": lambda source, model, path: tcnn.save(model, path / "m.safetensors"),
    "export": lambda source, model, path: tcnn.export(model, path / "m.pt2"),
}


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, nn.Module]:
    source = meta_model("test_resnet").to("meta")
    return source, tcnn.convert(source).model


@pytest.mark.parametrize("verb", VERBS)
def test_says_that_there_are_no_values(verb: str, pair: tuple[nn.Module, nn.Module], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=rf"^ResNet: expected values to {verb}, found none: conv1\.0\.weight is on"):
        VERBS[verb](*pair, tmp_path)


OF_IMAGES: dict[str, Callable[[nn.Module, nn.Module, torch.Tensor], object]] = {
    "verify": lambda source, model, images: tcnn.verify(source, model, images=images),
    "explain": tcnn.explain,
    "fold": lambda source, model, images: tcnn.fold(model, images=images),
    "prune": lambda source, model, images: tcnn.prune(model, images=images),
    "inspect": lambda source, model, images: tcnn.inspect(model, images),
}


@pytest.mark.parametrize("verb", OF_IMAGES)
def test_says_what_images_are(verb: str, made: tuple[nn.Module, nn.Module]) -> None:
    for wrong in (IMAGES[:0], IMAGES[0]):
        with pytest.raises(RequestError) as error:
            OF_IMAGES[verb](*made, wrong)
        found = f"at least one image, found {tuple(wrong.shape)}"
        assert str(error.value) == f"images: expected a tensor of shape (B, C, H, W), {found}"
