"""Which images of a data set are held out, or make a smaller one: by their classes and a seed, without the images.

A part is drawn again for as long as the data set lists the same images in the same order: `listing`.
"""

import difflib
import hashlib
import unicodedata
from collections.abc import Iterable, Sequence

import numpy
import torch
from torch import Tensor

from tcnn.data.order import shuffle_seed
from tcnn.data.sources.names import class_name
from tcnn.errors import RequestError
from tcnn.formatting import few, some


def chosen_places(chosen: Iterable[object] | Tensor, count: int) -> Tensor:
    """(M,), int64: the places of some of `count` images, given by their indices or by a mask of all of them.

    Raises `RequestError` for anything else: a fraction, or a mask of another length.
    """
    given = numpy.asarray(chosen.cpu() if isinstance(chosen, Tensor) else list(chosen))
    if given.dtype == bool and given.shape == (count,):
        return torch.from_numpy(given).nonzero()[:, 0]
    if given.size and (given.ndim != 1 or given.dtype.kind not in "iu"):
        raise RequestError(
            f"indices: expected whole numbers in one row, or a mask of {some(count, 'image')}, found "
            f"{given.dtype} of {given.shape}"
        )
    return torch.from_numpy(given.reshape(-1).astype(numpy.int64))


def renumbered(targets: Tensor, names: Sequence[str], class_names: Sequence[str], what: str) -> Tensor:
    """Targets (N,), which are indices of `names`, as those of `class_names`, such as the training set's.

    Raises `RequestError`, which begins with `what` they are of, for a class that is not among these.
    """
    known = {class_name(name): index for index, name in enumerate(class_names)}  # an older version's may be of a Mac
    own = [class_name(name) for name in names]
    used = targets.unique().tolist()
    unknown = [names[label] for label in used if own[label] not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], class_names, 1)
        hint = f" (near: {near[0]})" if near else ""
        raise RequestError(
            f"{what}: unknown class {few(unknown)}{hint}; it must have classes that were trained ({len(known)} of them)"
        )
    table = torch.full((len(names),), -1)
    for label in used:
        table[label] = known[own[label]]
    return table[targets]


def held_out_places(targets: Tensor, images: Tensor, fraction: float, seed: int) -> Tensor:
    """(N,), bool: the places of the same `fraction` of every class, chosen by `seed`.

    `targets` (N,) are the classes; `images` (N,) are equal where one image is listed several times. It counts once and
    is held out at all its places or at none; one of several classes is not held out. A class keeps at least one image
    and, if it has two or more, gives at least one. Raises `RequestError` unless 0 < fraction < 1.
    """
    _, number = images.unique(return_inverse=True)
    count = int(number.max()) + 1 if len(number) else 0
    first = torch.full((count,), len(images)).scatter_reduce(0, number, torch.arange(len(images)), "amin")
    several = torch.zeros(count, dtype=torch.bool)
    several[number[targets != targets[first[number]]]] = True
    candidates = first[~several].sort().values
    held_out = torch.zeros(count, dtype=torch.bool)
    for members in _shuffled_classes(targets[candidates], fraction, seed, "validation"):
        chosen = members[: min(len(members) - 1, max(1, round(len(members) * fraction)))]
        held_out[number[candidates[chosen]]] = True
    return held_out[number]


def balanced_places(targets: Tensor, fraction: float, seed: int) -> Tensor:
    """The indices of a class-balanced subset among all images, in order; `targets` (N,) are their classes.

    A larger fraction contains every image of a smaller one. Raises `RequestError` unless 0 < fraction < 1.
    """
    kept = torch.zeros(len(targets), dtype=torch.bool)
    for members in _shuffled_classes(targets, fraction, seed, "fraction"):
        kept[members[: max(1, round(len(members) * fraction))]] = True
    return kept.nonzero()[:, 0]


def first_places_of_each(targets: Sequence[int], class_names: Sequence[str], limit: int) -> list[int]:
    """The first place of every class, then the second, …, up to `limit`, in order.

    Classes are taken in the order of their names, so that models with different class indices get the same images.
    """
    seen: dict[int, int] = {}
    turns = []
    for index, target in enumerate(targets):
        turns.append((seen.get(target, 0), class_names[target], index))
        seen[target] = seen.get(target, 0) + 1
    return sorted(index for _, _, index in sorted(turns)[:limit])


def listing(keys: Sequence[str] | None, targets: Sequence[int], class_names: Sequence[str]) -> str:
    """What changes with any image's key or class, and with the order; None for keys where images have none.

    The classes are known by their names, so it is the same however they are numbered; letters with accents count as
    composed, as they do where the images are put in order.
    """
    called = [""] * len(targets) if keys is None else keys
    text = "\0".join(f"{key}\0{class_names[target]}" for key, target in zip(called, targets, strict=True))
    composed = text if text.isascii() else unicodedata.normalize("NFC", text)
    return hashlib.sha256(composed.encode("utf-8", "surrogateescape")).hexdigest()


def _shuffled_classes(targets: Tensor, fraction: float, seed: int, what: str) -> Iterable[Tensor]:
    """The indices of each class that has any, in an order that depends on seed and class only."""
    if not 0 < fraction < 1:
        raise RequestError(f"a fraction of the images must lie between 0 and 1, not {fraction}")
    order = targets.argsort(stable=True)
    for label, members in enumerate(order.split(targets.bincount().tolist())):
        if len(members):
            generator = torch.Generator().manual_seed(shuffle_seed(seed, what, label))
            yield members[torch.randperm(len(members), generator=generator)]
