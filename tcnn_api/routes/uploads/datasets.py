"""`/datasets`: uploaded data sets: archives of class folders, unpacked and kept for the jobs that train on them."""

import json
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from tcnn_api.deps import AUTHENTICATED, KeyHeader, OfTenant, Reach, ServiceDep, StoreDep, Tenant, within
from tcnn_api.description.examples import answer, begun
from tcnn_api.description.openapi import problems
from tcnn_api.schemas import AFTER, SHA256, Continued, continued, iso
from tcnn_api.settings import ApiSettings
from tcnn_api.uploading.archives import Limits
from tcnn_api.uploading.forms import FORM, Received
from tcnn_api.uploading.uploads import Examined, accept, forget, identified
from tcnn_jobs.confined.process import ask
from tcnn_jobs.confined.room import Bounds
from tcnn_jobs.model.jobs import Upload

KIND = "dataset"
MEMORY = 1 << 30
SECONDS = 3600
"""What unpacking may take: bytes beside a thousand for every entry, and seconds."""
ID = "ds_0123456789abcdef01234567"
EXAMPLE: dict[str, Any] = {
    "id": ID, "tenant": "alice", "name": "pets.zip", "classes": ["cat", "dog"],
    "images": 60, "splits": {"train": 50, "val": 10}, "left_out": 0,
    "size": 1234567, "sha256": SHA256, "created_at": "2026-11-21T12:00:00.123Z",
}  # fmt: skip

router = APIRouter(prefix="/datasets", tags=["uploads"], dependencies=AUTHENTICATED)


class DatasetView(BaseModel):
    """An uploaded data set."""

    id: str
    tenant: str = Field(description="Tenant that owns it.")
    name: str = Field(description="Name of the uploaded file.")
    classes: list[str] = Field(description="Classes in the order of their indices.")
    images: int
    splits: dict[str, int] = Field(description="Images in train, val and test; empty if there are no splits.")
    left_out: int = Field(
        description="Files in class folders that are not kept, as they do not have the extension of an image; what "
        "usually accompanies images (.txt, .json, …) is not counted."
    )
    size: int = Field(description="Size of the archive in bytes.")
    sha256: str = Field(description="SHA-256 of the archive.")
    created_at: str

    @classmethod
    def of(cls, upload: Upload) -> "DatasetView":
        """As its owner sees it."""
        found = {name: upload.details[name] for name in ("classes", "images", "splits")}
        left_out = upload.details.get("left_out", 0)  # not known of those that an older version has accepted
        return cls(id=upload.id, tenant=upload.owner, name=upload.name, size=upload.size, sha256=upload.sha256,
                   created_at=iso(upload.created_at), left_out=left_out, **found)  # fmt: skip


class DatasetList(Continued):
    """Data sets, newest first."""

    data: list[DatasetView]


async def _unpack(settings: ApiSettings, file: Received, bounds: Bounds) -> Examined:
    target = file.folder / "unpacked"
    limits = Limits(settings.max_files, int(settings.max_unpacked_gb * 1e9), settings.max_ratio, bounds)
    memory = MEMORY + 1000 * settings.max_files
    arguments = str(file.path), str(target), json.dumps(limits)
    found = await ask("tcnn_api.uploading.datasets", "unpack_and_describe", *arguments, memory=memory, seconds=SECONDS)
    return Examined(target, found)


@router.post(
    "",
    status_code=201,
    summary="Upload a data set",
    openapi_extra=FORM,
    responses={201: answer(EXAMPLE, "The data set.")},
)
async def create(
    request: Request, response: Response, parts: ServiceDep, owner: Tenant, key: KeyHeader = None
) -> DatasetView:
    """Upload a zip or tar (plain, gz, bz2, xz) of class folders, or of `train/` and `val/` with class folders in them.

    Only images are kept. Archives with links, devices or paths outside the archive's folder, or over the limits, are
    refused, and nothing of them is kept.
    """
    upload = await accept(request, parts, owner, key, KIND, "ds", partial(_unpack, parts.settings))
    response.headers["Location"] = f"/datasets/{upload.id}"
    return DatasetView.of(upload)


@router.get("", summary="List data sets", responses={200: answer(begun(EXAMPLE), "Data sets.")})
def index(
    store: StoreDep,
    request: Request,
    owner: Reach,
    after: Annotated[str | None, Query(description=AFTER, examples=[ID])] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Data sets per page.")] = 20,
    tenant: OfTenant = None,
) -> DatasetList:
    """List your data sets, newest first."""
    found, following = store.uploads(within(owner, tenant, request.state.principal), KIND, after, limit)
    return DatasetList(**continued(map(DatasetView.of, found), following))


@router.get("/{id}", summary="Get a data set", responses={200: answer(EXAMPLE, "The data set.")})
def show(id: str, store: StoreDep, owner: Reach) -> DatasetView:
    """Get a data set: its classes and number of images."""
    return DatasetView.of(store.upload(identified(id, KIND), KIND, owner))


@router.delete("/{id}", status_code=204, summary="Delete a data set", responses=problems(409))
async def delete(id: str, parts: ServiceDep, owner: Tenant, reach: Reach) -> None:
    """Delete a data set and its files at once. 409 if a queued or running job needs it."""
    await forget(parts, identified(id, KIND), KIND, owner, reach)
    for told in parts.home.datasets.glob(f"{id}.contents-*"):
        told.unlink(missing_ok=True)
