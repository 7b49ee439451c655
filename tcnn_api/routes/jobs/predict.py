"""`POST /jobs/{id}/predict`: top predictions for an image, by a job's model and by the CNNs it came from."""

from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from tcnn.data.sources.names import FORMATS
from tcnn_api.deps import AUTHENTICATED, Changer, JobId, Service, ServiceDep
from tcnn_api.description.examples import answer
from tcnn_api.description.openapi import problems
from tcnn_api.routes.jobs.pictures import IMAGE_BODY, ask_about_body, began_with, model_at, own_checkpoint

router = APIRouter(prefix="/jobs", tags=["attention"], dependencies=AUTHENTICATED)

ROLES = (
    "`cnn`: the CNN that was converted, with its own classes; `before`: the T-CNN that the job started from; "
    "`tuned_cnn`: the CNN, fine-tuned in the same way; `t_cnn`: the job's T-CNN."
)
BASELINE = "baseline.safetensors"


class GuessView(BaseModel):
    """A predicted class and its probability."""

    index: int = Field(description="Index in the model's output.")
    name: str
    probability: float


class AnswerView(BaseModel):
    """The top predictions of one model."""

    role: Literal["cnn", "before", "tuned_cnn", "t_cnn"] = Field(description=ROLES)
    missing: str | None = Field(description="Why there is no prediction of this model, or null.")
    same_classes: bool | None = Field(
        description="Whether it has the same classes as the job's own model; null if it gives no prediction."
    )
    guesses: list[GuessView] = Field(description="Top predictions, most probable first.")


class PredictView(BaseModel):
    """The top predictions of a job's models for one image."""

    models: list[AnswerView] = Field(description="The job's own model last.")
    same_first_guess: bool | None = Field(
        description="Whether all models with the same classes have the same first prediction; null if "
        "there is only one."
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
    summary="Classify an image",
    response_model=PredictView,
    responses={200: answer(_ANSWER, "The most probable classes of each model."), **problems(409)},
    openapi_extra={
        "requestBody": {
            "description": f"An image ({', '.join(FORMATS)}), at most 32 MiB.",
            "content": IMAGE_BODY,
            "required": True,
        }
    },
)
async def predict(
    job: JobId,
    request: Request,
    parts: ServiceDep,
    owner: Changer,
    top: Annotated[int, Query(ge=1, le=100, description="Number of classes per model.")] = 5,
) -> Response:
    """Classify an image as `tcnn predict` does, with the job's model and those that it was made from.

    The CNN is recovered exactly from its conversion, or taken from weights that this server has already downloaded; if
    neither is possible, `missing` says so. The first image takes seconds, because the models are loaded.
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
