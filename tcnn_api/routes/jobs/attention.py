"""`/jobs/{id}/attention`: upload an image, then get the attention maps of every head for the query at any pixel."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi import Path as InPath
from pydantic import BaseModel, Field
from starlette.responses import Response

from tcnn.data.sources.names import FORMATS
from tcnn.errors import RequestError
from tcnn_api.deps import AUTHENTICATED, Changer, JobId, Service, ServiceDep
from tcnn_api.description.examples import answer
from tcnn_api.description.openapi import problems
from tcnn_api.errors import Refused
from tcnn_api.responses.head import answer_head
from tcnn_api.routes.jobs.pictures import IMAGE_BODY, ask_about, ask_about_body, ask_model, began_with, own_checkpoint
from tcnn_jobs.errors import UploadNotFound
from tcnn_jobs.model.jobs import Kind

router = APIRouter(prefix="/jobs", tags=["attention"], dependencies=AUTHENTICATED)

IMAGE = "img_0123456789abcdef"
LAST = "last.safetensors"
MAP = "One map per head, (K, H, W): base64 of little-endian float32."


class Said(BaseModel):
    """One of the top predictions: a class and its probability."""

    label: str
    share: float


class LayerView(BaseModel):
    """An attention layer. Sizes are (rows, columns), in pixels of the layer's padded map."""

    name: str
    heads: int = Field(description="Number of heads, K.")
    kernel: tuple[int, int] | None = Field(
        description="Kernel size of the convolution; the heads are its taps, row by row."
    )
    size: tuple[int, int] = Field(description="Size of the padded map, (H, W).")
    padding: tuple[int, int, int, int] = Field(description="Padding of the map, (left, right, top, bottom).")
    queries: tuple[int, int]
    first: tuple[int, int] = Field(description="Position of the first query.")
    stride: tuple[int, int] = Field(description="Distance from one query to the next.")
    gate: list[float | None] | None = Field(
        description="Gate σ(λ/τ) of every head: 1 is position only, 0 content only; null for content heads, which have "
        "none."
    )
    temperature: float = Field(description="Temperature τ.")


View = Literal["start", "last"]


class MapsView(BaseModel):
    """Attention maps of one layer for one query."""

    name: str
    size: tuple[int, int]
    padding: tuple[int, int, int, int]
    query: tuple[int, int] = Field(description="The query nearest to the given point, (row, column) of the padded map.")
    gate: list[float | None] | None
    temperature: float = Field(description="Temperature τ.")
    centres: list[tuple[float, float] | None] | None = Field(
        description="Centre of each head's positional attention, (row, column) in pixels from the query; "
        "null if it has none."
    )
    radii: list[tuple[float, float] | None] | None = Field(
        description="Radii of the circles around the centres that contain 50 % and 90 % of it, in pixels of the map."
    )
    content: str = Field(description=f"softmax(QKᵀ/√d). {MAP}")
    positional: str | None = Field(
        description=f"{MAP} The attention is (1 − gate)·content + gate·positional, or content where the gate is null."
    )


class AttentionView(BaseModel):
    """Attention maps of all layers for the queries nearest to one point of the image."""

    says: list[Said] = Field(description="Top predictions of this checkpoint at this temperature.")
    layers: list[MapsView]


class ImageView(BaseModel):
    """An image as the model sees it (resized, cropped, normalised back to pixels), its layers, its top predictions."""

    id: str
    width: int
    height: int
    picture: str = Field(description="The image as a data URL, resized and cropped as for the model.")
    truth: str | None = Field(default=None, description="True class, if the image is from a data set.")
    says: list[Said] = Field(description="The model's top predictions.")
    layers: list[LayerView]
    notes: list[str] = Field(default=[], description="Layers with attention that are left out, and why.")
    checkpoints: list[View] = Field(
        description="Other checkpoints of the run that can be inspected: `start`, before training, and "
        "`last`, after the last epoch."
    )
    attention: AttentionView | None = Field(
        default=None, description="The attention of the query that was asked for with the image, if any was."
    )


_LAYER: dict[str, Any] = {
    "name": "layer4.0.conv1", "heads": 1, "kernel": [1, 1], "size": [1, 2], "padding": [0, 0, 0, 0], "queries": [1, 2],
    "first": [0, 0], "stride": [1, 1], "gate": [0.73], "temperature": 1.0,
}  # fmt: skip
_IMAGE = {
    "id": IMAGE, "width": 224, "height": 224, "picture": "data:image/png;base64,iVBORw0KGgo=",
    "truth": "cat", "says": [{"label": "cat", "share": 0.9}], "layers": [_LAYER],
    "notes": [], "checkpoints": ["start", "last"], "attention": None,
}  # fmt: skip
_MAPS = {"name": "layer4.0.conv1", "size": [1, 2], "padding": [0, 0, 0, 0], "query": [0, 0], "gate": [0.73],
         "temperature": 1.0, "centres": [[0.0, 0.4]], "radii": [[0.83, 1.52]]}  # fmt: skip
_ANSWER = {"says": _IMAGE["says"], "layers": [{**_MAPS, "content": "AAAAPwAAAD8=", "positional": "AACAPwAAAAA="}]}


Y = Annotated[float, Query(ge=0, le=1, description="Distance from the top as a fraction of the height.")]
X = Annotated[float, Query(ge=0, le=1, description="Distance from the left as a fraction of the width.")]
Which = Annotated[View | None, Query(description="One of `checkpoints`, instead of the job's own checkpoint.")]
Tau = Annotated[float | None, Query(ge=0.001, le=1000, description="τ of all layers, instead of the trained model's.")]


@router.post(
    "/{id}/attention/images",
    status_code=201,
    summary="Upload an image to inspect",
    response_model=ImageView,
    responses={201: answer(_IMAGE, "The image, and the layers."), **problems(409)},
    openapi_extra={
        "requestBody": {
            "description": f"An image ({', '.join(FORMATS)}), at most 32 MiB; no body with `dataset`.",
            "content": IMAGE_BODY,
        }
    },
)
async def look(
    job: JobId,
    request: Request,
    parts: ServiceDep,
    owner: Changer,
    dataset: Annotated[
        str | None, Query(description="Use an image of this uploaded data set instead of a request body.")
    ] = None,
    number: Annotated[
        int, Query(ge=0, le=1_000_000, description="Index of the image; 0, 1, 2 … cycle through the classes.")
    ] = 0,
    file: Annotated[
        str | None,
        Query(max_length=1000, description="Path of the image in the data set, including its class: `cat/1.jpg`."),
    ] = None,
    maps: Annotated[
        bool,
        Query(
            description="Give the attention of a query (`y`, `x`, `checkpoint`, `temperature`) in the same answer, and "
            "do not keep the image: for clients whose next request another server answers."
        ),
    ] = False,
    y: Y = 0.5,
    x: X = 0.5,
    checkpoint: Which = None,
    temperature: Tau = None,
) -> Response:
    """Upload an image and run a job's model on it. The last four images of a model are cached for a few minutes.

    The first image takes seconds, because the model is loaded; queries for it then take milliseconds. The server that
    has received an image is the only one that knows it.
    """
    _, own = await parts.pools.storage.run(owner, own_checkpoint, parts, job, owner)
    others = await parts.pools.storage.run(owner, _others, parts, job, owner)
    _refuse_idle(request, ("y", "x", "checkpoint", "temperature"), "maps=true", maps)
    _refuse_idle(request, ("number", "file"), "dataset", dataset is not None)
    asked: dict[str, Any] = {"do": "open"}
    if maps:
        asked["at"] = _query(others, y, x, checkpoint, temperature)
    if dataset is None:
        found = await ask_about_body(request, parts, owner, job, own, asked, ", or name a dataset")
    else:
        folder = await parts.pools.storage.run(owner, _folder, parts, dataset, owner)
        asked |= {"folder": str(folder), "number": number, "file": file}
        found = await ask_about("dataset", None, parts, owner, job, own, asked)
    content = found.rstrip()[:-1] + f', "checkpoints": {json.dumps(list(others))}}}'.encode()
    return Response(content, 201, media_type="application/json")


@router.get(
    "/{id}/attention/{image}",
    summary="Get the attention of a query",
    response_model=AttentionView,
    responses={200: answer(_ANSWER, "All heads of all layers."), **problems(409)},
)
async def ask(
    job: JobId,
    request: Request,
    parts: ServiceDep,
    owner: Changer,
    image: Annotated[str, InPath(description="Id of the image.", examples=[IMAGE], max_length=40)],
    y: Y = 0.5,
    x: X = 0.5,
    checkpoint: Which = None,
    temperature: Tau = None,
) -> Response:
    """Get every head's attention from the query nearest to a point of the image, content and position separately.

    The first request for another checkpoint loads it, and one at another temperature runs the model again.
    """
    _, own = await parts.pools.storage.run(owner, own_checkpoint, parts, job, owner)
    others = await parts.pools.storage.run(owner, _others, parts, job, owner) if checkpoint is not None else {}
    answer_head(request)
    asked = {"do": "at", "image": image} | _query(others, y, x, checkpoint, temperature)
    return Response(await ask_model(None, parts, owner, job, own, asked), media_type="application/json")


def _refuse_idle(request: Request, names: tuple[str, ...], needed: str, given: bool) -> None:
    """Raise `Refused` for a parameter that says nothing without another which is not given."""
    idle = None if given else next((name for name in names if name in request.query_params), None)
    if idle is not None:
        raise Refused(idle, f"expected {needed} beside it, without which it says nothing; give it, or leave {idle} out")


def _query(
    others: dict[str, str], y: float, x: float, checkpoint: str | None, temperature: float | None
) -> dict[str, Any]:
    """What the process is asked about an image; raises `Refused` for a checkpoint that is none of the `others`."""
    if checkpoint is not None and checkpoint not in others:
        raise Refused("checkpoint", f"this job has no such checkpoint; it has {', '.join(others) or 'its own alone'}")
    return {"y": y, "x": x, "checkpoint": checkpoint and others[checkpoint], "temperature": temperature}


def _others(parts: Service, job: str, owner: str) -> dict[str, str]:
    """Where the run's other checkpoints with attention lie, in the order of time: what it began with, its last one."""
    found = parts.store.get(job, owner)
    others = {}
    if found.kind is Kind.TRANSFORM and found.request.get("finetune") is None:
        return {}  # it began and ended with one file
    start = began_with(parts, found, owner)
    if "path" in start:
        others["start"] = start["path"]
    last = found.file(LAST)
    if last is not None and found.checkpoint is not None and last.sha256 != found.checkpoint.sha256:
        with suppress(RequestError):
            others["last"] = str(parts.artifacts.path(parts.artifacts.file(last)))
    return others


def _folder(parts: Service, dataset: str, owner: str) -> Path:
    try:
        return parts.artifacts.path(parts.artifacts.upload(parts.store.upload(dataset, "dataset", owner)))
    except UploadNotFound as error:
        raise Refused("dataset", "no uploaded data set of this id; GET /datasets lists yours") from error
