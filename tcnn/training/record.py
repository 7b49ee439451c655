"""The record of a run: what its config.json and its checkpoints state, and what must be the same when it goes on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from torch import nn

from tcnn.checkpoints.files import record_kept
from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.data.image_set import ImageSet
from tcnn.data.sources import names
from tcnn.errors import RequestError, shorten
from tcnn.evaluation.held_out import Training, same, trainings_in, trainings_of
from tcnn.training.preparing.prepare import Start
from tcnn.training.runs.callbacks import Say
from tcnn.training.runs.rundir import RunDirectory, changed_settings
from tcnn.version import __version__


class Sources(NamedTuple):
    """Where model and data come from, as given to `finetune`."""

    model: str | Path | nn.Module
    data: str | ImageSet
    val: str | ImageSet | None
    pretrained: bool
    weights: Path | None
    names: Mapping[str, str | None]


def seen_from_here(sources: Sources, run: RunDirectory) -> Sources:
    """What a run is resumed with; relative paths that lead nowhere here, from the directory that it began in."""
    home = run.record().get("directory")
    if home is None:  # a run of 0.2.0, or one that is known by other names
        return sources

    def here(value: Any) -> Any:
        seen = names.seen_from_here(str(value), Path(home)) if isinstance(value, str | Path) else value
        return Path(seen) if isinstance(value, Path) else seen

    return sources._replace(model=here(sources.model), data=here(sources.data), val=here(sources.val))


def working_directory(sources: Sources) -> dict[str, str]:
    """The entry of config.json that relative paths start from; none for a run whose paths are recorded by names."""
    return {} if sources.names else {"directory": str(Path.cwd())}


def run_record(sources: Sources, config: FinetuneConfig, start: Start, train: ImageSet) -> dict[str, Any]:
    """The record of a run in config.json and in its checkpoints."""
    data, val = sources.data, sources.val
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
        "image_count": len(train.whole),
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
    """A note, if the validation images are the training images, under whatever name and in whatever order."""
    if val.whole is train.whole or val.fingerprint(ordered=False) != record["image_set"]:
        return None
    return (
        "the images that it is validated on are those that it learns from, so its accuracy says nothing of others; "
        "name others with --val, or leave it out to hold a part of them out"
    )


def _same_images(one: Training, record: Mapping[str, Any]) -> bool:
    """Whether an earlier training learned from the images of this run, wherever they lie and in whatever order."""
    known = {one.images, one.image_set} - {None}
    return same(one.data, record["data"]) or not known.isdisjoint((record["images"], record["image_set"]))


def _in_order(one: Training, record: Mapping[str, Any]) -> bool:
    """Whether they are in the order that they were in, as far as is known: else another part is held out."""
    return one.images in (None, record["images"])


def check_settings(run: RunDirectory, record: dict[str, Any], allow: bool, say: Say) -> None:
    """Raise `RequestError` if the settings of a resumed run changed, unless that is allowed."""
    before = run.record()
    changes = changed_settings(with_defaults(before.get("config", {})), record["config"])
    for key in ("model", "data", "val", "size", "class_names"):
        if before.get(key) != record[key] and not _same_path(before, key, record[key]):
            changes.append(f"{key}: {shorten(str(before.get(key)), 60)} → {shorten(str(record[key]), 60)}")
    # Of more images or fewer others would be held out, which the run has learned from; older runs have no count.
    if before.get("image_count", record["image_count"]) != record["image_count"]:
        changes.append(f"images in the data set: {before['image_count']} → {record['image_count']}")
    elif before.get("images", record["images"]) != record["images"]:  # perhaps by another decoder: nothing to end for
        say(
            "note: the images are others than the run began with, or in another order, or decoded otherwise: it may "
            "have learned from those that are held out now"
        )
    if changes and not allow:
        raise RequestError(
            f"{run.path}: began with other settings ({'; '.join(changes)}); give the same ones, or --allow-changes"
        )
    for change in changes:
        say(f"changed: {change}")


def _same_path(before: Mapping[str, Any], key: str, now: Any) -> bool:
    """Whether a path that is written in another way is the one that the run began with."""
    then, home = before.get(key), before.get("directory")
    if key not in ("model", "data", "val") or home is None or not isinstance(then, str) or not isinstance(now, str):
        return False
    return names.located(then, Path(home)) == names.located(now, Path.cwd())


def with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run of an earlier release, with today's defaults for those that it did not have."""
    conversion = config.get("conversion")
    if isinstance(conversion, dict):
        config = {**config, "conversion": ConversionConfig().model_dump(mode="json") | conversion}
    return FinetuneConfig().model_dump(mode="json") | config


def _name(source: str | Path | nn.Module) -> str:
    if isinstance(source, nn.Module):
        return str((getattr(source, "pretrained_cfg", None) or {}).get("architecture") or type(source).__name__)
    return str(source)
