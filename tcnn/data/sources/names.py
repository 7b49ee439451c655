"""File and split names: which files are images, natural order, the split that a name means; the folders in the names of
data sets and models, seen from another working directory.
"""

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePath, PurePosixPath

from tcnn.errors import RequestError, readable
from tcnn.formatting import some

EXTENSIONS = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".avif", ".avifs", ".bmp", ".gif", ".tif",
    ".tiff", ".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx", ".ico", ".ppm", ".pgm", ".pbm", ".pnm",
)  # fmt: skip
"""Suffixes of image files, in any case, whichever of the `FORMATS` the installed Pillow reads: with another version a
data set must be the same. All other files are left out."""

COMPANIONS = (
    ".txt", ".md", ".html", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".csv", ".tsv", ".ini", ".log", ".cls",
    ".npy", ".npz", ".mat", ".pfm",
)  # fmt: skip
"""Suffixes of what is told of images beside them, in words or numbers (PFM: depths): nobody misses such a file."""

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "AVIF", "JPEG2000", "ICO")
"""Formats of images, by Pillow's names; a file's bytes tell which it has, not its suffix. Pillow alone decodes these: a
picture in PostScript it hands to Ghostscript, another program, which runs what a stranger wrote.
"""

SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "eval", "evaluation"),
    "test": ("test", "testing"),
}
"""Synonyms of split names: timm's, and one more."""

_JUNK = {"__macosx", "thumbs.db"}


def is_junk(path: str) -> bool:
    """Whether any part of a relative path is hidden, or left behind by an operating system."""
    return any(part.startswith(".") or part.lower() in _JUNK for part in PurePosixPath(path).parts)


def is_image(path: str) -> bool:
    """Whether a file is an image by its suffix, in any case, and not junk."""
    return os.path.splitext(path)[1].lower() in EXTENSIONS and not is_junk(path)  # noqa: PTH122 - a million times


def image_key(name: str) -> str:
    """The folder and the name of an image without its extension: they stay where a data set is moved or packed."""
    return "/".join(os.path.splitext(name)[0].rsplit("/", 2)[-2:])  # noqa: PTH122 - a million times


def is_left_out(path: str) -> bool:
    """Whether a file is not read, and may yet be an image that somebody misses: neither junk nor a companion."""
    suffix = os.path.splitext(path)[1].lower()  # noqa: PTH122 - a million times
    return suffix not in EXTENSIONS and suffix not in COMPANIONS and not is_junk(path)


def left_out_note(paths: Sequence[str], what: str = "file", lack: str = "the extension of an image") -> str | None:
    """A note of what was left out, if anything was."""
    if not paths:
        return None
    return f"left out: {some(len(paths), what)} without {lack}, such as {readable(min(paths, key=sort_key))}"


def sort_key(name: str) -> tuple[object, str, str]:
    """Sort key of timm's natural order; ties (`1.jpg` and `01.jpg`, `Cat` and `cat`) are ordered by name.

    There timm leaves the order to the file system. Its own key also fails on digits that are no number, as in `1²`.
    Accents count as composed (NFC): a copy whose file system has them apart (NFD) is in the same order, so split alike.
    """
    composed = name if name.isascii() else class_name(name)
    parts = re.split(r"(\d+)", composed.lower())
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], composed, name


def class_name(written: object) -> str:
    """A class's name with composed letters (NFC), whereas folders that come from a Mac have accents apart (NFD).

    Both look the same, and are the same class. UTF-8 whatever the locale; what is no UTF-8 stays, to be refused.
    """
    name = str(written)
    with suppress(UnicodeError):
        name = os.fsencode(name).decode("utf-8")
    return unicodedata.normalize("NFC", name)


def choose_split(available: Iterable[str], split: str, where: str) -> str | None:
    """The available name that `split` means, or None if it is a standard split of what is one part, or not divided.

    Raises `RequestError` with the existing splits if there is no such one.
    """
    names = {name.lower(): name for name in available}
    wanted = next((row for row in SPLITS.values() if split.lower() in row), (split.lower(),))
    for name in (split.lower(), *wanted):
        if name in names:
            return names[name]
    usual = any(canonical(name) for name in names)
    if canonical(split) and not usual and len(names) < 2:
        return None
    # Of several parts whose names say nothing, as of folds, none is taken for the whole.
    listed = f"it has {', '.join(sorted(names.values()))}" if names else "it is not divided into splits"
    raise RequestError(f"{where}: has no split {split!r}; {listed}")


def split_folders(folders: Sequence[str], split: str, inside: Callable[[str], tuple[bool, bool]]) -> list[str]:
    """Those of the folders beside each other that are splits; `inside` says whether one holds images, and folders.

    A folder named like a split with images right inside is a class: there are pictures of trains. If it has folders,
    too, and is not the only one of such a name among others, it is a split in which a picture lies astray.
    """
    named = [name for name in folders if canonical(name) or name.lower() == split.lower()]
    several = len(named) > 1 or len(named) == len(folders)
    has = {name: inside(name) for name in named}
    return [name for name in named if not has[name][0] or (has[name][1] and several)]


def canonical(name: str) -> str | None:
    """`train`, `val` or `test` if the name of a folder or a shard means one of them."""
    return next((split for split, row in SPLITS.items() if name.lower() in row), None)


def words(name: str) -> list[str]:
    """The words of a file name: `cifar10-train-000.tar` has `cifar10`, `train`, `000` and `tar`."""
    return re.split(r"[-_. ]", name)


_PLACE = re.compile(r"(wds/|hfds/|torch/[^:/]*:|local-dir:)?(.*)", re.IGNORECASE | re.DOTALL)
"""What stands before the folder or file in a name, and that."""
_PATTERN = re.compile(r"[*?{\[]")


def located(name: str, home: Path) -> str:
    """A name with its relative folder or file as an absolute one from the working directory `home`.

    As it is, if there is nothing of that name there: it may be one of timm's, of a hub, or in object storage.
    """
    prefix, rest = _PLACE.fullmatch(name).groups()  # type: ignore[union-attr]
    path = home / Path(rest).expanduser()
    return f"{prefix or ''}{os.path.normpath(path)}" if rest and _exists(path) else name


def seen_from_here(name: str, home: Path) -> str:
    """A name that was given in the working directory `home`; as it is, if it names something here, too, or nothing."""
    return name if located(name, Path.cwd()) != name else located(name, home)


def _exists(path: Path) -> bool:
    """Whether a path exists, or of a pattern of shards the folder that they are in."""
    parts = path.parts
    plain = next((place for place, part in enumerate(parts) if _PATTERN.search(part)), len(parts))
    try:
        return Path(PurePath(*parts[:plain])).exists()
    except (OSError, ValueError):
        return False
