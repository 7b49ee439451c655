"""Starting an attempt: what its request names is resolved, its directory is made, its process begins."""

from collections.abc import Sequence

from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.attempt import Assignment, AttemptDirectory
from tcnn_jobs.attempts.references import resolve
from tcnn_jobs.attempts.stages import resumable
from tcnn_jobs.engines.base import Engine, Process
from tcnn_jobs.home import Home
from tcnn_jobs.model.jobs import Job
from tcnn_jobs.model.requests import num_workers
from tcnn_jobs.store import Store


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
