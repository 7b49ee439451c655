"""`POST /plan`: what a fine-tuning job would take, before it is submitted."""

import json
import socket
from collections.abc import Mapping
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Body
from pydantic import Field
from starlette.responses import JSONResponse

from tcnn.config import FinetuneConfig
from tcnn.config.base import Record
from tcnn.errors import RequestError
from tcnn.planning.report import TrainingPlan
from tcnn.zoo import catalogue
from tcnn_api.deps import AUTHENTICATED, Service, ServiceDep, Tenant
from tcnn_api.description import examples
from tcnn_api.description.openapi import problems
from tcnn_api.errors import Refused
from tcnn_api.submission.body import Submission, read
from tcnn_api.submission.check import check
from tcnn_api.submission.resolve import Lookup, Resolved, keep, resolve
from tcnn_api.submission.target import check_target
from tcnn_jobs.confined.process import ask
from tcnn_jobs.model.jobs import Job, Kind, Status
from tcnn_jobs.model.requests import FinetuneRequest, PlanRequest, TransformRequest

router = APIRouter(tags=["submit"], dependencies=AUTHENTICATED)

MEMORY = 3 << 30
"""Bytes that a plan may take beside those of its models: torch itself."""
SECONDS = 120
RATES = frozenset({"lr", "gating_lr", "attention_lr", "value_lr", "output_lr", "position_lr", "weight_decay"})
ANY = RATES | {"content_output_scale", "epochs", "seed", "ema", "keep"}
"""Settings that do not change how long an update takes."""
HOW = frozenset(
    {"priority", "max_attempts", "depends_on", "webhook", "max_runtime", "stall_minutes", "pretrained", "weights"}
)
"""Fields of a request that do not, either; nor which images it is trained on, and their number is counted."""
EARLIER = 100
"""Jobs that are looked at for one like it."""


class Expected(Record):
    """Expected time of the run, from an earlier job with the same model and settings."""

    job: str
    seconds_per_update: float = Field(description="Seconds per update of that job, including validation.")
    seconds: float


class PlanView(TrainingPlan):
    """What a fine-tuning job needs: computed sizes, memory and disk, and time from an earlier job, if there is one."""

    expected: Expected | None = Field(description="Null if no similar job of yours has run.")


@router.post(
    "/plan",
    summary="Plan a fine-tuning job",
    response_model=PlanView,
    responses={200: examples.answer(examples.PLANNED, "The plan."), **problems(409)},
)
async def plan(
    body: Annotated[PlanRequest, Body(openapi_examples=examples.PLAN)], parts: ServiceDep, owner: Tenant
) -> JSONResponse:
    """Estimate parameters, FLOPs, memory and disk of a job without submitting it, and list what would make it fail.

    The body holds that of `POST /finetune`, or of `POST /transform` with `finetune`, under its name. Memory is
    computed from the shapes of a step, for the workers' GPU or for this host. Nothing is downloaded and no step is
    run; times are taken from an earlier job. It takes a few seconds, because PyTorch is loaded.
    """
    request: TransformRequest | FinetuneRequest = body.request
    try:
        submission, resolved = await to_thread.run_sync(_checked, parts, request, owner)
        await check_target(submission, resolved, parts.pools.targets.take(owner))
        asked, file = await parts.pools.storage.run(owner, _asked, parts, request, submission, resolved)
        async with parts.pools.checks.take(owner):
            found = await ask(
                "tcnn_jobs.confined.reports", "compute", json.dumps(asked), file,
                memory=MEMORY + 32 * _parameters(asked["model"], resolved), seconds=SECONDS,
            )  # fmt: skip
    except Refused as error:
        raise Refused(f"{body.kind}.{error.field}", str(error)) from error
    except RequestError as error:
        raise Refused(body.kind, str(error)) from error
    made = TrainingPlan.model_validate(found)
    kept = keep(request, resolved)
    like = await to_thread.run_sync(_like, parts, owner, Kind(body.kind), kept, made.updates)
    view = PlanView(**made.model_dump(), expected=like)
    return JSONResponse(view.model_dump(mode="json"))


def _checked(parts: Service, request: TransformRequest | FinetuneRequest, owner: str) -> tuple[Submission, Resolved]:
    """The request, found right as if it were submitted."""
    submission = read(request, parts.settings)
    if submission.finetuning is None:
        raise Refused("finetune", "expected what to train on; a conversion alone takes what GET /models tells")
    resolved = resolve(submission, Lookup(parts.settings, parts.store, owner))
    check(submission, resolved)
    return submission, resolved


def _asked(
    parts: Service, request: TransformRequest | FinetuneRequest, submission: Submission, resolved: Resolved
) -> tuple[dict[str, Any], str]:
    """What the process is told, and the file of the checkpoint, if there is one."""
    finetuning = submission.finetuning
    assert finetuning is not None  # noqa: S101 - `_checked` has seen to it
    config: FinetuneConfig = finetuning.config
    if isinstance(request, TransformRequest):
        config = config.model_copy(update={"conversion": request.conversion})
    device, free = _device(parts, config.device)
    name, file = _model(parts, request, resolved)
    split = {"dataset": "train", "val": "val"}
    sets = {field: _images(resolved, f"{finetuning.prefix}{field}", split[field]) for field in split}
    if sets["val"] is None and config.val_split is None:
        sets["val"] = _images(resolved, f"{finetuning.prefix}dataset", "val")
    asked = {
        "model": name, "config": config.model_copy(update={"device": device}).model_dump(mode="json"),
        "baseline": finetuning.asked.baseline, "home": str(parts.home.root), "device": device, "free": free,
        "data": sets["dataset"], "val": sets["val"],
    }  # fmt: skip
    return asked, file


def _device(parts: Service, wanted: str) -> tuple[str, int | None]:
    """Where it would run, and the bytes that it may take there: of the largest GPU; -1 on this host."""
    workers = [one.info for one in parts.store.workers() if one.present]
    gpus = [gpu for worker in workers for gpu in worker.gpus]
    if wanted.startswith("cuda") or (wanted == "auto" and gpus):
        return "cuda", max((int(gpu["memory_total"]) for gpu in gpus if gpu.get("memory_total")), default=None)
    here = all(worker.host == socket.gethostname() for worker in workers)
    return "cpu", -1 if here else None


def _model(parts: Service, request: TransformRequest | FinetuneRequest, resolved: Resolved) -> tuple[str, str]:
    """What the model is called, and its file."""
    if isinstance(request, TransformRequest):
        return request.model, ""
    job, checkpoint = resolved.jobs.get("job"), resolved.checkpoints.get("checkpoint")
    if job is not None:
        if job.checkpoint is None:
            raise Refused("job", f"{job.id}: it is {job.status}; only what has made its checkpoint can be planned with")
        return job.id, str(parts.artifacts.path(parts.artifacts.file(job.checkpoint)))
    if checkpoint is not None:
        return checkpoint.id, str(parts.artifacts.path(parts.artifacts.upload(checkpoint)))
    return request.label, ""


def _images(resolved: Resolved, field: str, split: str) -> dict[str, Any] | str | None:
    """A data set as the process is told of it: counts of an upload, or the name by which another is opened."""
    dataset = resolved.datasets.get(field)
    if dataset is None:
        return None
    if dataset.upload is None:
        return dataset.name if not field.endswith("dataset") or split == "train" else None
    details = dataset.upload.details
    splits: Mapping[str, int] = details.get("splits") or {}
    if split == "val" and split not in splits:
        return None
    return {"classes": details["classes"], "images": splits.get(split, details["images"])}


def _parameters(name: str, resolved: Resolved) -> int:
    entry = next((entry for entry in resolved.models.values() if entry is not None and entry.name in name), None)
    if entry is not None:
        return max(entry.parameters, entry.converted_parameters or 0)
    sizes = [upload.size for upload in resolved.checkpoints.values()]
    sizes += [job.checkpoint.size for job in resolved.jobs.values() if job.checkpoint is not None]
    largest = max((one.parameters for one in catalogue.entries().values()), default=0)
    return max(sizes) // 4 if sizes else largest // 4


def _like(parts: Service, owner: str, kind: Kind, kept: Mapping[str, Any], updates: int) -> Expected | None:
    """The newest job that did the same with other images, or for longer."""
    wanted = _essence(kept)
    found, _ = parts.store.list(owner, status=Status.SUCCEEDED, kind=kind, limit=EARLIER)
    for job in found:
        if _essence(job.request) == wanted and (pace := _pace(job)) is not None:
            return Expected(job=job.id, seconds_per_update=pace, seconds=pace * updates)
    return None


def _pace(job: Job) -> float | None:
    """Seconds of an update; None for a job that was begun again, of which the last part alone was timed."""
    metrics: Mapping[str, Any] = (job.result.metrics if job.result else None) or {}
    seconds, updates = metrics.get("seconds"), metrics.get("updates")
    return seconds / updates if job.attempt == 1 and seconds and updates else None


def _essence(request: Mapping[str, Any]) -> str:
    """What of a request says how long an update takes, as text to compare."""
    left = {name: value for name, value in request.items() if name not in HOW}
    training = dict(left.pop("finetune", None) or {})
    for part in (left, training):
        part.pop("dataset", None)
        part.pop("val", None)
        config = {key: value for key, value in (part.get("config") or {}).items() if key not in ANY | {"val_split"}}
        part["config"] = config
    return json.dumps([left, training], sort_keys=True)
