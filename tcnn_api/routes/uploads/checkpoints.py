"""`/checkpoints`: uploaded checkpoints, checked by loading them, and kept for the jobs that start from them."""

from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from tcnn.analysis.reading.model_info import ModelInfo
from tcnn.version import __version__
from tcnn_api.deps import AUTHENTICATED, KeyHeader, Reach, ServiceDep, StoreDep, Tenant
from tcnn_api.description.examples import answer, listed
from tcnn_api.description.openapi import problems
from tcnn_api.schemas import SHA256, Page, iso, page_of
from tcnn_api.uploading.forms import FORM, Received
from tcnn_api.uploading.uploads import Examined, accept, forget, identified
from tcnn_jobs.confined import model_files
from tcnn_jobs.confined.process import ask
from tcnn_jobs.model.jobs import Upload

KIND = "checkpoint"
ID = "ckpt_0123456789abcdef01234567"
EXAMPLE: dict[str, Any] = {
    "id": ID, "name": "t_resnet50d.safetensors", "base_model": "resnet50d.ra2_in1k", "tcnn_version": __version__,
    "layers": 3, "parameters": 26900000, "num_classes": 1000, "label_names": None, "trained": False, "size": 107600000,
    "sha256": SHA256, "created_at": "2026-11-21T12:00:00.123Z",
}  # fmt: skip
INFO: dict[str, Any] = {
    "name": "t_resnet50d.safetensors", "kind": "T-CNN", "file": None, "bytes": 107600000,
    "source": "resnet50d.ra2_in1k", "weights": "pretrained", "stage": "layer4", "layers": 3, "stride": "keep",
    "parameters_before": 25576264, "parameters": 27911092, "flops": None, "temperature": [0.0217, 0.0217],
    "input_size": [3, 256, 256], "classes": 1000, "label_names": None, "license": "apache-2.0",
    "verification": {"passed": True, "errors": {"float32": 3e-06}, "drift": 0.79},
    "training": None, "source_training": None, "tcnn_version": __version__,
}  # fmt: skip

router = APIRouter(prefix="/checkpoints", tags=["uploads"], dependencies=AUTHENTICATED)


class CheckpointUpload(BaseModel):
    """An uploaded checkpoint."""

    id: str
    name: str = Field(description="The file's name as it was sent.")
    base_model: str = Field(description="timm's name of the CNN that was converted.")
    tcnn_version: str = Field(description="What wrote the file.")
    layers: int = Field(description="GPSA layers.")
    parameters: int
    num_classes: int | None = None
    label_names: list[str] | None = None
    trained: bool = Field(description="Whether it was fine-tuned by tcnn.")
    size: int = Field(description="Bytes.")
    sha256: str
    created_at: str

    @classmethod
    def of(cls, upload: Upload) -> "CheckpointUpload":
        """As its owner sees it."""
        return cls(id=upload.id, name=upload.name, size=upload.size, sha256=upload.sha256,
                   created_at=iso(upload.created_at), **upload.details)  # fmt: skip


class CheckpointList(Page):
    """Checkpoints, the newest first."""

    data: list[CheckpointUpload]


async def _load(file: Received) -> Examined:
    memory = model_files.MEMORY + 4 * file.size
    found = await ask(
        "tcnn_jobs.confined.model_files", "check", str(file.path), memory=memory, seconds=model_files.SECONDS
    )
    return Examined(file.path, found)


@router.post(
    "",
    status_code=201,
    summary="Upload a checkpoint",
    openapi_extra=FORM,
    responses={201: answer(EXAMPLE, "The checkpoint.")},
)
async def create(
    request: Request, response: Response, parts: ServiceDep, owner: Tenant, key: KeyHeader = None
) -> CheckpointUpload:
    """A safetensors file that tcnn wrote, of a timm model. It is accepted once it has been loaded, strictly."""
    upload = await accept(request, parts, owner, key, KIND, "ckpt", _load)
    response.headers["Location"] = f"/checkpoints/{upload.id}"
    return CheckpointUpload.of(upload)


@router.get("", summary="List checkpoints", responses={200: answer(listed(EXAMPLE), "Checkpoints.")})
def index(
    store: StoreDep,
    owner: Reach,
    after: Annotated[str | None, Query(description="The last id of the page before.", examples=[ID])] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Checkpoints a page.")] = 20,
) -> CheckpointList:
    """Your checkpoints, the newest first."""
    found, more = store.uploads(owner, KIND, after, limit)
    return CheckpointList(**page_of(map(CheckpointUpload.of, found), more))


@router.get("/{id}", summary="Look at a checkpoint", responses={200: answer(EXAMPLE, "The checkpoint.")})
def show(id: str, store: StoreDep, owner: Reach) -> CheckpointUpload:
    """What it was made from."""
    return CheckpointUpload.of(store.upload(identified(id, KIND), KIND, owner))


@router.get("/{id}/info", summary="What a checkpoint is", responses={200: answer(INFO, "What it is.")})
async def info(id: str, parts: ServiceDep, owner: Reach, own: Tenant) -> ModelInfo:
    """What `tcnn info --json` tells of the file: conversion, verification, training; null where nothing is known."""
    upload = await to_thread.run_sync(parts.store.upload, identified(id, KIND), KIND, owner)
    path = await parts.pools.storage.run(own, lambda: parts.artifacts.path(parts.artifacts.upload(upload)))
    async with parts.pools.looks.take(own):
        found = await ask("tcnn_jobs.confined.model_files", "tell", str(path), memory=model_files.MEMORY, seconds=60)
    return ModelInfo(name=upload.name, **found)


@router.delete("/{id}", status_code=204, summary="Delete a checkpoint", responses=problems(409))
async def delete(id: str, parts: ServiceDep, owner: Tenant) -> None:
    """Its file goes at once. While a job that waits or runs needs it, it stays, and this is a 409."""
    await forget(parts, identified(id, KIND), KIND, owner)
