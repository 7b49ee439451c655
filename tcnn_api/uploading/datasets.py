"""An uploaded data set: unpacked, and its splits, classes and images by the rules of training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tcnn.characters import fault
from tcnn.data.sources.folder import class_labels, in_classes, split_folder, walk
from tcnn.data.sources.names import SPLITS, canonical
from tcnn.data.sources.source import number
from tcnn.errors import RequestError
from tcnn_api.uploading.archives import Limits, unpack
from tcnn_jobs.confined.room import Bounds

HERE = "the archive"


def unpack_and_describe(archive: str, target: str, limits: str) -> dict[str, Any]:
    """For `tcnn_jobs.confined.process`: unpack, and say what is there; `limits` is a JSON list."""
    files, unpacked, ratio, kept = json.loads(limits)
    others = unpack(Path(archive), Path(target), Limits(files, unpacked, ratio, Bounds(*kept)))
    found = describe(Path(target), others)
    found["bytes"] = sum(path.stat().st_size for path in Path(target).rglob("*") if path.is_file())
    return found


def describe(root: Path, others: Sequence[str] = ()) -> dict[str, Any]:
    """`classes` in the order of their indices, the number of `images`, and the `splits` with theirs, {} if undivided.

    `left_out` is the number of the `others`, files that were not unpacked, that lie in class folders. Raises
    `RequestError` if it cannot be trained on or evaluated with: nothing in it, one class, an empty class, a class in
    validation that training has not.
    """
    folders = _folders(root)
    first = next(iter(folders))  # training, where there is any: only its empty class folders are a mistake
    left_out = {split: _inside(others, root, folder) for split, folder in folders.items()}
    found = {split: _labels(folder, split, split == first, left_out[split]) for split, folder in folders.items()}
    classes, _ = number(found[first])
    for split, labels in found.items():
        if unknown := sorted(set(labels) - set(classes)):
            raise RequestError(
                f"{HERE}: {split}/ has class {unknown[0]!r}, which {first}/ has not; use the same class folders in both"
            )
    if len(classes) < 2:
        raise RequestError(f"{HERE}: expected at least two class folders, found one, {classes[0]!r}")
    for name in classes:
        if wrong := fault(name):  # it would be stored in every checkpoint
            raise RequestError(f"{HERE}: the class name {name!r} has {wrong}; rename its folder")
    return {
        "classes": list(classes),
        "images": sum(map(len, found.values())),
        "left_out": sum(map(len, left_out.values())),
        "splits": {split: len(labels) for split, labels in found.items() if split is not None},
    }


class Listed(NamedTuple):
    """An image of a data set: its path in it, its class, and the split; None if the set is not divided."""

    file: str
    label: str
    split: str | None


def listed(root: Path) -> list[Listed]:
    """All images of a data set that was accepted, split by split, in natural order."""
    found = []
    for split, folder in _folders(root).items():
        images, folders, _ = walk(folder)
        prefix = "" if folder == root else f"{folder.relative_to(root)}/"
        found += [Listed(f"{prefix}{path}", label, split) for path, label in class_labels(images, folders, HERE, False)]
    return found


def _folders(root: Path) -> dict[str | None, Path]:
    """Where every split lies; {None: …} for a set that is not divided."""
    folders: dict[str | None, Path] = {}
    for split in SPLITS:
        try:
            folder, chosen = split_folder(root, split)
        except RequestError:  # it has others
            continue
        folders[chosen and canonical(chosen)] = folder
    if not folders:
        raise RequestError(f"{HERE}: expected a folder of images for every class, found nothing that can be read")
    return folders


def _inside(others: Sequence[str], root: Path, folder: Path) -> list[str]:
    """Those of the files that lie in class folders of a split, as seen from its folder."""
    start = "" if folder == root else f"{folder.relative_to(root)}/"
    return in_classes([name.removeprefix(start) for name in others if name.startswith(start)], None)


def _labels(folder: Path, split: str | None, complete: bool, others: Sequence[str]) -> list[str]:
    """The class of every image."""
    images, folders, _ = walk(folder)
    where = HERE if split is None else f"{HERE}: {split}/"
    return [label for _, label in class_labels(images, folders, where, complete, others)]
