"""The record of a run: what its config.json and its checkpoints state, and what that says of its images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from torch import nn

from tcnn.checkpoints.files import record_kept
from tcnn.config import FinetuneConfig
from tcnn.data.image_set import ImageSet
from tcnn.evaluation.held_out import OPENED, Training, same, trainings_in, trainings_of
from tcnn.models.running import architecture_name
from tcnn.training.preparing.prepare import Start
from tcnn.version import __version__

COMPARED = 20_000
"""The most images, of training and validation together, that are compared by their files."""


class Sources(NamedTuple):
    """Where model and data come from, as given to `finetune`."""

    model: str | Path | nn.Module
    data: str | ImageSet
    val: str | ImageSet | None
    pretrained: bool
    weights: Path | None
    names: Mapping[str, str | None]


def working_directory(sources: Sources) -> dict[str, str]:
    """The entry of config.json that relative paths start from; none for a run whose paths are recorded by names."""
    return {} if sources.names else {"directory": str(Path.cwd())}


def run_record(
    sources: Sources, config: FinetuneConfig, start: Start, train: ImageSet, val_set: ImageSet
) -> dict[str, Any]:
    """The record of a run in config.json and in its checkpoints.

    What is held out, and what a share of the images is taken of, is all that was given: of what was opened in Python
    that may be a part. By the fingerprints of all that was opened it is known what this is a part of.
    """
    data, val = sources.data, sources.val
    given = data if isinstance(data, ImageSet) else train.whole
    apart = val is not None and val_set.beside(train) and not _in_both(train, val_set)
    if isinstance(sources.model, nn.Module):
        earlier = trainings_in(record_kept(sources.model))
    else:
        earlier = trainings_of(str(sources.weights or sources.model))
    return {
        "run": "finetune",
        "model": _name(sources.model),
        "data": data if isinstance(data, str) else repr(data),
        "val": val if isinstance(val, str) else None if val is None else repr(val),
        "images": train.fingerprint(),
        "image_set": train.fingerprint(ordered=False),
        "listing": given.listing(),
        "image_count": len(given),
        "val_listing": val_set.listing() if apart else None,
        "earlier": [one._asdict() for one in earlier],
        "weights": start.origin or ("file" if sources.weights else "pretrained" if sources.pretrained else "random"),
        "size": list(start.size),
        "class_names": list(train.class_names),
        "config": config.model_dump(mode="json"),
        "versions": {"tcnn": __version__, "torch": torch.__version__, "timm": timm.__version__},
        **sources.names,
    }


def leakage_note(record: Mapping[str, Any]) -> str | None:
    """A note, if the model that a run begins with may have been trained on the images that the run holds out."""
    share, seed = record["config"]["val_split"], record["config"]["seed"]
    if record["val"] is not None or not share:
        return None
    earlier = [one for one in (Training(**each) for each in record["earlier"]) if _same_images(one, record)]
    if all(
        one.val is None and (one.val_split, one.seed) == (share, seed) and _in_order(one, record) for one in earlier
    ):
        return None
    return (
        f"the model was trained on {record['data']} before, with another part held out or none: it may have learned "
        "from the images that it is validated on now"
    )


def validated_on_training(record: Mapping[str, Any], train: ImageSet, val: ImageSet) -> str | None:
    """A note, if the validation images are the training images, by the same rule as `tcnn evaluate` has.

    The data sets may have other names; of the images either the names or the order may be others. Of parts of them
    nothing is said here.
    """
    if val.beside(train) or len(val) < len(val.whole):
        return None
    if val.fingerprint() != record["images"] and val.fingerprint(ordered=False) != record["image_set"]:
        return None
    return (
        "the images that it is validated on are those that it learns from, so its accuracy says nothing of others; "
        "name others with --val, or leave it out to hold a part of them out"
    )


def trained_on_too(train: ImageSet, val: ImageSet) -> list[int] | None:
    """The places in the validation set of its images that are training images.

    Of one set that was opened these are the same images, of others those whose files are the same byte for byte. Only
    files of equal size are read. None where it is not looked into: in more than `COMPARED` images of both sets, of
    which every size would be asked for, and in images that are not files on the disk.
    """
    same = _in_both(train, val) if val.beside(train) else None
    if len(train) + len(val) > COMPARED:
        return same
    learned, measured = train.sizes(), val.sizes()
    if learned is None or measured is None:
        return same
    candidates = torch.isin(measured, learned[learned > 0]).nonzero()[:, 0].tolist()
    sources = torch.isin(learned, measured[candidates]).nonzero()[:, 0].tolist()
    known = {train.digest(place) for place in sources} - {None}
    return sorted({*(same or ()), *(place for place in candidates if val.digest(place) in known)})


def _in_both(train: ImageSet, val: ImageSet) -> list[int]:
    """The places in one part of a set of its images that are in another part of it."""
    places: list[int] = torch.isin(val.identities(), train.identities()).nonzero()[:, 0].tolist()
    return places


def trained_on_note(places: Sequence[int], val: ImageSet) -> str | None:
    """A note, if some of the validation images are training images."""
    if not places:
        return None
    return (
        f"{len(places)} of {len(val)} validation images are also training images, such as {val.filename(places[0])}: "
        "the accuracy on them says nothing of others; take them out of one of the two sets"
    )


def _same_images(one: Training, record: Mapping[str, Any]) -> bool:
    """Whether an earlier training learned from the images of this run, wherever they lie and in whatever order."""
    known = {one.images, one.image_set} - {None}
    named = not one.data.startswith(OPENED) and same(one.data, record["data"])
    return named or not known.isdisjoint((record["images"], record["image_set"]))


def _in_order(one: Training, record: Mapping[str, Any]) -> bool:
    """Whether they are listed and numbered as they were, as far as is known: else another part is held out."""
    return all(getattr(one, key) in (None, record[key]) for key in ("images", "listing", "class_names"))


def _name(source: str | Path | nn.Module) -> str:
    if isinstance(source, nn.Module):
        return architecture_name(source)
    return str(source)
