"""Read class folders on the disk: `cat/1.jpg` is a cat. As in timm, the folder of an image is its class.

The tree is walked once, here and not by timm's reader, because what is *not* an image matters too: junk must not become
a class, and an empty class folder must not shift the classes behind it.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, NoReturn

import numpy
from numpy.typing import NDArray

from tcnn.data.decode import open_at_once
from tcnn.data.sources.names import (
    EXTENSIONS,
    choose_split,
    image_key,
    is_image,
    is_junk,
    is_left_out,
    left_out_note,
    sort_key,
    split_folders,
)
from tcnn.data.sources.source import Found, first_places, number, pack_names, stamp_of
from tcnn.errors import RequestError, readable
from tcnn.formatting import some

Say = Callable[[str], None]
"""Called with a note for the user."""


class FolderSource:
    """`Source` of images under a root, by relative path."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self.root = root
        self.paths = pack_names(paths)

    def filename(self, index: int) -> str:
        return readable(self._path(index))

    def stamp(self, index: int) -> str | None:
        return stamp_of(self._path(index))

    def keys(self) -> Sequence[str]:
        return [image_key(os.fsdecode(path)) for path in self.paths.tolist()]

    def identities(self) -> NDArray[numpy.int64]:
        return first_places(self.paths.tolist())

    def sizes(self) -> NDArray[numpy.int64]:
        return numpy.array([_size(self._path(index)) for index in range(len(self.paths))], dtype=numpy.int64)

    def open(self, index: int) -> BinaryIO:
        return open(self._path(index), "rb", opener=open_at_once)

    def _path(self, index: int) -> str:
        return str(self.root / os.fsdecode(self.paths[index]))


def open_folder(root: Path, split: str, complete: bool) -> Found:
    """Open the images of a split, or of the whole folder if it has no split folders.

    `complete`: every class folder must have an image. Raises `RequestError`.
    """
    root, chosen = split_folder(root, split)
    images, folders, others = walk(root)
    if not images and any(root.glob("*.tar*")):
        raise RequestError(
            f"{root}: expected a folder of images for every class, found tar archives; shards are called wds/{root}"
        )
    labels = class_labels(images, folders, str(root), complete, others)
    names, numbers = number([label for _, label in labels])
    source = FolderSource(root, (path for path, _ in labels))
    return Found(names, numbers, source, chosen, left_out_note(in_classes(others, chosen)))


def split_folder(root: Path, split: str) -> tuple[Path, str | None]:
    """The folder of a split, and its name: below folders that contain one folder only, in one of its name, or there."""
    while True:
        folders, images = _entries(root)
        parts = split_folders(folders, split, partial(_holds, root))
        if len(folders) == 1 and not images and not parts and _entries(root / folders[0])[0]:
            root = root / folders[0]
            continue
        chosen = choose_split(parts, split, str(root))
        return (root / chosen if chosen else root), chosen


class Walked(NamedTuple):
    """Relative paths under a root: of images, of folders, and of the files that `is_left_out`."""

    images: list[str]
    folders: list[str]
    others: list[str]


def walk(root: Path) -> Walked:
    """What is under a root, without junk and links to what they lie in.

    Raises `RequestError` for a folder that cannot be looked into: without it this would be another data set.
    """
    images, folders, others = found = Walked([], [], [])
    around = {os.fspath(root): frozenset({_identity(os.fspath(root))})}
    for place, inside, files in os.walk(root, followlinks=True, onerror=_refuse):
        above = around.pop(place)
        inner = {name: _identity(os.path.join(place, name)) for name in inside if not is_junk(name)}  # noqa: PTH118
        inside[:] = [name for name, identity in inner.items() if identity not in above]
        around |= {os.path.join(place, name): above | {inner[name]} for name in inside}  # noqa: PTH118
        prefix = os.path.relpath(place, root) + "/"
        prefix = "" if prefix == "./" else prefix
        images.extend(prefix + name for name in files if is_image(name))
        folders.extend(prefix + name for name in inside)
        others.extend(prefix + name for name in files if is_left_out(name))
    return found


def select_files(where: Path, limit: int) -> list[Path]:
    """At most `limit` files of a folder that may be images, evenly spread; raises `RequestError` if there is none."""
    if where.is_file():
        return [where]
    if not where.is_dir():
        raise RequestError(f"{where}: expected an image or a folder of images, found nothing")
    names = sorted(walk(where)[0], key=sort_key)
    if not names:
        raise RequestError(f"{where}: expected images, found none (they end in {' '.join(EXTENSIONS)})")
    count = min(limit, len(names))
    return [where / names[index * len(names) // count] for index in range(count)]


def image_files(images: str | Path | Iterable[str | Path], say: Say | None = None) -> list[Path]:
    """Files as they are named, and of a folder every image below it, in natural order.

    `say` gets a note of the files in a folder that are not taken for images. Raises `RequestError` for what does not
    exist, what is no path, a folder without an image, and if nothing is named.
    """
    found: list[Path] = []
    given: Iterable[object] = images if isinstance(images, Iterable) and not isinstance(images, str) else [images]
    for name in given:
        if not isinstance(name, str | os.PathLike):
            kind = type(name).__name__
            raise RequestError(f"images: expected images of PIL, or the paths of files or folders, found {kind}")
        if not str(name):  # Path("") is the working directory
            raise RequestError("images: expected the paths of files or folders, found an empty name")
        path = Path(name).expanduser()
        if path.is_dir():
            inside = walk(path)
            note = left_out_note(inside.others)
            if not inside.images:
                raise RequestError(f"{path}: there is no image in this folder" + (f" ({note})" if note else ""))
            if note and say:
                say(f"{path}: {note}")
            found += [path / file for file in sorted(inside.images, key=sort_key)]
        elif path.exists():
            found.append(path)
        else:
            hint = "" if is_image(path.name) or path.suffix else "; images are files or folders"
            raise RequestError(f"{path}: no such image{hint}")
    if not found:
        raise RequestError("expected at least one image, or a folder of images")
    return found


def in_classes(others: Iterable[str], split: str | None) -> list[str]:
    """Those of the files left out that lie in class folders, as seen from where the split lies."""
    return [f"{split}/{path}" if split else path for path in others if "/" in path]


def class_labels(
    images: Sequence[str], folders: Iterable[str], where: str, complete: bool, others: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """Every image with its class, in natural order; images in the root are left out.

    Raises `RequestError` if there is none (the `others` are named), or if `complete` is given and a class folder has
    none.
    """
    labels = [(path, parent.rpartition("/")[2]) for path in images if (parent := path.rpartition("/")[0])]
    if not labels:
        raise RequestError(
            f"{where}: expected a folder of images for every class, found {_found_instead(images, folders, others)}"
        )
    if complete and (empty := empty_classes([path for path, _ in labels], folders)):
        listed = ", ".join(empty[:3]) + (" …" if len(empty) > 3 else "")
        raise RequestError(
            f"{where}: no images in class folder {listed}; fill it or remove it (images end in {' '.join(EXTENSIONS)})"
        )
    return sorted(labels, key=lambda pair: sort_key(pair[0]))


def empty_classes(images: Iterable[str], folders: Iterable[str]) -> list[str]:
    """Class folders without an image anywhere below; folders inside a class do not count."""
    classes = {path.rpartition("/")[0] for path in images}
    filled = {str(parent) for path in classes for parent in (PurePosixPath(path), *PurePosixPath(path).parents)}
    missing = (folder for folder in folders if folder not in filled)
    return sorted(
        (folder for folder in missing if _parent(folder) in filled and _parent(folder) not in classes), key=sort_key
    )


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size  # noqa: PTH116 - many times
    except OSError:
        return 0


def _parent(folder: str) -> str:
    return str(PurePosixPath(folder).parent)


def _found_instead(images: Sequence[str], folders: Iterable[str], others: Iterable[str]) -> str:
    if images:
        return f"{some(len(images), 'image')} that {'lies' if len(images) == 1 else 'lie'} in no class folder"
    if note := left_out_note(in_classes(others, None)):
        return note.removeprefix("left out: ")
    return "folders without images" if list(folders) else "nothing"


def _entries(root: Path) -> tuple[list[str], list[str]]:
    """Names of the folders and of the images right inside a folder, without junk. Raises `RequestError`."""
    folders: list[str] = []
    images: list[str] = []
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if entry.is_dir() and not is_junk(entry.name):
                    folders.append(entry.name)
                elif is_image(entry.name):
                    images.append(entry.name)
    except OSError as error:
        _refuse(error)
    return folders, images


def _holds(root: Path, name: str) -> tuple[bool, bool]:
    """Whether images, and whether folders, lie right inside a folder."""
    folders, images = _entries(root / name)
    return bool(images), bool(folders)


def _identity(folder: str) -> tuple[int, int]:
    """What tells a folder from others, by whatever path it is reached. Raises `RequestError`."""
    try:
        found = os.stat(folder)  # noqa: PTH116 - a hundred thousand times
    except OSError as error:
        _refuse(error)
    return found.st_dev, found.st_ino


def _refuse(error: OSError) -> NoReturn:
    raise RequestError(f"{error.filename}: cannot be looked into ({(error.strerror or str(error)).lower()})") from error
