"""`/datasets/{id}/contents` and `/datasets/{id}/images`: what is in an uploaded data set, and what it looks like."""

import json
from pathlib import Path
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from tcnn.files import write_atomically
from tcnn.version import __version__
from tcnn_api.deps import AUTHENTICATED, Reach, Service, ServiceDep, Tenant
from tcnn_api.description.examples import answer, listed
from tcnn_api.responses.head import answer_head
from tcnn_api.schemas import Page
from tcnn_api.uploading import gallery
from tcnn_api.uploading.uploads import identified
from tcnn_jobs.confined.process import ask
from tcnn_jobs.model.jobs import Upload

KIND = "dataset"
router = APIRouter(prefix="/datasets", tags=["uploads"], dependencies=AUTHENTICATED)


class ClassView(BaseModel):
    """A class and its number of images."""

    name: str
    images: dict[str, int] = Field(description="Images by split: train, val, test; or `all` if there are no splits.")


class UnreadableView(BaseModel):
    """An image that cannot be read."""

    file: str
    reason: str


class Spread(BaseModel):
    """Distribution of a size in pixels."""

    least: int
    median: float
    most: int


class ContentsView(BaseModel):
    """Contents of a data set."""

    classes: list[ClassView] = Field(description="Classes in the order of their indices.")
    images: int
    checked: int = Field(
        description="Number of images that were opened, spread over the set; all, unless there are too many."
    )
    unreadable: int = Field(description="Number of these that cannot be read; training skips them.")
    unreadable_images: list[UnreadableView] = Field(description="At most 200 of the unreadable images.")
    formats: dict[str, int] = Field(description="Number of images by PIL's name of their format.")
    width: Spread | None
    height: Spread | None
    mean_bytes: float | None = Field(description="Mean size of an image file in bytes.")


class ThumbnailView(BaseModel):
    """An image of a data set."""

    file: str = Field(description="Path in the data set.")
    label: str = Field(description="Class of the image.")
    split: str | None = Field(description="train, val or test; null if there are no splits.")
    width: int | None
    height: int | None
    thumbnail: str | None = Field(description="Data URL, 96 pixels wide or high; null if the image cannot be read.")
    reason: str | None = Field(description="Why the image cannot be read, or null.")


class ThumbnailList(Page):
    """Images of a data set."""

    data: list[ThumbnailView]
    total: int = Field(description="Number of images with this class and split.")


_CONTENTS: dict[str, Any] = {
    "classes": [{"name": "cat", "images": {"train": 24, "val": 6}}, {"name": "dog", "images": {"train": 26, "val": 4}}],
    "images": 60, "checked": 60, "unreadable": 1,
    "unreadable_images": [{"file": "train/cat/7.jpg", "reason": "image file is truncated (3 bytes not processed)"}],
    "formats": {"JPEG": 60}, "width": {"least": 240, "median": 500.0, "most": 1024},
    "height": {"least": 180, "median": 375.0, "most": 768}, "mean_bytes": 51234.5,
}  # fmt: skip
_IMAGE: dict[str, Any] = {
    "file": "train/cat/1.jpg", "label": "cat", "split": "train", "width": 500, "height": 375,
    "thumbnail": "data:image/jpeg;base64,/9j/4AAQSkZJRg==", "reason": None,
}  # fmt: skip


@router.get("/{id}/contents", summary="Contents of a data set", responses={200: answer(_CONTENTS, "Contents.")})
async def contents(id: str, request: Request, parts: ServiceDep, owner: Reach, own: Tenant) -> ContentsView:
    """Get images by class and split, sizes, formats, and which images cannot be read.

    The first request opens the images, which takes up to 45 s; the result is stored.
    """
    upload = await to_thread.run_sync(parts.store.upload, identified(id, KIND), KIND, owner)
    kept = parts.home.datasets / f"{upload.id}.contents-{__version__}.json"
    if not kept.is_file():
        answer_head(request)
    async with parts.pools.looks.take(own):  # what waited for the same one finds it made
        if not kept.is_file():
            found = await _ask(parts, upload, own, "survey")
            await parts.pools.disk.run(own, _keep, kept, found)
        return ContentsView.model_validate_json(await parts.pools.disk.run(own, kept.read_bytes))


@router.get(
    "/{id}/images",
    summary="Thumbnails of a data set",
    responses={200: answer(listed(_IMAGE) | {"total": 1}, "Images.")},
)
async def images(
    id: str,
    request: Request,
    parts: ServiceDep,
    owner: Reach,
    own: Tenant,
    label: Annotated[str | None, Query(max_length=1000, description="Only images of this class.")] = None,
    split: Annotated[str | None, Query(max_length=20, description="Only images in train, val or test.")] = None,
    start: Annotated[int, Query(ge=0, le=10_000_000, description="Number of images to skip.")] = 0,
    limit: Annotated[int, Query(ge=1, le=60, description="Images per page.")] = 24,
) -> ThumbnailList:
    """List images in order, each with a thumbnail, created in a process with bounded memory."""
    upload = await to_thread.run_sync(parts.store.upload, identified(id, KIND), KIND, owner)
    answer_head(request)
    wanted = {"label": label, "split": split, "start": start, "limit": limit}
    async with parts.pools.looks.take(own):
        return ThumbnailList(**await _ask(parts, upload, own, "thumbnails", json.dumps(wanted)))


async def _ask(parts: Service, upload: Upload, own: str, function: str, *more: str) -> dict[str, Any]:
    folder = await parts.pools.storage.run(own, _folder, parts, upload)
    memory = gallery.MEMORY + 1000 * int(upload.details["images"])
    return await ask("tcnn_api.uploading.gallery", function, str(folder), *more, memory=memory, seconds=gallery.SECONDS)


def _folder(parts: Service, upload: Upload) -> Path:
    return parts.artifacts.path(parts.artifacts.upload(upload))


def _keep(path: Path, found: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(found), force=True)
