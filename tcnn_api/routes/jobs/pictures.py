"""An image and a job's models: the image is received, and looked at in the confined process that holds the models."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from tcnn.errors import RequestError, storage_errors
from tcnn_api.deps import Service
from tcnn_api.errors import NotFound, Refused, TooManyAtOnce
from tcnn_api.routes.jobs.files import succeeded
from tcnn_jobs.artifacts.base import Reference
from tcnn_jobs.confined.room import keep_free
from tcnn_jobs.errors import JobNotFound, UploadNotFound
from tcnn_jobs.model.jobs import Job, Kind

CONVERTED = "converted.safetensors"
_BYTES = {"schema": {"type": "string", "format": "binary"}}
IMAGE_BODY: dict[str, Any] = {"application/octet-stream": _BYTES, "image/*": _BYTES}
"""The content of a request body that is an image, for OpenAPI."""


async def ask_about_body(
    request: Request, parts: Service, owner: str, job: str, checkpoint: Path, asked: dict[str, Any], otherwise: str = ""
) -> bytes:
    """The answer, JSON, of a job's process about the image that is the body of a request.

    `otherwise`: what else may be given, for the refusal of an empty body. Raises as `ask_about`.
    """
    with parts.pools.pictures.hold(owner):
        async with _received(request, parts, owner) as picture:
            if not picture.tell():
                raise Refused("body", f"expected an image, found nothing; send its bytes{otherwise}")
            return await ask_about("body", picture, parts, owner, job, checkpoint, asked)


@asynccontextmanager
async def _received(request: Request, parts: Service, owner: str) -> AsyncIterator[FileIO]:
    """The body of a request in a file without a name, at its end, for as long as the block runs: one that comes slowly
    takes no memory, of which there is little. Raises `Refused`, `StorageError`.
    """
    folder, free = parts.rooms.folder, parts.rooms.free
    announced = request.headers.get("content-length", "")

    def open_file() -> FileIO:
        with storage_errors(Path("the image")):
            return TemporaryFile("w+b", buffering=0, dir=folder)

    def write(data: memoryview) -> None:
        with storage_errors(Path("the image")):
            keep_free(folder, len(data), free)
            while data:
                data = data[file.write(data) :]

    await parts.pools.disk.run(owner, keep_free, folder, int(announced) if announced.isdigit() else 0, free)
    with await parts.pools.disk.run(owner, open_file) as file:
        try:
            async for data in request.stream():
                await parts.pools.disk.run(owner, write, memoryview(data))
        except ClientDisconnect as error:
            raise Refused("body", "the image broke off; send it again") from error
        yield file


async def ask_about(
    field: str, picture: FileIO | None, parts: Service, owner: str, job: str, checkpoint: Path, asked: dict[str, Any]
) -> bytes:
    """As `ask_model`; raises `Refused`, of the field that names the image, for what is no image; `TooManyAtOnce`."""
    try:
        return await ask_model(picture, parts, owner, job, checkpoint, asked)
    except TooManyAtOnce:
        raise
    except RequestError as error:
        raise Refused(field, str(error)) from error


async def ask_model(
    picture: FileIO | None, parts: Service, owner: str, job: str, checkpoint: Path, asked: dict[str, Any]
) -> bytes:
    """The answer, JSON, of a job's process about an image, by its bytes or by what is `asked`.

    One question of a tenant is asked at a time, and as many in all as there are processes: so one of them is free for
    whoever is next. Bytes are read into memory when it is their turn. Raises as `Explorers.ask`, and `TooManyAtOnce`.
    """
    async with parts.pools.models.take(owner):
        content = b"" if picture is None else await parts.pools.disk.run(owner, _whole, picture)
        return await parts.explorers.ask(job, checkpoint, asked, content, owner)


def _whole(file: FileIO) -> bytes:
    file.seek(0)
    return file.read()


def own_checkpoint(parts: Service, job: str, owner: str) -> tuple[Job, Path]:
    """A job that has succeeded, and its checkpoint, which is on this host now; raises `WrongState`, `NotFound`."""
    found = succeeded(parts.store.get(job, owner))
    if found.checkpoint is None:
        raise NotFound(f"{job}: this job made no checkpoint; name a transform or finetune job")
    return found, parts.artifacts.path(parts.artifacts.file(found.checkpoint))


def began_with(parts: Service, job: Job, owner: str) -> dict[str, str]:
    """What a job began with: the `path` of a checkpoint, the `name` of a timm model, or why it is `missing`."""
    converted = job.file(CONVERTED) if job.kind is Kind.TRANSFORM else None
    if converted is not None:
        return model_at(parts, "cnn", parts.artifacts.file(converted))
    asked = job.request
    try:
        if asked.get("job"):
            before = parts.store.get(asked["job"], owner).checkpoint
            if before is not None:
                return model_at(parts, "cnn", parts.artifacts.file(before))
        elif asked.get("checkpoint"):
            upload = parts.store.upload(asked["checkpoint"], "checkpoint", owner)
            return model_at(parts, "cnn", parts.artifacts.upload(upload))
        elif asked.get("pretrained", True) and asked.get("model"):
            return {"role": "cnn", "name": asked["model"]}
    except (JobNotFound, UploadNotFound):
        pass
    return {"role": "cnn", "missing": "what this job began with is no longer on the server"}


def model_at(parts: Service, role: str, reference: Reference) -> dict[str, str]:
    """A model as the process is told of it: its role, and its path, or why it is missing."""
    try:
        return {"role": role, "path": str(parts.artifacts.path(reference))}
    except RequestError:
        return {"role": role, "missing": "its checkpoint is no longer on the server"}
