"""Resolution of every reference of a request, once each, and the request as it is stored."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from tcnn.zoo.catalogue import Entry
from tcnn_api.submission.body import Submission
from tcnn_api.submission.lookup import Dataset, Lookup
from tcnn_jobs.model.jobs import Job, Upload
from tcnn_jobs.model.naming import Labels
from tcnn_jobs.model.requests import Request, datasets_of, models_of, weights_of


@dataclasses.dataclass(frozen=True)
class Resolved:
    """What a request names, by the field that names it: `model`, `against.0.job`, `finetune.dataset`."""

    models: Mapping[str, Entry | None] = dataclasses.field(default_factory=dict)
    """timm's models; None where the catalogue cannot tell about one."""
    jobs: Mapping[str, Job] = dataclasses.field(default_factory=dict)
    waited_for: Mapping[str, Job] = dataclasses.field(default_factory=dict)
    """Jobs that are named for nothing else, by `depends_on.0`."""
    checkpoints: Mapping[str, Upload] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, Upload] = dataclasses.field(default_factory=dict)
    """A CNN's own."""
    datasets: Mapping[str, Dataset] = dataclasses.field(default_factory=dict)
    slots: int | None = None
    """Those of the largest worker, where several processes are asked for; None if a larger worker may come."""


def resolve(submission: Submission, lookup: Lookup) -> Resolved:
    """Everything that a request names. Raises `Refused` with the field of a name that is none."""
    finetuning = submission.finetuning
    return Resolved(
        models={field: lookup.model(field, name) for field, name in _models(submission, "model")},
        jobs={field: lookup.job(field, name) for field, name in _models(submission, "job")},
        waited_for={field: lookup.job(field, name) for field, name in _depends_on(submission.request)},
        checkpoints={field: lookup.checkpoint(field, name) for field, name in _models(submission, "checkpoint")},
        weights={field: lookup.weights(field, name) for field, name in weights_of(submission.request)},
        datasets={field: lookup.dataset(field, name) for field, name in datasets_of(submission.request)},
        slots=lookup.slots() if finetuning is not None and finetuning.asked.num_workers > 1 else None,
    )


def keep(request: Request, resolved: Resolved) -> dict[str, Any]:
    """The request as the job's row has it: what was given, with data sets named as the job is to open them. What it is
    called is the row's own, which may change."""
    kept = request.model_dump(mode="json", exclude_unset=True, exclude=set(Labels.model_fields))
    for field, dataset in resolved.datasets.items():
        *parents, last = field.split(".")
        part = kept
        for parent in parents:
            part = part[parent]
        part[last] = dataset.name
    return kept


def _depends_on(request: Request) -> Iterator[tuple[str, str]]:
    for place, name in enumerate(request.depends_on):
        yield f"depends_on.{place}", name


def _models(submission: Submission, kind: Literal["model", "job", "checkpoint"]) -> Iterator[tuple[str, str]]:
    """Fields and names of the models of one kind."""
    for prefix, reference in models_of(submission.request):
        name = getattr(reference, kind, None)  # of the three, a transformation has only `model`
        if name is not None:
            yield f"{prefix}{kind}", name
    finetuning = submission.finetuning
    if kind == "model" and finetuning is not None and finetuning.config.teacher not in (None, "source"):
        yield f"{finetuning.prefix}config.teacher", str(finetuning.config.teacher)
