"""Open torchvision's data sets by name, by timm: `torch/cifar10:FOLDER`."""

import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from PIL import Image
from timm.data import create_dataset

from tcnn.data.sources.folder import FolderSource
from tcnn.data.sources.names import canonical, choose_split, is_image
from tcnn.data.sources.source import Found, Source
from tcnn.errors import DownloadError, EnvironmentFailure, RequestError, one_line, shorten
from tcnn.files import directory_for
from tcnn.formatting import some

NAMES = ("cifar10", "cifar100", "imagenet", "places365", "mnist", "kmnist", "fashion_mnist", "qmnist", "inaturalist")
SPLITS = ("train", "val")
VALIDATED = ("imagenet", "places365", "inaturalist")
"""Data sets whose second split is called val, and is no test set. The others call it test, so there `test` means it."""
OFFER = re.compile(r"\.? You can (?:use|set) download=True to download it\.?$")
"""What torchvision says to who calls it."""


class ArraySource:
    """`Source` of a torchvision data set that holds its images in one array."""

    def __init__(self, data: Any, spec: str) -> None:
        self.data = data
        self.spec = spec

    def filename(self, index: int) -> str:
        return f"{self.spec}/{index}"

    def stamp(self, index: int) -> str:
        # By their names the images of both splits, and of another set in the folder, are the same.
        return hashlib.sha256(numpy.asarray(self.data.data[index]).tobytes()).hexdigest()[:16]

    def keys(self) -> None:
        return None

    def identities(self) -> NDArray[numpy.int64]:
        return numpy.arange(len(self.data))

    def sizes(self) -> None:
        return None

    def open(self, index: int) -> Image.Image:
        image: Image.Image = self.data[index][0]
        return image


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
    download = download and name != "imagenet"  # which torchvision cannot fetch
    folder = Path(root).expanduser()
    if not (folder.is_dir() or download):
        raise RequestError(f"torch/{spec}: no such folder: {folder}")
    second = canonical(split) == "test" and name not in VALIDATED
    chosen = choose_split(SPLITS, "val" if second else split, f"torch/{spec}")
    try:
        with _no_empty_folders(folder) if download else nullcontext():
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
        # That no mirror of MNIST answers, and that what came is another file, are RuntimeErrors.
        if download and (isinstance(error, OSError) or re.search(r"ownload|corrupted", str(error))):
            raise DownloadError(f"torch/{spec}: cannot be fetched ({one_line(error)})") from error
        said = f"no {error} in it" if isinstance(error, KeyError) else one_line(error)
        why = OFFER.sub("", said)
        offer = "" if why == said else "; in Python, open_dataset(…, download=True) fetches it"
        raise RequestError(f"torch/{spec}: not found in {folder}, or not whole ({shorten(why, 100)}){offer}") from error
    if len(labels) != len(data):
        raise RequestError(f"torch/{spec}: not whole: {some(len(data), 'image')}, but {some(len(labels), 'label')}")
    return Found(tuple(map(str, names)), labels, _source(data, folder, f"torch/{spec}"), chosen)


@contextmanager
def _no_empty_folders(root: Path) -> Iterator[None]:
    """Context of a download: if it fails, the folders that it made for files that did not come are removed."""
    there = {place for place, *_ in os.walk(root)}
    with directory_for(root):
        try:
            yield
        except BaseException:
            for place, *_ in os.walk(root, topdown=False):
                if place not in there and place != str(root):
                    with suppress(OSError):
                        Path(place).rmdir()
            raise


def _source(data: Any, folder: Path, spec: str) -> Source:
    """Images in files are read as those of folders are: torchvision's loader makes 16-bit greys white."""
    files: Iterable[str]
    if hasattr(data, "all_categories"):
        files = (os.path.join(data.root, data.all_categories[category], name) for category, name in data.index)  # noqa: PTH118
    elif hasattr(data, "imgs"):
        files = (file for file, _ in data.imgs)
    else:
        return ArraySource(data, spec)
    inside = os.path.join(folder, "")  # noqa: PTH118
    return FolderSource(folder, (file.removeprefix(inside) for file in files))


def _classes(data: Any) -> tuple[Any, Any]:
    """Names and targets, which torchvision's data sets keep under several names."""
    if hasattr(data, "all_categories"):
        return data.all_categories, [category for category, _ in data.index]
    targets = numpy.asarray(data.targets)
    # QMNIST: a row of eight facts for every digit, its class first.
    targets = targets[:, 0] if targets.ndim == 2 else targets
    # ImageNet: a folder's name is one name, `classes` are lists of synonyms.
    return getattr(data, "wnids", None) or data.classes, targets
