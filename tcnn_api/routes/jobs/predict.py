"""`POST /jobs/{id}/predict`: top predictions for an image, by a job's model and by the CNNs it came from."""

from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from tcnn.errors import RequestError
from tcnn_api.deps import AUTHENTICATED, JobId, Service, ServiceDep, Tenant
from tcnn_api.description.examples import answer
from tcnn_api.description.openapi import problems
from tcnn_api.errors import NotFound, Refused, TooManyAtOnce
from tcnn_api.middleware import PICTURE
from tcnn_api.routes.jobs.files import succeeded
from tcnn_jobs.artifacts.base import Reference
from tcnn_jobs.errors import JobNotFound, UploadNotFound
from tcnn_jobs.model.jobs import Job, Kind

router = APIRouter(prefix="/jobs", tags=["attention"], dependencies=AUTHENTICATED)

ROLES = (
    "`cnn`: the CNN that was converted, with its own classes; `before`: the T-CNN that the job went on with; "
    "`tuned_cnn`: the CNN, fine-tuned in the same way; `t_cnn`: the job's T-CNN."
)
BASELINE, CONVERTED = "baseline.safetensors", "converted.safetensors"


class GuessView(BaseModel):
    """A predicted class and its probability."""

    index: int = Field(description="Of the model's output.")
    name: str
    probability: float


class AnswerView(BaseModel):
    """The top predictions of one model."""

    role: Literal["cnn", "before", "tuned_cnn", "t_cnn"] = Field(description=ROLES)
    missing: str | None = Field(description="Why this model gives no answer.")
    same_classes: bool | None = Field(
        description="Whether it tells the classes apart that the job's own model does; null where it gives no answer."
    )
    guesses: list[GuessView] = Field(description="The most probable class first.")


class PredictView(BaseModel):
    """The top predictions of a job's models for one image."""

    models: list[AnswerView] = Field(description="The job's own last.")
    same_first_guess: bool | None = Field(
        description="Whether those with the same classes all say the same first; null where that is one model alone."
    )


_GUESSES = [{"index": 3, "name": "cat", "probability": 0.91}, {"index": 5, "name": "dog", "probability": 0.06}]
_ANSWER = {
    "models": [
        {
            "role": "cnn",
            "missing": None,
            "same_classes": False,
            "guesses": [{"index": 281, "name": "tabby, tabby cat", "probability": 0.7}],
        },
        {"role": "tuned_cnn", "missing": None, "same_classes": True, "guesses": _GUESSES},
        {"role": "t_cnn", "missing": None, "same_classes": True, "guesses": _GUESSES},
    ],
    "same_first_guess": True,
}
_BYTES = {"schema": {"type": "string", "format": "binary"}}


@router.post(
    "/{id}/predict",
    summary="Say what an image shows",
    response_model=PredictView,
    responses={200: answer(_ANSWER, "The most probable classes, by each model."), **problems(409)},
    openapi_extra={
        "requestBody": {
            "description": "An image in any of PIL's formats, at most 32 MiB.",
            "content": {"application/octet-stream": _BYTES, "image/*": _BYTES},
            "required": True,
        }
    },
)
async def predict(
    job: JobId,
    request: Request,
    parts: ServiceDep,
    owner: Tenant,
    top: Annotated[int, Query(ge=1, le=100, description="Classes that are told of each model.")] = 5,
) -> Response:
    """The same numbers as `tcnn predict` gives, by the job's model and by those that it came from.

    The CNN is had back from its conversion exactly, or from a download that is on this server already; where neither
    is there, `missing` says so. The first image of a model takes seconds, since the models are loaded.
    """
    own, others = await parts.pools.storage.run(owner, _models, parts, job, owner)
    length = request.headers.get("content-length", "")
    async with parts.pools.pictures.hold(owner, int(length) if length.isdigit() else PICTURE):
        content = await request.body()
        if not content:
            raise Refused("body", "expected an image, found nothing; send its bytes")
        asked = {"do": "predict", "others": others, "top": top}
        try:
            async with parts.pools.looks.take(owner):
                found = await parts.explorers.ask(job, own, asked, content)
        except TooManyAtOnce:
            raise
        except RequestError as error:
            raise Refused("body", str(error)) from error
    return Response(found, media_type="application/json")


def _models(parts: Service, job: str, owner: str) -> tuple[Path, list[dict[str, str]]]:
    """The job's checkpoint, which is on this host now, and the models beside it as the process is told of them."""
    found = succeeded(parts.store.get(job, owner))
    file = found.result.checkpoint if found.result else None
    if file is None:
        raise NotFound(f"{job}: this job made no checkpoint; name a transform or finetune job")
    files = {one.name: one for one in found.result.files} if found.result else {}
    beside = [began_with(parts, found, owner)]
    if BASELINE in files:
        beside.append(_at(parts, "tuned_cnn", parts.artifacts.file(files[BASELINE])))
    return parts.artifacts.path(parts.artifacts.file(file)), beside


def began_with(parts: Service, job: Job, owner: str) -> dict[str, str]:
    """What a job began with: the `path` of a checkpoint, the `name` of a timm model, or why it is `missing`."""
    files = {one.name: one for one in job.result.files} if job.result else {}
    converted = files.get(CONVERTED) if job.kind is Kind.TRANSFORM else None
    if converted is not None:
        return _at(parts, "cnn", parts.artifacts.file(converted))
    asked = job.request
    try:
        if asked.get("job"):
            before = parts.store.get(asked["job"], owner).result
            if before is not None and before.checkpoint is not None:
                return _at(parts, "cnn", parts.artifacts.file(before.checkpoint))
        elif asked.get("checkpoint"):
            upload = parts.store.upload(asked["checkpoint"], "checkpoint", owner)
            return _at(parts, "cnn", parts.artifacts.upload(upload))
        elif asked.get("pretrained", True) and asked.get("model"):
            return {"role": "cnn", "name": asked["model"]}
    except (JobNotFound, UploadNotFound):
        pass
    return {"role": "cnn", "missing": "what this job began with is no longer on the server"}


def _at(parts: Service, role: str, reference: Reference) -> dict[str, str]:
    try:
        return {"role": role, "path": str(parts.artifacts.path(reference))}
    except RequestError:
        return {"role": role, "missing": "its checkpoint is no longer on the server"}
