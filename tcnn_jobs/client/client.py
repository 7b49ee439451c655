"""A client of the HTTP service, for programs and for `tcnn jobs`.

    with Client("http://gpu-server:8000", key="…") as client:
        data = client.upload_dataset("pets/")
        job = client.submit("transform", {"model": "resnet50d", "finetune": {"dataset": data["id"], "preset": "quick"}})
        done = client.watch(job["id"])
        client.download(done["id"], "t_resnet50d.safetensors")

Everything that may be sent twice is sent again while the server is away or busy: every POST carries an idempotency key.
"""

import json
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent

from tcnn.errors import CheckpointError, RequestError, one_line
from tcnn.files import replacing
from tcnn_jobs.client.connection import AS_IT_IS, DEFAULT_URL, Connection, Json, once
from tcnn_jobs.client.packing import CHUNK, read_file, tar_folder
from tcnn_jobs.client.refusals import RefusedError, ServerFailure
from tcnn_jobs.model.jobs import TERMINAL

STATES = frozenset({"progress", "away", "back"})
"""Messages of a stream that are no events: how far the job is, and whether the server's database answers."""
LINKS = 8
"""How often a link is made anew whose secret was lost with the server's answer."""
OCTETS = {"Content-Type": "application/octet-stream"}


class Client:
    """One server, and a key of its. `patience`: seconds to try again for while it is away or busy."""

    def __init__(self, url: str = DEFAULT_URL, key: str | None = None, *, patience: float = 30.0) -> None:
        self._server = Connection(url, key, patience)

    @property
    def url(self) -> str:
        """The server's URL, with no slash at its end."""
        return self._server.url

    @property
    def patience(self) -> float:
        """Seconds to try again for while the server is away or busy."""
        return self._server.patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self._server.patience = seconds

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._server.close()

    def submit(self, kind: str, request: Json, key: str | None = None) -> Json:
        """Submit a job (`transform`, `finetune` or `evaluate`) and return it; once for each idempotency `key`."""
        return self._server.json("POST", f"/{kind}", json=request, headers=once(key), has="id")

    def plan(self, kind: str, request: Json) -> Json:
        """What a `finetune`, or a `transform` that fine-tunes, would take: memory, disk, time. Nothing is done."""
        return self._server.json("POST", "/plan", json={kind: request}, headers=once(), timeout=300.0)

    def job(self, job: str) -> Json:
        """Get a job. Raises `RefusedError` if there is none of this id."""
        return self._server.json("GET", f"/jobs/{_part(job)}", has="status")

    def jobs(self, *, limit: int = 20, after: str | None = None, status: str | None = None, kind: str | None = None,
             model: str | None = None, search: str | None = None, tags: str | Sequence[str] = (),
             tenant: str | None = None, sort: str | None = None) -> Json:  # fmt: skip
        """List jobs, newest first: a page as `data`, `has_more` and `next`, which is the next page's `after`.

        `model`: `made` for those that have made a model, `expected` for those that will if they succeed. `search`:
        words of their names, tags, notes and requests. `tags`: those that they have all of. `tenant`: whose, with an
        admin's key. `sort`: another order, such as `-metrics.accuracy` or `settings.lr`.
        """
        tag = [tags] if isinstance(tags, str) else list(tags)
        query = {"limit": limit, "after": after, "status": status, "kind": kind, "model": model, "q": search,
                 "tag": tag or None, "tenant": tenant, "sort": sort}  # fmt: skip
        given = {name: value for name, value in query.items() if value is not None}
        return self._server.json("GET", "/jobs", params=given, has="data")

    def label(self, job: str, **labels: Any) -> Json:
        """Set a job's `name`, `tags`, `note`. Those left out are unchanged, None removes one."""
        return self._server.json("PATCH", f"/jobs/{_part(job)}", json=labels, headers=once(), has="status")

    def cancel(self, job: str) -> Json:
        """Request cancellation. A running job is cancelled once its process has ended."""
        return self._server.json("POST", f"/jobs/{_part(job)}/cancel", headers=once(), has="status")

    def resume(self, job: str) -> Json:
        """Queue a failed or cancelled job again; training resumes from its last resume point."""
        return self._server.json("POST", f"/jobs/{_part(job)}/resume", headers=once(), has="status")

    def delete(self, job: str) -> None:
        """Delete a terminal job and its files."""
        self._server.json("DELETE", f"/jobs/{_part(job)}")

    def share(self, job: str, *, days: float = 7, key: str | None = None) -> Json:
        """Make a link that shows a job to whoever has it: `page` below the server's URL, `secret` in place of a key.

        Both are None for a `key` that was used before: the server does not store secrets. Without one, a link whose
        secret was lost with the answer is revoked, and another one made, `LINKS` times at most.
        """
        for _ in range(LINKS):
            made = self._server.json(
                "POST", f"/jobs/{_part(job)}/shares", json={"days": days}, headers=once(key), has="page"
            )
            if made["page"] is not None or key is not None:
                return made
            self.unshare(job, made["id"])
        raise ServerFailure(
            f"the answer to POST /jobs/{job}/shares, which holds the link's secret, was lost {LINKS} times on its way "
            "from the server; no link was left behind"
        )

    def shares(self, job: str) -> Json:
        """The links to a job that are valid: `data`."""
        return self._server.json("GET", f"/jobs/{_part(job)}/shares", has="data")

    def unshare(self, job: str, share: str) -> None:
        """Revoke a link to a job."""
        self._server.json("DELETE", f"/jobs/{_part(job)}/shares/{_part(share)}")

    def stream(self, job: str, after: int = 0) -> Iterator[ServerSentEvent]:
        """Server-sent events of a job with numbers above `after`, until it has ended or the connection breaks."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        with self._server.stream(f"/jobs/{_part(job)}/events", headers) as answer:
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                # Of a sign of life, which has no data, httpx-sse makes a message as soon as it has seen an id.
                yield from (message for message in EventSource(answer).iter_sse() if message.data)

    def watch(
        self,
        job: str,
        progress: Callable[[Json], None] | None = None,
        event: Callable[[str, Json], None] | None = None,
        poll: float = 2.0,
    ) -> Json:
        """Wait for a job to end; returns it. Where streams break off or are not to be had, it polls.

        `progress` gets the job's `progress`, `event` a kind and what belongs to it; no event comes twice.
        """
        seen = 0
        while True:
            try:
                for message in self.stream(job, seen):
                    seen = int(message.id) if message.id.isdigit() else seen
                    said = json.loads(message.data)
                    if message.event == "progress" and progress:
                        progress(said)
                    elif message.event not in STATES and event:
                        event(message.event, said["data"])
            except httpx.TransportError:
                pass
            except RefusedError as refused:
                if not refused.again:
                    raise
            except ServerFailure:
                pass
            now = self.job(job)
            if now["status"] in TERMINAL:
                return now
            if now["progress"] and progress:
                progress(now["progress"])
            time.sleep(poll)

    def download(self, job: str, path: str | Path, *, name: str | None = None, force: bool = False) -> Path:
        """A job's checkpoint, or the file of a name, checked by its SHA-256; a broken download goes on where it was.

        Raises `OutputError`, `StorageError`, `CheckpointError` if what arrived is not what was announced.
        """
        found, path = self.job(job), Path(path)
        result = found["result"] or {}
        file = result.get("checkpoint") if name is None else _named(result.get("files", []), name)
        if file is None:
            what = f"file {name!r}" if name else "checkpoint"
            raise RequestError(f"{job}: has no {what}; it is {found['status']}")
        with replacing(path, force) as temporary:
            self._server.fetch(file, temporary)
        return path

    def download_all(self, job: str, path: str | Path, *, force: bool = False) -> Path:
        """All of a job's files, its log and the job itself, as one zip; raises as `download`."""
        path, began, route = Path(path), False, f"/jobs/{_part(job)}/archive"
        with replacing(path, force) as temporary:
            try:
                with self._server.stream(route, AS_IT_IS) as answer, temporary.open("wb") as out:
                    began = True
                    for chunk in answer.iter_bytes(CHUNK):
                        out.write(chunk)
                whole = zipfile.ZipFile(temporary).testzip() is None
            except httpx.TransportError as error:
                if not began:
                    raise self._server.away(error) from error
                raise ServerFailure(
                    f"{self._server.url}: the zip broke off ({one_line(error).rstrip('.')}); download it again. If "
                    "that ends so, too, download the files one by one: a damaged one is refused",
                    again=True,
                ) from error
            except zipfile.BadZipFile:
                whole = False
            if not whole:
                raise CheckpointError("what arrived is no whole zip; nothing was kept, download it again")
        return path

    def log(self, job: str, *, attempt: int | None = None, tail: int | None = None) -> str:
        """What a job's process has written so far: of its last attempt or another, all or so many bytes of its end."""
        given = {"attempt": attempt, "tail": tail}
        query = httpx.QueryParams({name: value for name, value in given.items() if value is not None})
        try:
            with self._server.stream(f"/jobs/{_part(job)}/logs?{query}") as answer:
                return answer.read().decode(errors="replace")
        except httpx.TransportError as error:
            raise self._server.away(error) from error

    def predict(self, job: str, image: str | Path | bytes, *, top: int = 5) -> Json:
        """Top predictions for an image (a path, or its bytes) by a job's model and the CNNs it came from: `models`."""
        content = image if isinstance(image, bytes) else _existing(Path(image)).read_bytes()
        return self._server.json("POST", f"/jobs/{_part(job)}/predict", lambda: iter((content,)), timeout=300.0,
                                 params={"top": top}, headers=once() | OCTETS)  # fmt: skip

    def look(self, job: str, image: str | Path | bytes | None = None, *, dataset: str | None = None,
             number: int | None = None, file: str | None = None, at: tuple[float, float] | None = None,
             checkpoint: str | None = None, temperature: float | None = None) -> Json:  # fmt: skip
        """Give the explorer an image (a path, or its bytes), or one of an uploaded data set: by number, or by name.

        Returns what the model says of it, its attention layers, and the `id` that `attention` asks by. `at`: a place,
        (y, x), of which what `attention` answers (also of a `checkpoint`, at a `temperature`) is in the same answer;
        the image is then not kept. This is for a service of several servers, of which only one knows the `id`.
        """
        if (image is None) == (dataset is None):
            raise RequestError("expected an image, or a dataset to take one of")
        content = b"" if image is None else image if isinstance(image, bytes) else _existing(Path(image)).read_bytes()
        place = {} if at is None else {"maps": True, "y": at[0], "x": at[1]}
        asked = {"dataset": dataset, "number": number, "file": file, "checkpoint": checkpoint,
                 "temperature": temperature, **place}  # fmt: skip
        given = {name: value for name, value in asked.items() if value is not None}
        return self._server.json("POST", f"/jobs/{_part(job)}/attention/images", lambda: iter((content,)),
                                 params=given, headers=once() | OCTETS, timeout=300.0)  # fmt: skip

    def attention(self, job: str, image: str, y: float = 0.5, x: float = 0.5, *, checkpoint: str | None = None,
                  temperature: float | None = None) -> Json:  # fmt: skip
        """Attention maps of every head for the query nearest to a place, in shares of the height and the width.

        `image`: an id of `look`. `checkpoint`: another one of the run, of those that `look` lists (`start`, `last`).
        `temperature`: τ of all layers, instead of that of training.
        """
        asked = {"y": y, "x": x, "checkpoint": checkpoint, "temperature": temperature}
        given = {name: value for name, value in asked.items() if value is not None}
        return self._server.json("GET", f"/jobs/{_part(job)}/attention/{_part(image)}", params=given, timeout=300.0)

    def upload_dataset(self, path: str | Path, key: str | None = None) -> Json:
        """Upload a data set (class folders or an archive), streamed; returns it with the `id` that jobs name."""
        path = Path(path)
        if path.is_dir():
            return self._server.upload("/datasets", f"{path.resolve().name}.tar", lambda: tar_folder(path), key)
        return self._server.upload(
            "/datasets", path.name, lambda: read_file(_existing(path, "a file or a folder")), key
        )

    def upload_checkpoint(self, path: str | Path, key: str | None = None) -> Json:
        """Upload a checkpoint that tcnn wrote (safetensors), streamed; returns it with the `id` that jobs name."""
        path = Path(path)
        return self._server.upload("/checkpoints", path.name, lambda: read_file(_existing(path)), key)

    def upload_weights(self, path: str | Path, key: str | None = None) -> Json:
        """Send a CNN's state dict, of safetensors or `torch.save`; returns what requests name in `weights`."""
        path = Path(path)
        return self._server.upload("/weights", path.name, lambda: read_file(_existing(path)), key)


def _named(files: list[Json], name: str) -> Json | None:
    return next((file for file in files if file["name"] == name), None)


def _part(identifier: str) -> str:
    """An id as a part of a path; anything else could name another route."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", identifier):
        raise RequestError(f"{identifier!r}: not a job's id; `tcnn jobs list` shows yours")
    return identifier


def _existing(path: Path, expected: str = "a file") -> Path:
    if not path.is_file():
        found = "a folder" if path.is_dir() else "something else" if path.exists() else "nothing"
        raise RequestError(f"{path}: expected {expected}, found {found}")
    return path
