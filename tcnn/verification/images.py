"""Load a directory of images for verification, preprocessed as the model expects."""

from pathlib import Path

import torch
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor, nn

from tcnn.data.decode import decode, mode_of, reason
from tcnn.data.sources.folder import open_at_once, walk
from tcnn.data.sources.names import EXTENSIONS
from tcnn.data.transforms import middle_of_strip
from tcnn.errors import RequestError
from tcnn.models.trace import input_shape


def load_images(directory: Path, model: nn.Module, limit: int = 32) -> Tensor:
    """Load up to `limit` images below a directory, (B, C, H, W), resized and normalised by the model's own settings.

    Files are found and decoded as those of a data set. Of a very long strip only the middle is resized
    (`middle_of_strip`). Raises `RequestError` when there is no image, or a file that is none.
    """
    if not directory.is_dir():
        raise RequestError(
            f"{directory}: expected a directory of images, found {'a file' if directory.exists() else 'nothing'}"
        )
    files = sorted(directory / name for name in walk(directory)[0])
    if not files:
        raise RequestError(f"{directory}: no image in it (they end in {' '.join(EXTENSIONS)})")
    mode = mode_of(input_shape(model)[0])
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    batch = []
    for file in files[:limit]:
        try:
            with open(file, "rb", opener=open_at_once) as handle:
                batch.append(transform(middle_of_strip(decode(handle, mode))))
        except Exception as error:  # a decoder may raise anything over a file that is no image
            raise RequestError(f"{file}: not a readable image ({reason(error)}); remove it") from error
    return torch.stack(batch)
