"""Load images for inspection: preprocessed for the model, and as pixels for display."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from tcnn.data.decode import UnreadableImage, mode_of
from tcnn.data.sources.folder import select_files
from tcnn.data.transforms import load_image
from tcnn.errors import RequestError, readable, shorten
from tcnn.evaluation.evaluate import transform_for
from tcnn.evaluation.predict import Shown, named_images
from tcnn.files import path_of
from tcnn.formatting import some
from tcnn.layers.terms.positions import Pair
from tcnn.models.checks import refuse_other_images
from tcnn.models.trace import input_settings


@dataclass(frozen=True)
class Pictures:
    """Preprocessed images."""

    names: tuple[str, ...]
    tensors: Tensor = field(repr=False)
    """Model inputs, (B, C, height, width)."""
    seen: tuple[NDArray[numpy.uint8], ...] = field(repr=False)
    """The same as pixels, (height, width, 3) in 0…255, after resizing and cropping."""
    unreadable: tuple[str, ...]
    """`FILE: reason`, for every unreadable file."""


Images = Shown | Tensor | Sequence[Shown]
"""An image or a folder of them, images of PIL, arrays of uint8, several of these, or model inputs, (B, C, H, W)."""


def pictures_of(model: nn.Module, images: Images | None, limit: int = 32, size: Pair | None = None) -> Pictures | None:
    """Up to `limit` of the images; None where none are given."""
    if images is None:
        return None
    if isinstance(images, Tensor):
        refuse_other_images(images)
        batch = images[:limit]
        names = tuple(f"image {number}" for number in range(1, len(batch) + 1))
        return Pictures(names, batch, tuple(seen(batch, model)), ())
    if isinstance(images, str | Path):
        return read_pictures(images, model, limit, size)
    return _read(named_images(images)[:limit], model, size)


def read_pictures(where: str | Path, model: nn.Module, limit: int = 32, size: Pair | None = None) -> Pictures:
    """Load up to `limit` images of a file or a folder, evenly spread over its files, so over its classes.

    Only the first frame of an animation is used, any colour space is converted, and unreadable files are named and
    left out; that may be all of them. Raises `RequestError` if no file may be an image.
    """
    if not str(where):  # Path("") is the working directory
        raise RequestError("images: expected an image or a folder of images, found an empty name")
    where = path_of(where, "images")
    files = select_files(where, limit)
    return _read(
        [(readable(file.name if file == where else str(file.relative_to(where))), file) for file in files], model, size
    )


def _read(images: Sequence[tuple[str, Path | Image.Image]], model: nn.Module, size: Pair | None) -> Pictures:
    """The images by their names, as the model takes them."""
    transform, mode = transform_for(model, size), mode_of(input_settings(model)["input_size"][0])
    names, tensors, unreadable = [], [], []
    for name, image in images:
        try:
            tensors.append(load_image(image, transform, mode))
            names.append(name)
        except UnreadableImage as error:
            unreadable.append(f"{name}: {shorten(error.reason, 120)}")
    batch = torch.stack(tensors) if tensors else torch.empty(0, *input_settings(model)["input_size"])
    return Pictures(tuple(names), batch, tuple(seen(batch, model)), tuple(unreadable))


def seen(batch: Tensor, model: nn.Module) -> Sequence[NDArray[numpy.uint8]]:
    """Pixels of model inputs: (B, C, H, W) without the normalisation, as (H, W, 3) each; grey unless colour."""
    settings: dict[str, Any] = input_settings(model)
    mean, std = (torch.tensor(settings[name], device="cpu").view(1, -1, 1, 1) for name in ("mean", "std"))
    if batch.shape[1] != len(mean[0]):
        raise RequestError(
            f"images: expected {some(len(mean[0]), 'channel')}, as the model takes, found {batch.shape[1]}"
        )
    plain = (batch.detach().cpu().float() * std + mean) * 255
    plain = plain if batch.shape[1] == 3 else plain.mean(1, keepdim=True)
    plain = plain.round().clamp(0, 255).to(torch.uint8)
    return list(plain.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy())
