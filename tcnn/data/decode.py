"""Open image files of the formats that are read, and decode any mode and bit depth to RGB or grey pixels."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Literal

import numpy
from PIL import Image, ImageFile, UnidentifiedImageError

from tcnn.data.sources.names import FORMATS
from tcnn.errors import PROCESS_ERRORS, EnvironmentFailure, RequestError

Mode = Literal["RGB", "L"]

_OPENED = tuple(name for name in FORMATS if name != "AVIF" or find_spec("PIL.AvifImagePlugin"))  # from Pillow 11.3 on
_ignored: list[bool] = []


class UnreadableImage(RequestError):
    """One image cannot be decoded. The loaders skip and list such images, so this reaches who calls `load` only."""

    def __init__(self, filename: str, reason: str) -> None:
        super().__init__(f"{filename}: cannot be read as an image ({reason})")
        self.filename = filename
        self.reason = reason

    def __reduce__(self) -> tuple[type["UnreadableImage"], tuple[str, str]]:
        return type(self), (self.filename, self.reason)


def mode_of(in_chans: int) -> Mode:
    """PIL's mode for images of one or three channels; raises `RequestError` for another number."""
    if in_chans not in (1, 3):
        raise RequestError(f"images have 1 or 3 channels; the model takes {in_chans}")
    return "RGB" if in_chans == 3 else "L"


def open_image(file: str | Path | BinaryIO) -> ImageFile.ImageFile:
    """Open an image of one of the `FORMATS`; nothing else in tcnn calls Pillow's `Image.open`.

    Raises whatever PIL raises, `UnidentifiedImageError` for any other format: see `reason`.
    """
    return Image.open(file, formats=_OPENED)


def decode(opened: BinaryIO | Image.Image, mode: Mode) -> Image.Image:
    """Decode the first frame of an image in `mode`.

    As in timm, transparency is dropped and a camera's rotation mark is not applied. Unlike PIL's own conversion, which
    clips at 255, 16-bit greys keep their upper eight bits, and floating-point values from 0 to 1 become 0 to 255.
    Raises whatever PIL raises, and `ValueError` for other floating-point values than 0 to 255, and for an image that
    somebody else opened, of another format than the `FORMATS`: see `reason`.
    """
    with _without_warnings():
        image = opened if isinstance(opened, Image.Image) else open_image(opened)
        if image.format not in (None, "MPO", *FORMATS):  # MPO: of JPEG, several in a file
            raise ValueError(
                f"expected one of the formats {', '.join(FORMATS)}, found {image.format}; convert it first, as by "
                "image.convert('RGB')"
            )
        image.load()
        if image.mode.startswith("I"):
            image = _scale_greys(image)
        elif image.mode == "F":
            image = _scale_floats(image)
        return image.convert(mode)


def open_at_once(path: str, flags: int) -> int:
    """Open without blocking: a named pipe called `x.jpg` would stop the run for ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def reason(error: Exception) -> str:
    """Why an image cannot be read, in a few words. Raises `EnvironmentFailure` if it is not the image's fault."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in PROCESS_ERRORS):
        raise EnvironmentFailure(
            f"out of memory or of open files while reading images ({error}); use fewer workers"
        ) from error
    if isinstance(error, UnidentifiedImageError):
        return f"not an image in one of the formats {', '.join(FORMATS)}"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()) or type(error).__name__


def ignore_warnings() -> None:
    """Ignore PIL's warnings in this process from now on, for worker processes, which only load."""
    warnings.filterwarnings("ignore", module=r"PIL\b")
    _ignored.append(True)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Context without PIL's warnings; filters are restored, though that makes Python forget earlier warnings."""
    if _ignored:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _scale_greys(image: Image.Image) -> Image.Image:
    """Scale a grey image of 16 bits, which may come in 32, to 8; one that only uses 8 bits of 32 is unchanged."""
    pixels = numpy.asarray(image)
    if image.mode != "I" or pixels.max(initial=0) > 255:
        pixels = pixels.clip(0, 65535) // 256
    return Image.fromarray(pixels.astype(numpy.uint8))


def _scale_floats(image: Image.Image) -> Image.Image:
    """Scale a grey image of floating-point values, as scientific TIFFs have them, to 8 bits, if its range is known."""
    pixels = numpy.asarray(image)
    low, high = float(pixels.min(initial=0)), float(pixels.max(initial=0))
    if not (low >= 0 and high <= 255):  # nor if one is no number
        raise ValueError(f"expected floating-point values from 0 to 1 or from 0 to 255, found {low:.4g} to {high:.4g}")
    return Image.fromarray((pixels * 255).round().astype(numpy.uint8)) if high <= 1 else image
