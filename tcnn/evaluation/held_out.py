"""Which images of a data set a checkpoint has not been trained on, by what it records of its training.

A model that is measured on the images that it learned from looks better than it is. A run with `val_split` held a part
of its training set out; that part is found again from the share and the seed, and is what may be measured.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tcnn.checkpoints.files import checkpoint_file, record_kept, training_record
from tcnn.checkpoints.opening import check_exists
from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.data.parts import held_out_places
from tcnn.data.sources.names import seen_from_here
from tcnn.errors import RequestError
from tcnn.zoo.own_network import network_name

Given = Mapping[str, nn.Module]
"""Modules by the names that they are compared under."""
NONE_GIVEN: Given = {}
OPENED = f"{ImageSet.__name__}("
"""How the record of a run names a data set that its caller had opened."""


class Training(NamedTuple):
    """What a checkpoint says of the data that it was trained on."""

    data: str
    val: str | None
    """Another data set that every epoch was validated on."""
    val_split: float | None
    """The share of the training set that was held out."""
    seed: int
    images: str | None = None
    """`ImageSet.fingerprint` of the data, which finds it again after a move or as a copy. Runs of 0.2.0 have none."""
    image_set: str | None = None
    """The same for any order of the images."""
    listing: str | None = None
    """`ImageSet.listing` of the data as given, by which what was held out is found again. Runs of 0.2.0 have none."""
    class_names: Sequence[str] | None = None
    """In the order of their numbers, by which the part was drawn. Of earlier trainings, older releases kept none."""
    val_listing: str | None = None
    """The listing of the validation images, if these are a part of the same data set of which none was learned from."""


class Unseen(NamedTuple):
    """The images of a data set that may be measured."""

    mask: Tensor | None
    """(N,), bool, over all images of the data set; None is all of them."""
    trained_on: tuple[str, ...]
    """Models that were trained on some of them: nothing can be said about others from these."""
    part_lost: tuple[str, ...] = ()
    """Those of them that held a part out, which cannot be told any more."""


def trainings_of(name: str | nn.Module) -> tuple[Training, ...]:
    """What a checkpoint of a run says, the latest training first, then those of the model that it began with.

    So does a module that was loaded from one. Empty for any other model, and for what cannot be read.
    """
    if isinstance(name, nn.Module):
        return trainings_in(record_kept(name))
    file = checkpoint_file(name)
    if file is None:
        return ()
    return trainings_in(training_record(file))


def trainings_in(record: Mapping[str, Any] | None) -> tuple[Training, ...]:
    """The trainings in a run's record, the latest first; empty for None, and for what cannot be read."""
    if record is None:
        return ()
    try:
        config: Mapping[str, Any] = record["config"]
        latest = Training(
            str(record["data"]), record.get("val"), config.get("val_split"), int(config.get("seed", 0)),
            record.get("images"), record.get("image_set"), record.get("listing"), record.get("class_names"),
            record.get("val_listing"),
        )  # fmt: skip
        return latest, *(Training(**one) for one in record.get("earlier", []))
    except (ValueError, KeyError, TypeError):
        return ()


def measured_by_default(
    models: Sequence[str], weights: Path | None = None, given: Given = NONE_GIVEN
) -> tuple[str, str | None]:
    """The data set that the first model with a record was validated on, or held a part of out, and the split of it.

    The split is `train` where a part of that was held out, else None: its usual one.

    `weights`: the file that the one model's weights are loaded from, whose record counts then. `given`: the modules
    among the models.

    Raises `RequestError` if none of them says, and what opening one of them raises if there is none of its name.
    """
    for place, name in enumerate(_files(models, weights, given)):
        if found := trainings_of(name):
            data = found[0].val or found[0].data
            if data.startswith(OPENED):
                raise RequestError(
                    f"--data: expected a data set to measure on, by its name or folder, for {models[place]} was "
                    f"validated on one that was opened in Python and has no name, {data}"
                )
            split = "train" if found[0].val is None and found[0].val_split else None
            return data if isinstance(name, nn.Module) else _seen_from_here(data, name), split
    for own in models:
        if own not in given and own != network_name():  # that network is no file's, and says nothing
            check_exists(own)
    raise RequestError(
        f"--data: expected a data set to measure on, for {', '.join(models)} does not say what it was trained on"
    )


def _seen_from_here(data: str, name: str) -> str:
    """A run's data set; its relative path, if that leads nowhere here, from the directory that the run began in."""
    file = checkpoint_file(name)
    try:
        config = json.loads((file.parent / "config.json").read_text(encoding="utf-8")) if file is not None else {}
        return seen_from_here(data, Path(config["directory"]))
    except (OSError, ValueError, KeyError, TypeError):  # it was moved out of its run, or is of 0.2.0
        return data


def unseen(
    models: Sequence[str],
    data: str,
    opening: Callable[[], ImageSet],
    known_as: str | None = None,
    weights: Path | None = None,
    given: Given = NONE_GIVEN,
) -> Unseen:
    """Which images of a data set the models have not been trained on; `opening` opens it, if that must be known.

    Runs may have recorded it under the name `known_as` instead of where it lies, or it was moved since: then its images
    tell. `weights` and `given` are as for `measured_by_default`.

    Raises `RequestError` for models that have held out different parts of it.
    """

    @cache
    def learned_part() -> bool:
        """Whether these are the images that runs on the data set learn from, and no part of its own."""
        return opening().split == open_dataset(data, "train").split

    parts: list[tuple[str, Tensor]] = []
    trained_on, lost = [], []
    prints: _Prints | None = None
    for name, file in zip(models, _files(models, weights, given), strict=True):
        trainings = trainings_of(file)
        named = [one for one in trainings if one.data == known_as or same(one.data, data)]
        if not named and not any(one.images or one.image_set for one in trainings):
            continue
        prints = prints or _prints(*(opening().of_channels(channels) for channels in (3, 1)))
        here = _on_these(trainings, named if named and learned_part() else (), prints)
        if not here:
            continue
        if (part := _part(here, prints)) is not None:
            parts.append((name, part))
        else:
            trained_on.append(name)
            known = prints._replace(listed={None: opening().whole, **prints.listed})
            lost += [name] * all(one.val_split and not _unchanged(one, known) for one in here)
    for other, part in parts:
        if not part.equal(parts[0][1]):
            raise RequestError(
                f"{data}: {parts[0][0]} and {other} were trained on different parts of it; measure them apart, or on "
                "images that neither has seen"
            )
    return Unseen(parts[0][1] if parts else None, tuple(trained_on), tuple(lost))


class _Prints(NamedTuple):
    """What runs record of the images of one data set, whether they learned from them in colour or in grey."""

    ordered: frozenset[str]
    unordered: frozenset[str]
    listed: Mapping[str | None, ImageSet]
    """The set that was opened, and the parts of it that lead to this one, by their listings.

    By None the former, if it is split as a release split it that recorded no listing.
    """


def _prints(*modes: ImageSet) -> _Prints:
    """Those of a data set, given as it is opened for so many kinds of models."""
    whole = modes[0].whole
    repeated = len(whole.identities().unique()) < len(whole)
    return _Prints(
        frozenset(one.fingerprint() for one in modes),
        frozenset(one.fingerprint(ordered=False) for one in modes),
        {one.listing(): one for one in modes[0].lineage} | ({} if repeated else {None: whole}),
    )


def _on_these(trainings: Sequence[Training], named: Sequence[Training], prints: _Prints) -> list[Training]:
    """Those that learned from the images, by whatever name and in whatever order.

    So did one on a set of the same name as another's, of which there were more or fewer images then.
    """
    found = [
        one for one in trainings if one in named or one.images in prints.ordered or one.image_set in prints.unordered
    ]
    known = [one.data for one in found if not one.data.startswith(OPENED)]
    return [one for one in trainings if one in found or any(same(one.data, name) for name in known)]


def _part(here: Sequence[Training], prints: _Prints) -> Tensor | None:
    """(N,), bool: what all trainings on the images held out of the set that was opened; None if not all the same.

    In another order, among more or fewer images, or with a name or a class that has changed, nothing tells which ones
    were held out.
    """
    if not all(one.val is None and one.val_split and _unchanged(one, prints) for one in here):
        return None
    try:
        first, *others = (_held_out(prints.listed[one.listing], one) for one in here)
    except RequestError:  # it has a class that was not trained
        return None
    return first if all(part.equal(first) for part in others) else None


def _held_out(data: ImageSet, one: Training) -> Tensor:
    """(N,), bool, over all of what was opened: the part of a set that a training drew, with its numbers of classes."""
    numbered = data if one.class_names is None else data.numbered_as(one.class_names)
    drawn = held_out_places(numbered.targets, data.identities(), one.val_split or 0, one.seed)
    part = torch.zeros(len(data.whole), dtype=torch.bool)
    part[data.places[drawn]] = True
    return part


def _unchanged(one: Training, prints: _Prints) -> bool:
    """Whether the images are as they were in a training, in their order, as far as is known."""
    return one.images in (None, *prints.ordered) and one.listing in prints.listed


def learned_note(model: nn.Module, data: ImageSet) -> str | None:
    """A note, if a model that was loaded from a run learned from images of this set; by the same rule as `unseen`.

    A run of 0.2.0 has not recorded by what its images are known, so nothing is said of it.
    """
    trainings = [one for one in trainings_of(model) if one.images or one.image_set]
    if not trainings:
        return None
    prints = _prints(data)
    here = [one for one in _on_these(trainings, (), prints) if one.val_listing not in prints.listed.keys() - {None}]
    if not here:
        return None
    learned, hint = len(data), "measure it on others"
    if (part := _part(here, prints)) is not None:
        learned = int((~part[data.places]).sum())
        share, seed, given = here[0].val_split, here[0].seed, prints.listed[here[0].listing]
        hint = f"what it has not is split_off(data, {share:g}, {seed})[1], of tcnn.data.image_set"
        if not part.equal(_held_out(given, here[0]._replace(class_names=None))):
            hint += ", where data has the class_names of the training set"
    if not learned:
        return None
    most = "" if all(_unchanged(one, prints) for one in here) else "up to "  # it may have been a part of them
    which = "this image" if len(data) == 1 else f"{most}{learned} of these {len(data)} images"
    return f"the model has learned from {which}, so this tells nothing about others; {hint}"


def _files(models: Sequence[str], weights: Path | None, given: Given) -> Sequence[str | nn.Module]:
    """What says what the models learned from: themselves, or the file of the weights of the one that there is."""
    return [given.get(name, name) for name in models] if weights is None else [str(weights)]


def same(one: str, other: str) -> bool:
    """Whether two names are of one data set: paths of one place, or the same text."""
    first, second = Path(one).expanduser(), Path(other).expanduser()
    try:
        return one == other or first.samefile(second)
    except OSError:
        return False
