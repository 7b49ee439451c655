"""Starting an attempt: what its request names is resolved, its directory is made, its process begins."""

import re
from collections.abc import Sequence

from tcnn_jobs.artifacts.base import Artifacts, Reference
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.attempt import Assignment, AttemptDirectory
from tcnn_jobs.attempts.stages import resumable
from tcnn_jobs.engines.base import Engine, Process
from tcnn_jobs.errors import WrongState
from tcnn_jobs.model.jobs import Artifact, Job
from tcnn_jobs.model.requests import KINDS, ModelReference, as_stored, datasets_of, models_of, num_workers, weights_of
from tcnn_jobs.store import Store

_DATASET = re.compile(r"ds_[0-9a-z]+")


def start(
    job: Job, slots: Sequence[str | None], *, store: Store, home: Home, artifacts: Artifacts, engine: Engine
) -> tuple[AttemptDirectory, Process]:
    """Start the process of a claimed job; returns it and its directory.

    Raises `RequestError` if the request names what is not there, `OSError` if no process can be started here.
    """
    directory = AttemptDirectory(home.attempt(job.id, job.claim))
    places = resolve(job, store, artifacts)
    paths = {field: place.path for field, place in places.items()}
    told = store.count_events(job.id, "epoch")
    directory.create()  # the store has answered, so that this is done once
    previous = resumable(home, job.id, job.claim)
    if previous is not None:
        paths["previous"] = str(previous.path)
    assignment = Assignment(
        job=job.id, claim=job.claim, kind=job.kind, request=job.request, paths=paths,
        needs=tuple(place for place in places.values() if place.key),
        epochs_told=told, placement=engine.placement(num_workers(job.request)),
    )  # fmt: skip
    directory.write(assignment)
    return directory, engine.start(directory.path, [slot for slot in slots if slot is not None])


def is_dataset_id(name: str) -> bool:
    """Whether a data set's name is the id of an upload."""
    return _DATASET.fullmatch(name) is not None


def resolve(job: Job, store: Store, artifacts: Artifacts) -> dict[str, Reference]:
    """The place of everything that a job's request refers to, by the field's name.

    `source` is the model, `weights` its weights, `against.0`, … the other models, `against.0.weights` theirs. What is a
    name already (a timm model, a data set that the server knows by name) is left out. Raises `RequestError` when
    something is no longer there, or is another tenant's, and for a request that this version does not understand.
    """
    request = as_stored(KINDS[job.kind], job.request)
    places: dict[str, Reference | None] = {}
    for prefix, model in models_of(request):
        if isinstance(model, ModelReference):
            places[prefix.removesuffix(".") or "source"] = _model(model, store, artifacts, job.owner)
    for field, name in weights_of(request):
        places[field] = artifacts.upload(store.upload(name, "weights", job.owner))
    for field, name in datasets_of(request):
        if is_dataset_id(name):
            places[field.removeprefix("finetune.")] = artifacts.upload(store.upload(name, "dataset", job.owner))
    return {field: place for field, place in places.items() if place is not None}


def _model(reference: ModelReference, store: Store, artifacts: Artifacts, owner: str) -> Reference | None:
    if reference.job is not None:
        return artifacts.file(checkpoint_of(store.get(reference.job, owner)))
    if reference.checkpoint is not None:
        return artifacts.upload(store.upload(reference.checkpoint, "checkpoint", owner))
    return None


def checkpoint_of(job: Job) -> Artifact:
    """The checkpoint that a job made; raises `WrongState` if it has none."""
    if job.checkpoint is None:
        raise WrongState(f"{job.id}: expected a succeeded job with a checkpoint, found one that is {job.status}")
    return job.checkpoint
