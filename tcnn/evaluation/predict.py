"""Classify images: the most probable classes of each, with their names, by one model or by two side by side."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel
from timm.data import ImageNetInfo
from torch import Tensor, nn

from tcnn.arguments import typed
from tcnn.checkpoints.files import label_names
from tcnn.config.values import sides_of
from tcnn.data.decode import Mode, UnreadableImage, mode_of
from tcnn.data.sources.folder import Say, image_files
from tcnn.data.transforms import Transform, load_image
from tcnn.display import counting
from tcnn.errors import RequestError, readable, shorten
from tcnn.evaluation.evaluate import Amp, Progress, transform_for
from tcnn.evaluation.outputs import first
from tcnn.folding.fold import fused
from tcnn.formatting import Printed, some
from tcnn.models.checks import refuse_other_images, refuse_without_values, unwrapped
from tcnn.models.running import place_of, usable_device, weights_dtype
from tcnn.models.trace import check_size, evaluating, input_shape
from tcnn.wording import warn_caller

IMAGENET = 1000
Shown = str | Path | Image.Image | NDArray[numpy.uint8]
"""What images may be given as."""


class Guess(BaseModel):
    """A class and its probability."""

    index: int
    """Of the model's output."""
    name: str
    probability: float


class Prediction(Printed, BaseModel):
    """What a model takes an image for."""

    file: str
    guesses: list[Guess]
    """The most probable first; none of an image that cannot be read, or for which the output is not finite."""
    unreadable: str | None = None
    """Why it cannot be read."""
    not_finite: bool = False
    """Whether the model's output for it is NaN or infinite, of which no class is the most probable."""

    def __str__(self) -> str:
        """The image and its guesses on one line."""
        guesses = ", ".join(f"{guess.name} {guess.probability:.1%}" for guess in self.guesses)
        return f"{self.file}: {guesses or self.unreadable or 'not a number'}"

    __repr__ = __str__  # a list prints those of what is in it


class Answers(BaseModel):
    """What one model makes of the images."""

    model: str
    images: list[Prediction]


class PredictionReport(BaseModel):
    """What one or two models make of the same images."""

    models: list[Answers]
    same_first_guess: int | None = None
    """Of two models that tell the same classes apart: on how many images their first guesses have the same name,"""
    compared: int | None = None
    """and how many both could read."""


@typed()
def predict(
    model: nn.Module | str | Path,
    images: Shown | Tensor | Iterable[Shown],
    *,
    top: int = 5,
    size: int | tuple[int, int] | None = None,
    crop_pct: float | None = None,
    batch_size: int = 32,
    device: torch.device | str | None = None,
    amp: Amp = "float32",
    progress: Progress | None = None,
    quiet: bool = False,
) -> list[Prediction]:
    """Classify images, with timm's preprocessing for the model.

    Args:
        model: a module, or the name of one as `tcnn evaluate` takes it.
        images: files, folders of which every image is taken, in natural order, images of PIL, and arrays of uint8,
            (height, width, 3) or (height, width); or a batch of model inputs, (B, C, H, W), as it is.
        top: classes for each image; fewer if the model has fewer.
        size: side, or (height, width), in pixels that the images are cropped to; default the model's own.
        crop_pct: the crop's share of the resized image; default the model's own.
        device: the model is moved there; default where it is.
        amp: the dtype of autocast.
        progress: called after each batch with the number of its images; by default those of several batches are counted
            on stderr.
        quiet: show nothing.

    Returns: one prediction for each image, in order. One that cannot be read has no guesses, and says why; nor has one
    for which the model's output is not finite.

    Raises: `RequestError` if a file does not exist, or there is no image.
    """
    for setting, value in (("top", top), ("batch_size", batch_size)):
        if value < 1:
            raise RequestError(f"{setting}: expected at least 1, found {value}")
    given = (
        _inputs(images, size, crop_pct)
        if isinstance(images, Tensor)
        else named_images(images, None if quiet else warn_caller)
    )
    if isinstance(model, str | Path):
        from tcnn.checkpoints.opening import open_model

        model = open_model(str(model))
    model = unwrapped(model, only_run=True)
    refuse_without_values(model, "predict")
    if isinstance(images, Tensor) and images.shape[1] != (channels := input_shape(model)[0]):
        raise RequestError(f"images: expected {some(channels, 'channel')}, as the model takes, found {images.shape[1]}")
    if size is not None:
        check_size(model, sides_of(size))
    place = usable_device(device) if device is not None else place_of(model)
    transform, mode = transform_for(model, size, crop_pct), mode_of(input_shape(model)[0])
    found: list[Prediction] = []
    dtype = weights_dtype(model)
    autocast = torch.autocast(place.type, getattr(torch, amp), enabled=amp != "float32")
    counted = counting(progress, len(given), "predicting", quiet or len(given) <= batch_size)
    with counted as done, evaluating(model), fused(model.to(place)), torch.inference_mode(), autocast:
        for batch in (given[start : start + batch_size] for start in range(0, len(given), batch_size)):
            read = [_read(image, transform, mode) for _, image in batch]
            tensors = [tensor for tensor in read if isinstance(tensor, Tensor)]
            answers = iter(_guesses(model, torch.stack(tensors).to(place, dtype), top) if tensors else ())
            for (name, _), tensor in zip(batch, read, strict=True):
                if isinstance(tensor, Tensor):
                    guesses = next(answers)
                    found.append(Prediction(file=name, guesses=guesses, not_finite=not guesses))
                else:
                    found.append(Prediction(file=name, guesses=[], unreadable=tensor))
            done(len(batch))
    return found


def predict_image(model: nn.Module, image: BinaryIO, *, top: int = 5) -> list[Guess]:
    """What one image shows, by its bytes: what `predict` says of it alone, on the device where the model is.

    Args:
        image: an open file of an image, of one of the `FORMATS` that tcnn reads.
        top: classes; fewer if the model has fewer.

    Returns: the most probable classes first. Raises `RequestError` for what is no image, and for an output that is not
    finite.
    """
    place = place_of(model)
    try:
        tensor = load_image(image, transform_for(model), mode_of(input_shape(model)[0]))
    except UnreadableImage as error:
        raise RequestError(f"cannot be read as an image ({shorten(error.reason, 120)}); send another") from error
    with evaluating(model), fused(model), torch.inference_mode():
        guesses = next(_guesses(model, tensor.unsqueeze(0).to(place, weights_dtype(model)), top))
    if not guesses:
        raise RequestError("the model's output is NaN or infinite, as after a training that diverged; take another")
    return guesses


def _inputs(images: Tensor, size: object, crop_pct: object) -> list[tuple[str, Tensor]]:
    """Model inputs with their names; raises `RequestError` beside what would change them."""
    refuse_other_images(images)
    for name, value in (("size", size), ("crop_pct", crop_pct)):
        if value is not None:
            raise RequestError(f"{name}: the images are a tensor, of a size of their own; leave one of the two out")
    return [(f"image {number}", image) for number, image in enumerate(images, 1)]


def named_images(images: Shown | Iterable[Shown], say: Say | None = None) -> list[tuple[str, Path | Image.Image]]:
    """Images with their names: files, those of folders, arrays, and images of PIL, which may remember their file.

    Raises `RequestError` as `image_files`.
    """
    one = isinstance(images, str | Image.Image) or (isinstance(images, numpy.ndarray) and images.ndim < 4)
    given: list[Any] = [images] if one or not isinstance(images, Iterable) else list(images)
    found: list[tuple[str, Path | Image.Image]] = []
    for number, one in enumerate(given, 1):
        if isinstance(one, numpy.ndarray):
            found.append((f"image {number}", _of_pixels(one)))
        elif isinstance(one, Image.Image):
            found.append((readable(str(getattr(one, "filename", "") or f"image {number}")), one))
        else:
            found += [(readable(str(file)), file) for file in image_files([one], say)]
    if not found:
        raise RequestError("expected at least one image, or a folder of images")
    return found


def _of_pixels(pixels: NDArray[Any]) -> Image.Image:
    """An array of pixels as an image; raises `RequestError` for any other array."""
    if pixels.dtype != numpy.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,), (4,)):
        raise RequestError(
            f"images: expected an array of uint8, (height, width) or (height, width, 3), found {pixels.dtype}, "
            f"{pixels.shape}"
        )
    return Image.fromarray(pixels)


def class_names(model: nn.Module, outputs: int) -> tuple[str, ...]:
    """The names of a model's outputs: its own, ImageNet's in words for a thousand, else their numbers."""
    own = label_names(model)
    if own and len(own) == outputs:
        return tuple(str(name) for name in own)
    if outputs == IMAGENET:
        known = ImageNetInfo("imagenet-1k")
        return tuple(known.index_to_description(index) for index in range(IMAGENET))
    return tuple(str(index) for index in range(outputs))


def side_by_side(
    found: Mapping[str, Sequence[Prediction]], classes: Mapping[str, Sequence[str]] | None = None
) -> PredictionReport:
    """The report of one model, or of two and how far they agree.

    `classes`: the names of each model's outputs; models of other classes neither agree nor differ.
    """
    report = PredictionReport(models=[Answers(model=name, images=list(images)) for name, images in found.items()])
    if len(found) == 2 and len({frozenset(names) for names in (classes or {}).values()}) < 2:
        one, other = found.values()
        pairs = [(a.guesses[0], b.guesses[0]) for a, b in zip(one, other, strict=True) if a.guesses and b.guesses]
        report.same_first_guess = sum(mine.name == theirs.name for mine, theirs in pairs)
        report.compared = len(pairs)
    return report


def _read(image: Path | Image.Image | Tensor, transform: Transform, mode: Mode) -> Tensor | str:
    """The image as the model takes it, or why it cannot be read."""
    if isinstance(image, Tensor):
        return image
    try:
        return load_image(image, transform, mode)
    except UnreadableImage as error:
        return error.reason


def _guesses(model: nn.Module, images: Tensor, top: int) -> Iterator[list[Guess]]:
    """The guesses for every image; none where the output is not finite."""
    logits = model(images)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        raise RequestError(f"predict: expected logits (B, classes) of {type(model).__name__}, found {_kind(logits)}")
    names = class_names(model, logits.shape[1])
    values, places = first(logits.float(), top)
    finite = values.isfinite().all(1).tolist()
    for row, indices, known in zip(values.tolist(), places.tolist(), finite, strict=True):
        yield [
            Guess(index=index, name=names[index], probability=value)
            for value, index in zip(row, indices, strict=True)
            if known
        ]


def _kind(value: object) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
