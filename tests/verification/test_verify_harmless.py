"""Verification leaves both models as they were, whatever happens, and refuses what it cannot compare in one line; so
does every verb with a model on the meta device, and with what is no batch of images.
"""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import timm
import torch
from nets import image, meta_model, same_state, snapshot
from torch import nn

import tcnn
from tcnn.errors import RequestError

OPTIONS = {"input_size": (64, 96), "batch_size": 1}


class TestLeavesNoMark:
    @pytest.fixture(autouse=True)
    def unchanged(self, pair: tuple[nn.Module, nn.Module]) -> Iterator[None]:
        """Whatever the test does, both models have the same bits, modes, hooks and gradients afterwards."""
        for model in pair:
            model.train()
            model.layer1.eval()
            model.layer2.requires_grad_(False)
        before = [(snapshot(model), modes(model), wants(model)) for model in pair]
        yield
        for model, (state, mode, want) in zip(pair, before, strict=True):
            assert same_state(model, state)
            assert modes(model) == mode and wants(model) == want
            assert all(parameter.grad is None for parameter in model.parameters())
            assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    @pytest.mark.parametrize("randomise", [True, False])
    def test_when_it_passes(self, pair: tuple[nn.Module, nn.Module], randomise: bool) -> None:
        assert tcnn.verify(*pair, randomise=randomise, **OPTIONS).passed

    def test_when_the_models_raise(self, pair: tuple[nn.Module, nn.Module]) -> None:
        with pytest.raises(Exception, match="channels"):
            tcnn.verify(*pair, randomise=True, images=image((64, 64), channels=4))

    def test_when_drift_raises(self, pair: tuple[nn.Module, nn.Module]) -> None:
        """The last forward pass fails, after all that was changed has been changed."""

        def stop(step: str) -> None:
            if step == "drift":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tcnn.verify(*pair, randomise=True, progress=stop, **OPTIONS)

    @pytest.mark.parametrize("randomise", [True, False])
    @pytest.mark.parametrize(
        "name", ["test_convnext", "test_byobnet", pytest.param("resnet18", marks=pytest.mark.slow)]
    )
    def test_when_the_source_is_the_wrong_one(
        self, pair: tuple[nn.Module, nn.Module], name: str, randomise: bool
    ) -> None:
        assert self.refused(timm.create_model(name), pair[1], randomise).endswith("is it the right source?")

    @pytest.mark.parametrize("randomise", [True, False])
    def test_when_the_source_has_other_widths(self, pair: tuple[nn.Module, nn.Module], randomise: bool) -> None:
        said = self.refused(timm.create_model("test_resnet", channels=(32, 48, 64, 96)), pair[1], randomise)
        assert said == (
            "layer4.0.conv1: the converted model has a GPSA layer of 192 to 96 channels here, the source has "
            "a convolution of 256 to 96 channels; is it the right source?"
        )

    def test_when_the_trunk_of_the_source_has_other_widths(self, pair: tuple[nn.Module, nn.Module]) -> None:
        said = self.refused(timm.create_model("test_resnet", channels=(24, 48, 48, 96)), pair[1], True)
        assert said.endswith("source and converted model differ in it; is it the right source?")

    @staticmethod
    def refused(wrong: nn.Module, converted: nn.Module, randomise: bool) -> str:
        """The one line in which it is refused; the source is as it was."""
        before = snapshot(wrong)
        with pytest.raises(RequestError) as caught:
            tcnn.verify(wrong, converted, randomise=randomise, **OPTIONS)
        assert "\n" not in str(caught.value)
        assert same_state(wrong, before)
        return str(caught.value)


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


def wants(model: nn.Module) -> dict[str, bool]:
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


class TestRefused:
    def test_a_source_that_lacks_the_layers(self, pair: tuple[nn.Module, nn.Module]) -> None:
        expected = r"^layer4\.0\.conv1: .* the source has nothing; is it the right source\?$"
        with pytest.raises(RequestError, match=expected):
            tcnn.verify(timm.create_model("test_convnext"), pair[1], **OPTIONS)

    def test_the_converted_model_as_its_own_source(self, pair: tuple[nn.Module, nn.Module]) -> None:
        with pytest.raises(RequestError, match="the source has GPSA2d"):
            tcnn.verify(pair[1], pair[1], **OPTIONS)

    def test_two_cnns(self, pair: tuple[nn.Module, nn.Module]) -> None:
        with pytest.raises(RequestError, match="has no GPSA layer: nothing to verify"):
            tcnn.verify(pair[0], pair[0], **OPTIONS)

    @pytest.mark.parametrize(
        "options", [{"tolerance_float32": 0}, {"batch_size": 0}, {"input_size": (0, 3)}, {"sise": 3}]
    )
    def test_a_wrong_option(self, pair: tuple[nn.Module, nn.Module], options: dict[str, object]) -> None:
        with pytest.raises(RequestError, match=f"^{next(iter(options))}"):
            tcnn.verify(*pair, **options)


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
def pair_on_meta() -> tuple[nn.Module, nn.Module]:
    source = meta_model("test_resnet").to("meta")
    return source, tcnn.convert(source).model


@pytest.mark.parametrize("verb", VERBS)
def test_says_that_there_are_no_values(verb: str, pair_on_meta: tuple[nn.Module, nn.Module], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=rf"^ResNet: expected values to {verb}, found none: conv1\.0\.weight is on"):
        VERBS[verb](*pair_on_meta, tmp_path)


OF_IMAGES: dict[str, Callable[[nn.Module, nn.Module, torch.Tensor], object]] = {
    "verify": lambda source, model, images: tcnn.verify(source, model, images=images),
    "explain": tcnn.explain,
    "fold": lambda source, model, images: tcnn.fold(model, images=images, source=source),
    "prune": lambda source, model, images: tcnn.prune(model, images=images, source=source),
    "inspect": lambda source, model, images: tcnn.inspect(model, images),
}


@pytest.mark.parametrize("verb", OF_IMAGES)
def test_says_what_images_are(verb: str, made: tuple[nn.Module, nn.Module]) -> None:
    for wrong in (IMAGES[:0], IMAGES[0]):
        with pytest.raises(RequestError) as error:
            OF_IMAGES[verb](*made, wrong)
        found = f"at least one image, found {tuple(wrong.shape)}"
        assert str(error.value) == f"images: expected a tensor of shape (B, C, H, W), {found}"


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecated, and still there
    QUANTISED = torch.quantize_per_tensor(IMAGES, 0.1, 0, torch.qint8)
NO_NUMBERS = {
    "one on the meta device": IMAGES.to("meta"),
    "a sparse one": IMAGES.to_sparse(),
    "one of complex64": IMAGES.to(torch.complex64),
    "one of qint8": QUANTISED,
}


@pytest.mark.parametrize("found", NO_NUMBERS)
@pytest.mark.parametrize("verb", OF_IMAGES)
def test_images_are_real_numbers(verb: str, found: str, made: tuple[nn.Module, nn.Module]) -> None:
    with pytest.raises(RequestError, match=f"^images: expected a dense tensor of real numbers, found {found}; give "):
        OF_IMAGES[verb](*made, NO_NUMBERS[found])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
@pytest.mark.parametrize("verb", OF_IMAGES)
def test_pixels_are_no_model_inputs(verb: str, dtype: torch.dtype, made: tuple[nn.Module, nn.Module]) -> None:
    """As `torchvision.io.decode_image` has them, from 0 to 255: answers to these are wrong, and certain."""
    found = str(dtype).removeprefix("torch.")
    expected = rf"^images: expected model inputs \(floating point, normalised\), found {found}; preprocess "
    with pytest.raises(RequestError, match=expected):
        OF_IMAGES[verb](*made, (255 * IMAGES.sigmoid()).to(dtype))


@pytest.fixture(scope="module")
def of_one_size() -> tuple[nn.Module, nn.Module]:
    """A network that flattens its map for a linear layer, so that it takes images of 16×16 only, and its conversion."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.Flatten(), nn.Linear(512, 5))
    return net, tcnn.convert(net, target="2", input_size=(16, 16)).model


def test_the_size_is_the_one_of_the_conversion(of_one_size: tuple[nn.Module, nn.Module], tmp_path: Path) -> None:
    """Where a model does not tell its own."""
    source, model = of_one_size
    assert tcnn.verify(source, model).images == "noise 2×3×16×16"
    assert tcnn.fold(model, source=source).report.images == "noise 2×3×16×16"
    tcnn.save(model, tmp_path / "m.safetensors")
    assert tcnn.verify(source, tcnn.load(tmp_path / "m.safetensors", source=source)).passed
    report = tcnn.export(model, tmp_path / "m.pt2")
    assert [(axis.name, axis.size, axis.dynamic) for axis in report.axes[1:]] == [
        ("height", 16, False), ("width", 16, False),
    ]  # fmt: skip
    assert report.notes == ("height and width are fixed: the model takes no other size than 16×16",)


@pytest.mark.parametrize("verb", OF_IMAGES)
def test_images_that_a_model_does_not_take(verb: str, of_one_size: tuple[nn.Module, nn.Module]) -> None:
    with pytest.raises(
        RequestError,
        match=r"^Sequential does not run on an image of 3×32×32 \(.*; give a size, or images, that it takes$",
    ):
        OF_IMAGES[verb](*of_one_size, IMAGES)


def test_a_size_that_a_model_does_not_take(of_one_size: tuple[nn.Module, nn.Module]) -> None:
    for random in (False, True):
        with pytest.raises(RequestError, match=r"^Sequential does not run on an image of 3×8×8 "):
            tcnn.verify(*of_one_size, input_size=(8, 8), randomise=random)
