"""`POST /jobs/{id}/predict`: top predictions for an image, by a job's model and by the CNNs it came from."""

from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from tcnn_api.deps import AUTHENTICATED, JobId, Service, ServiceDep, Tenant
from tcnn_api.description.examples import answer
from tcnn_api.description.openapi import problems
from tcnn_api.routes.jobs.pictures import IMAGE_BODY, ask_about_body, began_with, model_at, own_checkpoint

router = APIRouter(prefix="/jobs", tags=["attention"], dependencies=AUTHENTICATED)

ROLES = (
    "`cnn`: the CNN that was converted, with its own classes; `before`: the T-CNN that the job went on with; "
    "`tuned_cnn`: the CNN, fine-tuned in the same way; `t_cnn`: the job's T-CNN."
)
BASELINE = "baseline.safetensors"


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


@router.post(
    "/{id}/predict",
    summary="Say what an image shows",
    response_model=PredictView,
    responses={200: answer(_ANSWER, "The most probable classes, by each model."), **problems(409)},
    openapi_extra={
        "requestBody": {
            "description": "An image in any of PIL's formats, at most 32 MiB.",
            "content": IMAGE_BODY,
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
    asked = {"do": "predict", "others": others, "top": top}
    found = await ask_about_body(request, parts, owner, job, own, asked)
    return Response(found, media_type="application/json")


def _models(parts: Service, job: str, owner: str) -> tuple[Path, list[dict[str, str]]]:
    """The job's checkpoint, and the models beside it as the process is told of them."""
    found, checkpoint = own_checkpoint(parts, job, owner)
    beside = [began_with(parts, found, owner)]
    baseline = found.file(BASELINE)
    if baseline is not None:
        beside.append(model_at(parts, "tuned_cnn", parts.artifacts.file(baseline)))
    return checkpoint, beside
