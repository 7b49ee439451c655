"""A client of the HTTP service, for programs and for `tcnn jobs`.

    with Client("http://gpu-server:8000", key="…") as client:
        data = client.upload_dataset("pets/")
        job = client.submit("transform", {"model": "resnet50d", "finetune": {"dataset": data["id"], "preset": "quick"}})
        done = client.watch(job["id"])
        client.download(done["id"], "t_resnet50d.safetensors")

Everything that may be sent twice is sent again while the server is away or busy: every POST carries an idempotency key.
"""

import hashlib
import json
import re
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent

from tcnn.errors import CheckpointError, RequestError, one_line
from tcnn.files import replacing
from tcnn_jobs.client.packing import CHUNK, Form, read_file, tar_folder
from tcnn_jobs.client.refusals import RefusedError, ServerFailure, patiently, refusal
from tcnn_jobs.model.jobs import TERMINAL

Json = dict[str, Any]
DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT = 60.0
"""Seconds without a byte; event streams are pinged more often."""
FIRST_PATIENCE = 3.0
"""Seconds to try again for while nobody has ever answered."""


class Client:
    """One server, and a key of its. `patience`: seconds to try again for while it is away or busy."""

    def __init__(self, url: str = DEFAULT_URL, key: str | None = None, *, patience: float = 30.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise RequestError(f"{url}: expected a server's URL, such as {DEFAULT_URL}")
        self.url: str = url.rstrip("/")
        self.patience: float = patience
        self._met = False  # before the first answer a wrong URL is likelier than a server that starts again
        if key and not (key.isascii() and key.isprintable() and " " not in key):
            raise RequestError("expected an API key of visible ASCII characters; copy it again")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT)
        except (httpx.InvalidURL, ValueError) as error:  # a port that is none
            raise RequestError(f"{url}: not a server's URL ({one_line(error)})") from error

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, kind: str, request: Json, key: str | None = None) -> Json:
        """Submit a job (`transform`, `finetune` or `evaluate`) and return it; once for each idempotency `key`."""
        return self._json("POST", f"/{kind}", json=request, headers=_once(key))

    def plan(self, kind: str, request: Json) -> Json:
        """What a `finetune`, or a `transform` that fine-tunes, would take: memory, disk, time. Nothing is done."""
        return self._json("POST", "/plan", json={kind: request}, headers=_once(), timeout=300.0)

    def job(self, job: str) -> Json:
        """Get a job. Raises `RefusedError` if there is none of this id."""
        return self._json("GET", f"/jobs/{_part(job)}")

    def jobs(self, *, limit: int = 20, after: str | None = None, status: str | None = None, kind: str | None = None,
             search: str | None = None, tags: Sequence[str] = (), sort: str | None = None) -> Json:  # fmt: skip
        """List jobs, newest first: a page as `data` and `has_more`; `after` is the last id of the page before.

        `search`: words of their names, tags, notes and requests. `tags`: those that they have all of. `sort`: another
        order, such as `-metrics.accuracy` or `settings.lr`.
        """
        query = {"limit": limit, "after": after, "status": status, "kind": kind, "q": search, "tag": list(tags) or None,
                 "sort": sort}  # fmt: skip
        return self._json("GET", "/jobs", params={name: value for name, value in query.items() if value is not None})

    def label(self, job: str, **labels: Any) -> Json:
        """Set a job's `name`, `tags`, `note`. Those left out are unchanged, None removes one."""
        return self._json("PATCH", f"/jobs/{_part(job)}", json=labels, headers=_once())

    def cancel(self, job: str) -> Json:
        """Request cancellation. A running job is cancelled once its process has ended."""
        return self._json("POST", f"/jobs/{_part(job)}/cancel", headers=_once())

    def resume(self, job: str) -> Json:
        """Queue a failed or cancelled job again; training resumes from its last resume point."""
        return self._json("POST", f"/jobs/{_part(job)}/resume", headers=_once())

    def delete(self, job: str) -> None:
        """Delete a terminal job and its files."""
        self._json("DELETE", f"/jobs/{_part(job)}")

    def share(self, job: str, *, days: float = 7, key: str | None = None) -> Json:
        """Make a link that shows a job to whoever has it: `page` below the server's URL, `secret` in place of a key."""
        return self._json("POST", f"/jobs/{_part(job)}/shares", json={"days": days}, headers=_once(key))

    def shares(self, job: str) -> Json:
        """The links to a job that are valid: `data`."""
        return self._json("GET", f"/jobs/{_part(job)}/shares")

    def unshare(self, job: str, share: str) -> None:
        """Revoke a link to a job."""
        self._json("DELETE", f"/jobs/{_part(job)}/shares/{_part(share)}")

    def stream(self, job: str, after: int = 0) -> Iterator[ServerSentEvent]:
        """Server-sent events of a job with numbers above `after`, until it has ended or the connection breaks."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        with self._http.stream("GET", f"/jobs/{_part(job)}/events", headers=headers) as answer:
            if not answer.is_success:
                answer.read()
                raise refusal(answer)
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
                    elif message.event != "progress" and event:
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
            self._fetch(file, temporary)
        return path

    def download_all(self, job: str, path: str | Path, *, force: bool = False) -> Path:
        """All of a job's files, its log and the job itself, as one zip; raises as `download`."""
        path = Path(path)
        with replacing(path, force) as temporary:
            try:
                with self._http.stream("GET", f"/jobs/{_part(job)}/archive") as answer, temporary.open("wb") as out:
                    if not answer.is_success:
                        answer.read()
                        raise refusal(answer)
                    for chunk in answer.iter_raw(CHUNK):
                        out.write(chunk)
                whole = zipfile.ZipFile(temporary).testzip() is None
            except httpx.TransportError as error:
                raise self._away(error) from error
            except zipfile.BadZipFile:
                whole = False
            if not whole:
                raise CheckpointError("what arrived is no whole zip; nothing was kept, download it again")
        return path

    def predict(self, job: str, image: str | Path | bytes, *, top: int = 5) -> Json:
        """Top predictions for an image (a path, or its bytes) by a job's model and the CNNs it came from: `models`."""
        content = image if isinstance(image, bytes) else _existing(Path(image)).read_bytes()
        return self._json("POST", f"/jobs/{_part(job)}/predict", lambda: iter((content,)), params={"top": top},
                          headers=_once() | {"Content-Type": "application/octet-stream"}, timeout=300.0)  # fmt: skip

    def look(self, job: str, image: str | Path | bytes | None = None, *, dataset: str | None = None,
             number: int | None = None, file: str | None = None) -> Json:  # fmt: skip
        """Give the explorer an image (a path, or its bytes), or one of an uploaded data set: by number, or by name.

        Returns what the model says of it, its attention layers, and the `id` that `attention` asks by.
        """
        if (image is None) == (dataset is None):
            raise RequestError("expected an image, or a dataset to take one of")
        content = b"" if image is None else image if isinstance(image, bytes) else _existing(Path(image)).read_bytes()
        asked = {"dataset": dataset, "number": number, "file": file}
        return self._json("POST", f"/jobs/{_part(job)}/attention/images", lambda: iter((content,)), timeout=300.0,
                          params={name: value for name, value in asked.items() if value is not None},
                          headers=_once() | {"Content-Type": "application/octet-stream"})  # fmt: skip

    def attention(self, job: str, image: str, y: float = 0.5, x: float = 0.5, *, checkpoint: str | None = None,
                  temperature: float | None = None) -> Json:  # fmt: skip
        """Attention maps of every head for the query nearest to a place, in shares of the height and the width.

        `image`: an id of `look`. `checkpoint`: another one of the run, of those that `look` lists (`start`, `last`).
        `temperature`: τ of all layers, instead of that of training.
        """
        asked = {"y": y, "x": x, "checkpoint": checkpoint, "temperature": temperature}
        return self._json("GET", f"/jobs/{_part(job)}/attention/{_part(image)}", timeout=300.0,
                          params={name: value for name, value in asked.items() if value is not None})  # fmt: skip

    def upload_dataset(self, path: str | Path, key: str | None = None) -> Json:
        """Upload a data set (class folders or an archive), streamed; returns it with the `id` that jobs name."""
        path = Path(path)
        if path.is_dir():
            return self._upload("/datasets", f"{path.resolve().name}.tar", lambda: tar_folder(path), key)
        return self._upload("/datasets", path.name, lambda: read_file(_existing(path)), key)

    def upload_checkpoint(self, path: str | Path, key: str | None = None) -> Json:
        """Upload a checkpoint that tcnn wrote (safetensors), streamed; returns it with the `id` that jobs name."""
        path = Path(path)
        return self._upload("/checkpoints", path.name, lambda: read_file(_existing(path)), key)

    def upload_weights(self, path: str | Path, key: str | None = None) -> Json:
        """Send a CNN's state dict, of safetensors or `torch.save`; returns what requests name in `weights`."""
        path = Path(path)
        return self._upload("/weights", path.name, lambda: read_file(_existing(path)), key)

    def _upload(self, route: str, name: str, chunks: Callable[[], Iterator[bytes]], key: str | None) -> Json:
        form, headers = Form(name), _once(key)
        headers["Content-Type"] = form.content_type
        return self._json("POST", route, headers=headers, content=lambda: form.around(chunks()), timeout=3600.0)

    def _fetch(self, file: Json, temporary: Path) -> None:
        digest, done, link = hashlib.sha256(), 0, True

        def go_on() -> None:
            nonlocal done, link
            begun = done
            headers = {"Range": f"bytes={done}-", "If-Range": f'"{file["sha256"]}"'} if done else {}
            try:
                with self._open(file["url"], headers, link) as answer:
                    if not answer.is_success:
                        answer.read()
                        if link:  # the store that it was sent to; the server can give the file, too
                            link = False
                            return
                        raise refusal(answer)
                    if done and answer.status_code != httpx.codes.PARTIAL_CONTENT:
                        raise CheckpointError("the file has changed on the server; download it again")
                    for chunk in answer.iter_raw(CHUNK):
                        out.write(chunk)
                        digest.update(chunk)
                        done += len(chunk)
            except httpx.TransportError as error:
                link = False
                if done == begun:
                    raise self._away(error) from error

        with temporary.open("wb") as out:
            while done < file["size"]:  # patience begins anew whenever something has come
                patiently(lambda: self.patience)(go_on)
        if done != file["size"] or digest.hexdigest() != file["sha256"]:
            raise CheckpointError(
                f"expected {file['size']} bytes with SHA-256 {file['sha256'][:12]}…, found {done} with "
                f"{digest.hexdigest()[:12]}…; nothing was kept, download it again"
            )

    @contextmanager
    def _open(self, url: str, headers: dict[str, str], link: bool) -> Iterator[httpx.Response]:
        """A file, or where the server sends us for it: there without its key, and with no ETag of its."""
        with self._http.stream("GET", url, headers=headers, params={"redirect": "true"} if link else None) as answer:
            if not answer.has_redirect_location:
                yield answer
                return
        there = {"Range": headers["Range"]} if headers else {}
        with httpx.stream("GET", answer.headers["location"], headers=there, timeout=TIMEOUT) as found:
            yield found

    def _json(self, method: str, route: str, content: Callable[[], Iterator[bytes]] | None = None, **options: Any,
              ) -> Json:  # fmt: skip
        """An answer, after as many tries as patience allows."""

        def ask() -> Json:
            try:
                answer = self._http.request(method, route, content=content and content(), **options)
                self._met = True
                if answer.is_success:
                    return answer.json() if answer.content else {}
            except httpx.TransportError as error:
                raise self._away(error) from error
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                raise ServerFailure(f"{self.url}: does not answer as a tcnn server ({one_line(error)})") from error
            raise refusal(answer)

        return patiently(lambda: self.patience if self._met else min(self.patience, FIRST_PATIENCE))(ask)

    def _away(self, error: Exception) -> ServerFailure:
        return ServerFailure(
            f"{self.url}: cannot be reached ({one_line(error).rstrip('.')}); is `tcnn serve` running there, and is "
            "--server or TCNN_SERVER right?",
            again=True,
        )


def _once(key: str | None = None) -> dict[str, str]:
    return {"Idempotency-Key": key or str(uuid.uuid4())}


def _named(files: list[Json], name: str) -> Json | None:
    return next((file for file in files if file["name"] == name), None)


def _part(identifier: str) -> str:
    """An id as a part of a path; anything else could name another route."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", identifier):
        raise RequestError(f"{identifier!r}: not a job's id; `tcnn jobs list` shows yours")
    return identifier


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise RequestError(
            f"{path}: expected a file or a folder, found {'something else' if path.exists() else 'nothing'}"
        )
    return path
