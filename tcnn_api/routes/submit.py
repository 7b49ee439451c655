"""Job submission, `POST /transform`, `/finetune`, `/evaluate`: validated, stored, and only then accepted."""

from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Body, Request, Response

from tcnn_api.deps import AUTHENTICATED, Idempotency, Service, ServiceDep, Tenant
from tcnn_api.description import examples
from tcnn_api.description.openapi import problems
from tcnn_api.schemas import JobView
from tcnn_api.submission.body import Submission, read
from tcnn_api.submission.check import check
from tcnn_api.submission.resolve import Lookup, Resolved, keep, resolve
from tcnn_api.submission.target import check_target
from tcnn_jobs.model.jobs import IdempotencyKey, Job, Kind, NewJob
from tcnn_jobs.model.requests import EvaluateRequest, FinetuneRequest, TransformRequest, num_workers, version_of
from tcnn_jobs.model.requests import Request as JobRequest

router = APIRouter(tags=["submit"], dependencies=AUTHENTICATED)

LOCATION = {"Location": {"description": "URL of the job.", "schema": {"type": "string"}}}
ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: examples.answer(examples.QUEUED, "The job is queued and stored.", headers=LOCATION),
    **problems(409),
}


@router.post("/transform", status_code=202, summary="Convert a model", responses=ACCEPTED)
async def transform(
    body: Annotated[TransformRequest, Body(openapi_examples=examples.TRANSFORM)],
    request: Request,
    response: Response,
    parts: ServiceDep,
    owner: Tenant,
    key: Idempotency,
) -> JobView:
    """Convert a timm model into the equivalent T-CNN and verify it; with `finetune`, train it in the same job."""
    return await _accept(Kind.TRANSFORM, body, request, response, parts, owner, key)


@router.post("/finetune", status_code=202, summary="Fine-tune a model", responses=ACCEPTED)
async def finetune(
    body: Annotated[FinetuneRequest, Body(openapi_examples=examples.FINETUNE)],
    request: Request,
    response: Response,
    parts: ServiceDep,
    owner: Tenant,
    key: Idempotency,
) -> JobView:
    """Fine-tune a job's result, an uploaded checkpoint, or a timm model on a data set."""
    return await _accept(Kind.FINETUNE, body, request, response, parts, owner, key)


@router.post("/evaluate", status_code=202, summary="Evaluate a model", responses=ACCEPTED)
async def evaluate(
    body: Annotated[EvaluateRequest, Body(openapi_examples=examples.EVALUATE)],
    request: Request,
    response: Response,
    parts: ServiceDep,
    owner: Tenant,
    key: Idempotency,
) -> JobView:
    """Evaluate one model on a data set, or compare several."""
    return await _accept(Kind.EVALUATE, body, request, response, parts, owner, key)


async def _accept(
    kind: Kind,
    body: JobRequest,
    request: Request,
    response: Response,
    parts: ServiceDep,
    owner: str,
    key: IdempotencyKey | None,
) -> JobView:
    job = await to_thread.run_sync(_replayed, parts, owner, key)
    if job is None:
        submission, resolved = await to_thread.run_sync(_checked, parts, body, owner)
        await check_target(submission, resolved, parts.pools.targets.take(owner))
        job = await to_thread.run_sync(_enqueued, kind, body, keep(body, resolved), parts, owner, key)
    request.state.job = job.id
    response.headers["Location"] = f"/jobs/{job.id}"
    return JobView.of(job)


def _replayed(parts: Service, owner: str, key: IdempotencyKey | None) -> Job | None:
    """Idempotency: the job that a request of the same key and digest has made, even if it would be refused by now."""
    made = parts.store.replay(key) if key is not None else None
    return None if made is None else parts.store.get(made, owner)


def _checked(parts: Service, body: JobRequest, owner: str) -> tuple[Submission, Resolved]:
    """The request, found right, and what it names."""
    submission = read(body, parts.settings)
    resolved = resolve(submission, Lookup(parts.settings, parts.store, owner))
    check(submission, resolved)
    return submission, resolved


def _enqueued(
    kind: Kind, body: JobRequest, kept: dict[str, Any], parts: Service, owner: str, key: IdempotencyKey | None
) -> Job:
    """The job of a request that was found right, in the queue."""
    new = NewJob(
        owner=owner,
        kind=kind,
        request=kept,
        priority=body.priority,
        max_attempts=body.max_attempts,
        webhook=body.webhook,
        max_runtime=body.max_runtime or parts.settings.max_runtime,
        stall_minutes=body.stall_minutes or parts.settings.stall_minutes,
        request_version=version_of(kept),
        slots=num_workers(kept) if parts.settings.engine == "local" else 1,
        **body.given(),
    )
    return parts.store.enqueue(new, key)
