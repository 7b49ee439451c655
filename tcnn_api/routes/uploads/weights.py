"""`/weights`: uploaded weights of one's own CNNs, kept as safetensors for the jobs that convert them."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from tcnn_api.deps import AUTHENTICATED, KeyHeader, OfTenant, Reach, ServiceDep, StoreDep, Tenant, within
from tcnn_api.description.examples import answer, begun
from tcnn_api.description.openapi import problems
from tcnn_api.schemas import AFTER, SHA256, Continued, continued, iso
from tcnn_api.uploading.forms import FORM, Received
from tcnn_api.uploading.uploads import Examined, accept, forget, identified
from tcnn_jobs.confined import model_files
from tcnn_jobs.confined.process import ask
from tcnn_jobs.confined.room import Bounds
from tcnn_jobs.model.jobs import Upload

KIND = "weights"
ID = "wts_0123456789abcdef01234567"
EXAMPLE: dict[str, Any] = {
    "id": ID, "tenant": "alice", "name": "model_best.pth.tar", "architecture": "resnet50d",
    "tensors": 320, "parameters": 25629464, "dtypes": {"float32": 267, "int64": 53}, "size": 102563184,
    "sha256": SHA256,
    "created_at": "2026-11-21T12:00:00.123Z",
}  # fmt: skip

router = APIRouter(prefix="/weights", tags=["uploads"], dependencies=AUTHENTICATED)


class WeightsLine(BaseModel):
    """Uploaded weights of a CNN."""

    id: str
    tenant: str = Field(description="Tenant that owns it.")
    name: str = Field(description="Name of the uploaded file.")
    architecture: str | None = Field(description="timm name of the model, if the file records it.")
    tensors: int
    parameters: int = Field(description="Number of elements of all tensors, including running statistics.")
    dtypes: dict[str, int] = Field(description="Number of tensors of each dtype.")
    size: int = Field(description="Size of the stored file in bytes.")
    sha256: str = Field(description="SHA-256 of the stored file.")
    created_at: str

    @classmethod
    def of(cls, upload: Upload) -> "WeightsLine":
        """As its owner sees it in a list."""
        return cls(**_told(upload))


class WeightsView(WeightsLine):
    """Uploaded weights, with the contents of the file."""

    shapes: list[tuple[str, list[int]]] = Field(description="Names and shapes of the first 400 tensors, in order.")

    @classmethod
    def of(cls, upload: Upload) -> "WeightsView":
        """As its owner sees it."""
        return cls(**_told(upload), shapes=upload.details["shapes"])


def _told(upload: Upload) -> dict[str, Any]:
    details = {name: upload.details[name] for name in ("architecture", "tensors", "parameters", "dtypes")}
    own = upload.model_dump(include={"id", "name", "size", "sha256"})
    return own | details | {"tenant": upload.owner, "created_at": iso(upload.created_at)}


class WeightsList(Continued):
    """Weights, newest first."""

    data: list[WeightsLine]


async def _read(file: Received, bounds: Bounds) -> Examined:
    kept = file.folder / "kept.safetensors"
    memory = model_files.MEMORY + 6 * file.size
    found = await ask(
        "tcnn_jobs.confined.model_files", "keep", str(file.path), file.name, str(kept), json.dumps(bounds),
        memory=memory, seconds=model_files.SECONDS,
    )  # fmt: skip
    return Examined(kept, found, **found.pop("kept"))


@router.post(
    "",
    status_code=201,
    summary="Upload weights of a CNN",
    openapi_extra=FORM,
    responses={201: answer(EXAMPLE | {"shapes": [["conv1.0.weight", [32, 3, 3, 3]]]}, "The weights.")},
)
async def create(
    request: Request, response: Response, parts: ServiceDep, owner: Tenant, key: KeyHeader = None
) -> WeightsView:
    """Upload a state dict of a timm model: safetensors or `torch.save` output, from timm's train.py or your own.

    It may be stored under a key of the file, and its names may have a wrapper's prefix. Nothing is unpickled: a file
    that needs classes is refused, and the error names them. The tensors are stored as safetensors. Whether they fit
    a model is checked by the job that names them in `weights`.
    """
    upload = await accept(request, parts, owner, key, KIND, "wts", _read)
    response.headers["Location"] = f"/weights/{upload.id}"
    return WeightsView.of(upload)


@router.get("", summary="List weights", responses={200: answer(begun(EXAMPLE), "Weights.")})
def index(
    store: StoreDep,
    request: Request,
    owner: Reach,
    after: Annotated[str | None, Query(description=AFTER, examples=[ID])] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Files per page.")] = 20,
    tenant: OfTenant = None,
) -> WeightsList:
    """List your weights, newest first."""
    found, following = store.uploads(within(owner, tenant, request.state.principal), KIND, after, limit)
    return WeightsList(**continued(map(WeightsLine.of, found), following))


@router.get(
    "/{id}",
    summary="Get weights",
    responses={200: answer(EXAMPLE | {"shapes": [["conv1.0.weight", [32, 3, 3, 3]]]}, "The weights.")},
)
def show(id: str, store: StoreDep, owner: Reach) -> WeightsView:
    """Get weights: the contents of the file."""
    return WeightsView.of(store.upload(identified(id, KIND), KIND, owner))


@router.delete("/{id}", status_code=204, summary="Delete weights", responses=problems(409))
async def delete(id: str, parts: ServiceDep, owner: Tenant, reach: Reach) -> None:
    """Delete weights at once. 409 if a queued or running job needs them."""
    await forget(parts, identified(id, KIND), KIND, owner, reach)
