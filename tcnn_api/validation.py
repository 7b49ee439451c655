"""Everything that is checked before a job is accepted. What passes becomes the job's request, as it is kept."""

import math
import re
from collections.abc import Iterator
from typing import Any

from tcnn.config import PRESETS, ConversionConfig, FinetuneConfig
from tcnn.config.placement import uneven
from tcnn.data.source import canonical
from tcnn.errors import RequestError
from tcnn.zoo.catalogue import Entry
from tcnn_api.errors import Refused, quoted
from tcnn_api.references import References, train_images
from tcnn_jobs.model import Upload
from tcnn_jobs.requests import EvaluateRequest, FinetuneRequest, ModelReference, Request, Training, TransformRequest

DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?|mps")
NO_PRETRAINED = "set pretrained to false for random ones"


def validate(request: Request, names: References) -> dict[str, Any]:
    """The request as it is kept: what was given, with paths resolved. Raises `Refused` with the field to change."""
    _plain(request.model_dump(exclude_unset=True))
    given = request.model_dump(mode="json", exclude_unset=True)
    if request.webhook is not None:
        names.webhook("webhook", request.webhook)
    if isinstance(request, TransformRequest):
        _transform(request, given, names)
    elif isinstance(request, FinetuneRequest):
        _finetune(request, given, names)
    else:
        _evaluate(request, given, names)
    return given


def _transform(request: TransformRequest, given: dict[str, Any], names: References) -> None:
    entry = names.model("model", request.model, convertible=True, last_stage=_last_stage(request))
    if request.pretrained:
        names.weights("pretrained", entry, NO_PRETRAINED)
    _stride("stride", request, entry)
    if request.finetune is None:
        return
    config = _training(request.finetune, given["finetune"], names, "finetune.")
    _already_converted(config, "finetune.config")
    if "conversion" in request.finetune.config:
        raise Refused("finetune.config.conversion", "the conversion is the request's own; say it beside `model`")


def _finetune(request: FinetuneRequest, given: dict[str, Any], names: References) -> None:
    config = _training(request, given, names, "")
    if request.model is None:
        _reference(request, "", names)
        _already_converted(config, "config")
        return
    conversion = config.conversion
    entry = names.model("model", request.model, convertible=config.convert, last_stage=_last_stage(conversion))
    if request.pretrained:
        names.weights("pretrained", entry, NO_PRETRAINED)
    if config.convert:
        _stride("config.conversion.stride", conversion, entry)


def _evaluate(request: EvaluateRequest, given: dict[str, Any], names: References) -> None:
    _reference(request, "", names)
    for place, other in enumerate(request.against):
        _reference(other, f"against.{place}.", names)
    try:
        config = request.settings
    except RequestError as error:
        raise _in("config", error) from error
    _runs(config.device, config.workers, "config", names)
    given["dataset"], upload = names.dataset("dataset", request.dataset)
    if upload is not None:
        _has_split(upload, config.split, "config.split")


def _reference(reference: ModelReference, prefix: str, names: References) -> None:
    if reference.job is not None:
        names.job(f"{prefix}job", reference.job)
    elif reference.checkpoint is not None:
        names.checkpoint(f"{prefix}checkpoint", reference.checkpoint)
    elif reference.model is not None:
        entry = names.model(f"{prefix}model", reference.model, convertible=False)
        names.weights(f"{prefix}model", entry, "name a model that has, or upload a checkpoint")


def _training(training: Training, given: dict[str, Any], names: References, prefix: str) -> FinetuneConfig:
    """The settings of fine-tuning, once they and the data sets are known to be possible."""
    if training.preset not in PRESETS:
        raise Refused(f"{prefix}preset", f"expected one of {', '.join(PRESETS)}, found {quoted(training.preset)}")
    try:
        config = training.settings
    except RequestError as error:
        raise _in(f"{prefix}config", error) from error
    _runs(config.device, config.workers, f"{prefix}config", names)
    names.workers(f"{prefix}num_workers", training.num_workers)
    wrong = uneven(config, training.num_workers)
    if wrong is not None:
        raise Refused(f"{prefix}num_workers", wrong)
    if config.teacher not in (None, "source"):
        field = f"{prefix}config.teacher"
        names.weights(field, names.model(field, str(config.teacher), convertible=False), "name another teacher")
    given["dataset"], upload = names.dataset(f"{prefix}dataset", training.dataset)
    if training.val is not None:
        given["val"], held_out = names.dataset(f"{prefix}val", training.val)
        if held_out is not None:
            _has_split(held_out, "val", f"{prefix}val")
    if upload is not None:
        _enough(upload, training, config, prefix)
    return config


def _enough(upload: Upload, training: Training, config: FinetuneConfig, prefix: str) -> None:
    """An uploaded data set has images to train on and to validate with, and a batch of them."""
    splits = upload.details.get("splits") or {}
    _has_split(upload, "train", f"{prefix}dataset")
    if training.val is None and config.val_split is None and "val" not in splits:
        raise Refused(
            f"{prefix}val", f"{upload.id} has no validation split; name a data set, or set config.val_split to 0.1"
        )
    images = train_images(upload, config.val_split if training.val is None else None)
    if config.batch_size > images:
        raise Refused(
            f"{prefix}config.batch_size",
            f"a batch of {config.batch_size} is larger than the {images} training images of {upload.id}; choose less",
        )


def _has_split(upload: Upload, split: str, field: str) -> None:
    splits = upload.details.get("splits") or {}
    if splits and (canonical(split) or split) not in splits:
        raise Refused(field, f"{upload.id} has no split {quoted(split)}; it has {', '.join(sorted(splits))}")


def _runs(device: str, workers: int, field: str, names: References) -> None:
    """Settings that any string or number fits, and few work."""
    if not DEVICE.fullmatch(device):
        raise Refused(f"{field}.device", f"expected auto, cpu, cuda, cuda:N or mps, found {quoted(device)}")
    most = names.settings.max_loader_workers
    if workers > most:
        raise Refused(f"{field}.workers", f"expected at most {most} on this server, found {workers}")


def _already_converted(config: FinetuneConfig, field: str) -> None:
    """What only a CNN can do, asked of a model that is a T-CNN already."""
    if not config.convert:
        raise Refused(f"{field}.convert", "the model is a T-CNN already; POST /finetune with `model` trains a CNN")
    if config.convert_at is not None:
        raise Refused(f"{field}.convert_at", "the model is a T-CNN already; POST /finetune with `model` takes it")


def _stride(field: str, conversion: ConversionConfig, entry: Entry | None) -> None:
    if conversion.stride == "remove" and _last_stage(conversion) and entry is not None and not entry.stride_removable:
        raise Refused(field, f"{entry.name}: the stride of its last stage cannot be removed; use keep")


def _last_stage(conversion: ConversionConfig) -> bool:
    """Whether the conversion is of what the catalogue describes."""
    return conversion.stage == -1 and conversion.target is None


def _in(field: str, error: RequestError) -> Refused:
    """A configuration's own error (`lr: input should be …`) as the field's of the request."""
    name, colon, rest = str(error).partition(": ")
    if colon and re.fullmatch(r"[A-Za-z_][\w.]*", name):
        return Refused(f"{field}.{name}", rest)
    return Refused(field, str(error))


def _plain(given: dict[str, Any]) -> None:
    """Free-form parts hold only what JSON and UTF-8 can say back."""
    for field, value in _leaves(given, ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise Refused(field, f"expected a finite number, found {value}")
        if isinstance(value, str) and not _storable(value):
            raise Refused(field, f"expected text without NUL and lone surrogates, found {quoted(value)}")


def _leaves(value: Any, field: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            name = f"{field}.{key}" if field else str(key)
            yield (name if _storable(name) else ascii(name)), key
            yield from _leaves(item, name if _storable(name) else ascii(name))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{field}.{place}")
    else:
        yield field, value


def _storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
