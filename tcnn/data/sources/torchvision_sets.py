"""Open torchvision's data sets by name, by timm: `torch/cifar10:FOLDER`."""

import difflib
from pathlib import Path
from typing import Any

import numpy
from PIL import Image
from timm.data import create_dataset

from tcnn.data.sources.names import canonical, choose_split, is_image
from tcnn.data.sources.source import Found
from tcnn.errors import DownloadError, EnvironmentFailure, RequestError, one_line, shorten

NAMES = ("cifar10", "cifar100", "imagenet", "places365", "mnist", "kmnist", "fashion_mnist", "qmnist", "inaturalist")
SPLITS = ("train", "val")
"""Where torchvision calls the second split test, as in CIFAR-10, `test` means it too."""


class TorchSource:
    """`Source` of a torchvision data set: `data[index]` is an image and its target."""

    def __init__(self, data: Any, spec: str) -> None:
        self.data = data
        self.spec = spec

    def filename(self, index: int) -> str:
        files = getattr(self.data, "samples", None) or getattr(self.data, "imgs", None)
        return str(files[index][0]) if files else f"{self.spec}/{index}"

    def stamp(self, index: int) -> None:
        return None

    def open(self, index: int) -> Image.Image:
        return self.data[index][0]


def open_torch(spec: str, split: str, download: bool) -> Found:
    """Open a torchvision data set; `spec` is NAME:FOLDER.

    Raises `RequestError`, `DownloadError` if it cannot be fetched, `EnvironmentFailure` if it needs another library.
    """
    name, _, root = spec.partition(":")
    name = name.lower()
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, 1, 0.5)
        hint = f"did you mean torch/{near[0]}?" if near else f"there are {', '.join(NAMES)}"
        raise RequestError(f"torch/{spec}: no data set named {name!r}; {hint}")
    if not root:
        raise RequestError(f"torch/{name}: say in which folder it lies: torch/{name}:FOLDER")
    folder = Path(root).expanduser()
    if not (folder.is_dir() or download):
        raise RequestError(f"torch/{spec}: no such folder: {folder}")
    chosen = choose_split(SPLITS, "val" if canonical(split) == "test" else split, f"torch/{spec}")
    try:
        data = create_dataset(f"torch/{name}", root=str(folder), split=chosen, download=download)
        if hasattr(data, "all_categories"):
            # iNaturalist's images, in the order of the file system, which differs between copies, and all other files.
            data.index = sorted(entry for entry in data.index if is_image(entry[1]))
        names, targets = _classes(data)
        labels = numpy.asarray(targets, dtype=numpy.int64)
    except MemoryError:
        raise
    except ImportError as error:
        library = (error.name or "another library").partition(".")[0]
        raise EnvironmentFailure(f"torch/{spec}: needs {library} to be read: pip install {library}") from error
    except Exception as error:  # torchvision's readers fail on damaged files with almost anything, AssertionError too
        if download and isinstance(error, OSError):
            raise DownloadError(f"torch/{spec}: cannot be fetched ({one_line(error)})") from error
        why = f"no {error} in it" if isinstance(error, KeyError) else shorten(one_line(error), 100)
        raise RequestError(f"torch/{spec}: not found in {folder}, or not whole ({why})") from error
    if len(labels) != len(data):
        raise RequestError(f"torch/{spec}: not whole: {len(data)} images, but {len(labels)} labels")
    return Found(tuple(map(str, names)), labels, TorchSource(data, f"torch/{spec}"), chosen)


def _classes(data: Any) -> tuple[Any, Any]:
    """Names and targets, which torchvision's data sets keep under several names."""
    if hasattr(data, "all_categories"):
        return data.all_categories, [category for category, _ in data.index]
    targets = numpy.asarray(data.targets)
    # QMNIST: a row of eight facts for every digit, its class first.
    targets = targets[:, 0] if targets.ndim == 2 else targets
    # ImageNet: a folder's name is one name, `classes` are lists of synonyms.
    return getattr(data, "wnids", None) or data.classes, targets
