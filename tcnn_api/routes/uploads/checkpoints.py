"""`/checkpoints`: uploaded checkpoints, checked by loading them, and kept for the jobs that start from them."""

from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from tcnn.analysis.reading.model_info import ModelInfo
from tcnn.version import __version__
from tcnn_api.deps import AUTHENTICATED, KeyHeader, OfTenant, Reach, ServiceDep, StoreDep, Tenant, within
from tcnn_api.description.examples import answer, begun
from tcnn_api.description.openapi import problems
from tcnn_api.responses.head import answer_head
from tcnn_api.schemas import AFTER, SHA256, Continued, continued, iso
from tcnn_api.uploading.forms import FORM, Received
from tcnn_api.uploading.uploads import Examined, accept, forget, identified
from tcnn_jobs.confined import model_files
from tcnn_jobs.confined.process import ask
from tcnn_jobs.confined.room import Bounds
from tcnn_jobs.model.jobs import Upload

KIND = "checkpoint"
ID = "ckpt_0123456789abcdef01234567"
EXAMPLE: dict[str, Any] = {
    "id": ID, "tenant": "alice", "name": "t_resnet50d.safetensors",
    "base_model": "resnet50d.ra2_in1k", "tcnn_version": __version__, "layers": 3, "parameters": 26900000,
    "num_classes": 1000, "label_names": None, "trained": False, "size": 107600000,
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
    tenant: str = Field(description="Tenant that owns it.")
    name: str = Field(description="Name of the uploaded file.")
    base_model: str = Field(description="timm name of the CNN that was converted.")
    tcnn_version: str = Field(description="Version of tcnn that wrote the file.")
    layers: int = Field(description="Number of GPSA layers.")
    parameters: int
    num_classes: int | None = None
    label_names: list[str] | None = None
    trained: bool = Field(description="Whether it was fine-tuned by tcnn.")
    size: int = Field(description="Size in bytes.")
    sha256: str
    created_at: str

    @classmethod
    def of(cls, upload: Upload) -> "CheckpointUpload":
        """As its owner sees it."""
        return cls(id=upload.id, tenant=upload.owner, name=upload.name, size=upload.size, sha256=upload.sha256,
                   created_at=iso(upload.created_at), **upload.details)  # fmt: skip


class CheckpointList(Continued):
    """Checkpoints, newest first."""

    data: list[CheckpointUpload]


async def _load(file: Received, bounds: Bounds) -> Examined:
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
    """Upload a safetensors file that tcnn wrote, of a timm model. It is accepted if it loads strictly."""
    upload = await accept(request, parts, owner, key, KIND, "ckpt", _load)
    response.headers["Location"] = f"/checkpoints/{upload.id}"
    return CheckpointUpload.of(upload)


@router.get("", summary="List checkpoints", responses={200: answer(begun(EXAMPLE), "Checkpoints.")})
def index(
    store: StoreDep,
    request: Request,
    owner: Reach,
    after: Annotated[str | None, Query(description=AFTER, examples=[ID])] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Checkpoints per page.")] = 20,
    tenant: OfTenant = None,
) -> CheckpointList:
    """List your checkpoints, newest first."""
    found, following = store.uploads(within(owner, tenant, request.state.principal), KIND, after, limit)
    return CheckpointList(**continued(map(CheckpointUpload.of, found), following))


@router.get("/{id}", summary="Get a checkpoint", responses={200: answer(EXAMPLE, "The checkpoint.")})
def show(id: str, store: StoreDep, owner: Reach) -> CheckpointUpload:
    """Get a checkpoint: what it was made from."""
    return CheckpointUpload.of(store.upload(identified(id, KIND), KIND, owner))


@router.get("/{id}/info", summary="Describe a checkpoint", responses={200: answer(INFO, "The description.")})
async def info(id: str, request: Request, parts: ServiceDep, owner: Reach, own: Tenant) -> ModelInfo:
    """Get what `tcnn info --json` prints for the file: conversion, verification, training; null where unknown."""
    upload = await to_thread.run_sync(parts.store.upload, identified(id, KIND), KIND, owner)
    answer_head(request)
    path = await parts.pools.storage.run(own, lambda: parts.artifacts.path(parts.artifacts.upload(upload)))
    async with parts.pools.looks.take(own):
        found = await ask("tcnn_jobs.confined.model_files", "tell", str(path), memory=model_files.MEMORY, seconds=60)
    return ModelInfo(name=upload.name, **found)


@router.delete("/{id}", status_code=204, summary="Delete a checkpoint", responses=problems(409))
async def delete(id: str, parts: ServiceDep, owner: Tenant, reach: Reach) -> None:
    """Delete a checkpoint and its file at once. 409 if a queued or running job needs it."""
    await forget(parts, identified(id, KIND), KIND, owner, reach)
