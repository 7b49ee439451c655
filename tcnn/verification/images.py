"""Load a directory of images for verification, preprocessed as the model expects."""

from pathlib import Path

import torch
from PIL import Image, UnidentifiedImageError
from timm.data import create_transform, resolve_model_data_config
from timm.data.readers.img_extensions import get_img_extensions
from torch import Tensor, nn

from tcnn.data.sources.folder import open_at_once
from tcnn.data.transforms import middle_of_strip
from tcnn.errors import RequestError
from tcnn.models.trace import input_shape


def load_images(directory: Path, model: nn.Module, limit: int = 32) -> Tensor:
    """Load up to `limit` images below a directory, (B, C, H, W), resized and normalised by the model's own settings.

    Of a very long strip only the middle is resized (`middle_of_strip`). Raises `RequestError` when there is no image,
    or a file that is none.
    """
    if not directory.is_dir():
        raise RequestError(
            f"{directory}: expected a directory of images, found {'a file' if directory.exists() else 'nothing'}"
        )
    kinds = get_img_extensions(as_set=True)
    files = sorted(p for p in directory.rglob("*") if p.suffix.lower() in kinds and not p.name.startswith("."))
    if not files:
        raise RequestError(f"{directory}: no image in it ({', '.join(sorted(kinds))})")
    modes = {1: "L", 3: "RGB"}
    channels = input_shape(model)[0]
    if channels not in modes:
        raise RequestError(f"{directory}: the model takes {channels} channels, pictures have 1 or 3")
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    batch = []
    for file in files[:limit]:
        try:
            with open(file, "rb", opener=open_at_once) as handle, Image.open(handle) as image:
                batch.append(transform(middle_of_strip(image.convert(modes[channels]))))
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise RequestError(f"{file}: not a readable image ({type(error).__name__}); remove it") from error
    return torch.stack(batch)
