"""`tcnn.predict`: the classes of images, against the model called by hand."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

import tcnn
from tcnn.errors import RequestError
from tcnn.evaluation.evaluate import transform_for
from tcnn.evaluation.predict import predict, predict_image, side_by_side


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five pictures of other sizes, one of them damaged, in a folder and one below it, with junk."""
    random = np.random.default_rng(0)
    (tmp_path / "photos" / "more").mkdir(parents=True)
    for number, name in enumerate(("2.png", "10.png", "1.png", "more/3.png")):
        pixels = random.integers(0, 256, (40 + number, 60, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
    (tmp_path / "photos" / "torn.jpg").write_bytes(b"\xff\xd8 not a picture")
    (tmp_path / "photos" / "notes.txt").write_text("no picture")
    return tmp_path / "photos"


def by_hand(model: nn.Module, file: Path) -> torch.Tensor:
    with Image.open(file) as image, torch.no_grad():
        return model.eval()(transform_for(model)(image.convert("RGB"))[None]).double().softmax(1)[0]


def test_every_image_in_natural_order_with_its_most_probable_classes(
    photos: Path, lively: Callable[..., nn.Module]
) -> None:
    model = lively(num_classes=10)
    for batch_size in (1, 2, 32):
        found = predict(model, [photos], top=3, batch_size=batch_size)
        names = ["1.png", "2.png", "10.png", "more/3.png", "torn.jpg"]
        assert [Path(p.file) for p in found] == [photos / name for name in names]
        for prediction in found[:-1]:
            expected = by_hand(model, Path(prediction.file))
            values, places = expected.topk(3)
            assert [guess.index for guess in prediction.guesses] == places.tolist()
            assert [guess.name for guess in prediction.guesses] == [str(place) for place in places.tolist()]
            assert [guess.probability for guess in prediction.guesses] == pytest.approx(values.tolist(), rel=1e-4)
        assert found[-1].guesses == [] and found[-1].unreadable


def test_names_are_the_models_own_or_imagenets(photos: Path, lively: Callable[..., nn.Module]) -> None:
    model = lively(num_classes=3)
    model.pretrained_cfg = {**model.pretrained_cfg, "label_names": ["ant", "bee", "cat"]}  # type: ignore[assignment, dict-item]
    (found,) = predict(model, [photos / "1.png"], top=9)
    assert {guess.name for guess in found.guesses} == {"ant", "bee", "cat"}
    (found,) = predict(lively(num_classes=1000), [photos / "1.png"], top=1000)
    assert next(guess for guess in found.guesses if guess.index == 0).name.startswith("tench")


def test_a_converted_model_gives_the_answers_of_its_source(photos: Path, lively: Callable[..., nn.Module]) -> None:
    source = lively(num_classes=10)
    converted = tcnn.convert(source).model
    assert inspect.unwrap(tcnn.predict) is inspect.unwrap(predict)
    report = side_by_side({"cnn": predict(source, [photos]), "t-cnn": predict(converted, [photos])})
    assert (report.same_first_guess, report.compared) == (4, 4)
    assert converted.training is source.training


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_weights_in_another_dtype(photos: Path, lively: Callable[..., nn.Module], dtype: torch.dtype) -> None:
    model = lively(num_classes=10)
    exact = {guess.index: guess.probability for guess in predict(model, photos / "1.png", top=10)[0].guesses}
    model = model.to(dtype)
    with (photos / "1.png").open("rb") as opened:
        alone = predict_image(model, opened, top=10)
    for guesses in (predict(model, photos / "1.png", top=10)[0].guesses, alone):
        assert all(guess.probability == pytest.approx(exact[guess.index], abs=0.01) for guess in guesses)


def test_half_precision_and_another_size(photos: Path, lively: Callable[..., nn.Module]) -> None:
    model = lively(num_classes=10)
    exact, rounded, larger = (
        predict(model, [photos / "1.png"], top=10, **options)[0].guesses
        for options in ({}, {"amp": "bfloat16"}, {"size": 96, "crop_pct": 1.0})  # type: ignore[var-annotated]
    )
    of = {guess.index: guess.probability for guess in exact}
    assert all(abs(of[guess.index] - guess.probability) < 0.05 for guess in rounded)
    assert any(abs(of[guess.index] - guess.probability) > 1e-6 for guess in larger)


PATHS = "images of PIL, or the paths of files or folders"


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        ([], {}, "expected at least one image, or a folder of images"),
        (["missing.png"], {}, "missing.png: no such image"),
        (["missing"], {}, "missing: no such image; images are files or folders"),
        (["empty"], {}, "empty: there is no image in this folder"),
        ([torch.zeros(3, 8, 8)], {}, f"images: expected {PATHS}, found Tensor"),
        (None, {}, f"images: expected {PATHS}, found NoneType"),
        (["1.png"], {"top": 0}, "top: expected at least 1, found 0"),
        (["1.png"], {"batch_size": 0}, "batch_size: expected at least 1, found 0"),
    ],
)
def test_wrong_requests(
    images: Any, options: dict[str, int], message: str, photos: Path, lively: Callable[..., nn.Module],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (photos / "empty").mkdir()
    monkeypatch.chdir(photos)
    with pytest.raises(RequestError) as error:
        predict(lively(num_classes=2), images, **options)  # type: ignore[arg-type]
    assert str(error.value) == message


class Features(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_model_without_logits_is_told(photos: Path) -> None:
    with pytest.raises(RequestError, match=r"expected logits \(B, classes\) of Features, found a tensor \(1, 3, "):
        predict(Features(), [photos / "1.png"])


def test_a_size_that_the_model_does_not_take(photos: Path) -> None:
    model = timm.create_model("deit_tiny_patch16_224", img_size=32, depth=1)
    with pytest.raises(RequestError, match=r"does not run on an image of 3×48×64 \(.*\); choose another input size"):
        predict(model, [photos], size=(48, 64))


class Diverged(nn.Module):
    """A model whose output is NaN for dark images, and of whose classes one is masked."""

    num_classes, in_chans = 3, 3

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bright = x.amax((1, 2, 3)) > 0
        logits = torch.tensor([0.0, 1.0, -torch.inf]).expand(len(x), 3)
        return torch.where(bright[:, None], logits, torch.nan)


def test_no_class_is_guessed_from_an_output_that_is_no_number(tmp_path: Path) -> None:
    for name, grey in (("dark.png", 0), ("light.png", 255)):
        Image.new("RGB", (8, 8), (grey,) * 3).save(tmp_path / name)
    dark, light = predict(Diverged(), tmp_path, size=8)
    assert (dark.guesses, dark.unreadable, dark.not_finite) == ([], None, True)
    assert [guess.index for guess in light.guesses] == [1, 0, 2] and not light.not_finite
    with (tmp_path / "dark.png").open("rb") as file, pytest.raises(RequestError, match="output is NaN or infinite"):
        predict_image(Diverged(), file)
