"""Validation of a request body by itself: text, webhook and settings, before anything that it names is looked up."""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from tcnn.config import PRESETS, FinetuneConfig, is_presets_conversion
from tcnn.config.effects import refuse_without_effect
from tcnn.config.evaluation import EvaluationConfig
from tcnn.errors import RequestError
from tcnn.training.launch.exchange import batch_size_problem
from tcnn_api.errors import Refused, quoted
from tcnn_api.settings import ApiSettings
from tcnn_jobs.model.requests import EvaluateRequest, FinetuneRequest, Request, Training, models_of

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?|mps")


@dataclass(frozen=True)
class Finetuning:
    """The part of a request that asks for fine-tuning, with its whole configuration."""

    asked: Training
    config: FinetuneConfig
    prefix: str
    """What the names of its fields begin with."""


@dataclass(frozen=True)
class Submission:
    """A request, with the configurations that its settings make."""

    request: Request
    finetuning: Finetuning | None = None
    evaluation: EvaluationConfig | None = None


def read(request: Request, settings: ApiSettings) -> Submission:
    """A request by itself. Raises `Refused` with the field to change."""
    _check_text(request.model_dump(exclude_unset=True))
    if request.webhook is not None:
        _check_webhook(request.webhook, settings.webhook_hosts)
    most = settings.max_runtime
    if request.max_runtime is not None and most is not None and request.max_runtime > most:
        raise Refused("max_runtime", f"expected at most {most:g} s on this server, found {request.max_runtime:g}")
    _check_own_weights(request)
    if isinstance(request, EvaluateRequest):
        return Submission(request, evaluation=_read_evaluation(request, settings))
    if isinstance(request, FinetuneRequest):
        finetuning = _read_finetuning(request, "", settings)
        if request.model is None:
            _check_without_conversion(finetuning)
        return Submission(request, finetuning)
    if request.finetune is None:
        return Submission(request)
    finetuning = _read_finetuning(request.finetune, "finetune.", settings)
    if "conversion" in request.finetune.config:
        raise Refused("finetune.config.conversion", "the conversion is the request's own; say it beside `model`")
    _check_without_conversion(finetuning)
    return Submission(request, finetuning)


def _read_evaluation(request: EvaluateRequest, settings: ApiSettings) -> EvaluationConfig:
    with errors_under("config"):
        config = request.settings
    _check_process(config, "config", settings)
    return config


def _read_finetuning(asked: Training, prefix: str, settings: ApiSettings) -> Finetuning:
    if asked.preset not in PRESETS:
        raise Refused(f"{prefix}preset", f"expected one of {', '.join(PRESETS)}, found {quoted(asked.preset)}")
    with errors_under(f"{prefix}config"):
        config = asked.settings
        refuse_without_effect(config, asked.config)
    _check_process(config, f"{prefix}config", settings)
    if asked.baseline and not config.convert:
        raise Refused(f"{prefix}baseline", "convert is false, so the CNN itself is trained; leave one of the two out")
    wrong = batch_size_problem(config, asked.num_workers)
    if wrong is not None:
        raise Refused(f"{prefix}num_workers", wrong)
    return Finetuning(asked, config, prefix)


def _check_own_weights(request: Request) -> None:
    """Weights of one's own are a timm model's, and then no others are asked for; random ones are, too."""
    for prefix, model in models_of(request):
        if model.weights is not None and model.model is None:
            raise Refused(
                f"{prefix}weights",
                "what a job or a checkpoint has brings weights of its own; leave it out, or name a model",
            )
    if isinstance(request, FinetuneRequest) and request.model is None and not request.pretrained:
        raise Refused(
            "pretrained", "what a job or a checkpoint has brings weights of its own; leave it out, or name a model"
        )
    if not isinstance(request, EvaluateRequest) and request.weights is not None and not request.pretrained:
        raise Refused("pretrained", "weights of your own are named, so it would have no effect; leave it out")


@contextmanager
def errors_under(field: str) -> Iterator[None]:
    """A configuration's own error (`lr: input should be …`) becomes the request's field's (`config.lr`)."""
    try:
        yield
    except RequestError as error:
        name, colon, rest = str(error).partition(": ")
        if colon and re.fullmatch(r"[A-Za-z_][\w.]*", name):
            raise Refused(f"{field}.{name}", rest) from error
        raise Refused(field, str(error)) from error


def _check_process(config: FinetuneConfig | EvaluationConfig, field: str, settings: ApiSettings) -> None:
    """Device and loaders: any string or number fits the configuration, and few work here."""
    if not _DEVICE.fullmatch(config.device):
        raise Refused(f"{field}.device", f"expected auto, cpu, cuda, cuda:N or mps, found {quoted(config.device)}")
    most = settings.max_loader_workers
    if config.workers > most:
        raise Refused(f"{field}.workers", f"expected at most {most} on this server, found {config.workers}")


def _check_without_conversion(finetuning: Finetuning) -> None:
    """What is fine-tuned is a T-CNN already: nothing is asked of it that only a CNN can do."""
    field = f"{finetuning.prefix}config"
    if not finetuning.config.convert:
        raise Refused(f"{field}.convert", "the model is a T-CNN already; POST /finetune with `model` trains a CNN")
    if finetuning.config.convert_at is not None:
        raise Refused(f"{field}.convert_at", "the model is a T-CNN already; POST /finetune with `model` takes it")
    if not is_presets_conversion(finetuning.config.conversion):
        raise Refused(f"{field}.conversion", "the model is a T-CNN already; POST /finetune with `model` takes it")


def _check_webhook(url: str, allowed: Sequence[str]) -> None:
    """The address is one that this server may call."""
    if not allowed:
        raise Refused("webhook", "this server calls no webhooks (TCNN_WEBHOOK_HOSTS); leave it out and GET /jobs/{id}")
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").lower(), parts.port
    except ValueError:
        host = ""
    good = host and parts.scheme in ("http", "https") and not (parts.username or parts.password) and url.isascii()
    if not good or re.search(r"[\s\\\x00-\x1f]", url):
        raise Refused("webhook", f"expected http:// or https:// with a host and no user, found {quoted(url)}")
    if not any(fnmatchcase(host, pattern.lower()) for pattern in allowed):
        raise Refused("webhook", f"host {host} is not allowed on this server; it allows {', '.join(allowed)}")


def _check_text(given: dict[str, Any]) -> None:
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
