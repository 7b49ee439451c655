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


def record_of(sources: Sources, config: FinetuneConfig, start: Start, train: ImageSet) -> dict[str, Any]:
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
        "image_count": len(train.whole),
        "earlier": [one._asdict() for one in earlier],
        "weights": start.origin or ("file" if sources.weights else "pretrained" if sources.pretrained else "random"),
        "size": list(start.size),
        "class_names": list(train.class_names),
        "config": config.model_dump(mode="json"),
        "versions": {"tcnn": __version__, "torch": torch.__version__, "timm": timm.__version__},
        **sources.names,
    }


def leaked(record: Mapping[str, Any]) -> str | None:
    """A note, if what this run holds out of its data may have been learned from by the model that it begins with."""
    share, seed = record["config"]["val_split"], record["config"]["seed"]
    if record["val"] is not None or not share:
        return None
    earlier = [one for one in (Training(**each) for each in record["earlier"]) if same(one.data, record["data"])]
    if all(one.val is None and (one.val_split, one.seed) == (share, seed) for one in earlier):
        return None
    return (
        f"the model was trained on {record['data']} before, with another part held out or none: it may have learned "
        "from the images that it is validated on now"
    )


def check_settings(run: RunDirectory, record: dict[str, Any], allow: bool, say: Say) -> None:
    """Raise `RequestError` if the settings of a resumed run changed, unless that is allowed."""
    before = run.record()
    changes = changed_settings(completed(before.get("config", {})), record["config"])
    for key in ("model", "data", "val", "size", "class_names"):
        if before.get(key) != record[key]:
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


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run of an earlier release: where it knew no such setting, it did what is the default now."""
    conversion = config.get("conversion")
    if isinstance(conversion, dict):
        config = {**config, "conversion": ConversionConfig().model_dump(mode="json") | conversion}
    return FinetuneConfig().model_dump(mode="json") | config


def _name(source: str | Path | nn.Module) -> str:
    if isinstance(source, nn.Module):
        return str((getattr(source, "pretrained_cfg", None) or {}).get("architecture") or type(source).__name__)
    return str(source)
