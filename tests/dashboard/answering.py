"""A job whose model answers, as quickly as tests need it, and a load balancer before several servers."""

import asyncio
import io
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from houses import House
from serving import listening

from tcnn.config import ConversionConfig
from tcnn.errors import RequestError
from tcnn.files import file_digest
from tcnn.workflows.pipeline import convert_to_file
from tcnn_jobs.confined import explorers
from tcnn_jobs.confined.explorer import Explorer, answers
from tcnn_jobs.confined.process import GONE, OK, frame
from tcnn_jobs.model.jobs import Artifact, Claim, Result


def converted_in(house: House) -> str:
    """A job that has converted test_resnet with random weights, as its process does it."""
    asked = {"model": "test_resnet", "pretrained": False, "stride": "keep", "query_key": "normal"}
    job = house.submit(request=asked)
    taken = house.store.claim("worker")
    assert taken is not None and taken.id == job.id
    file = house.home.attempt(job.id, taken.claim) / "converted.safetensors"
    file.parent.mkdir(parents=True)
    made = convert_to_file("test_resnet", file, ConversionConfig(), pretrained=False)
    assert made.verification is not None
    kept = Artifact(name=file.name, path=f"{job.id}/{taken.claim}/{file.name}", size=file.stat().st_size,
                    sha256=file_digest(file))  # fmt: skip
    result = Result(checkpoint=kept, files=(kept,), verification=made.verification.model_dump(mode="json"))
    house.store.finish(Claim(job=job.id, worker="worker", number=taken.claim), result)
    return job.id


class Here(explorers._Child):
    """In the place of a process, which takes ten seconds to begin, the same answers in a thread; no bounds."""

    explorer: Explorer | None = None

    async def ask(self, asked: dict[str, Any], content: bytes) -> bytes:
        async with self.lock:
            return await asyncio.to_thread(self._answer, frame(OK, asked, content))

    def _answer(self, question: bytes) -> bytes:
        self.explorer = self.explorer or Explorer(str(self.checkpoint))
        ((status, said),) = answers(self.explorer, io.BytesIO(question))
        if status == OK:
            return json.dumps(said).encode()
        raise (explorers.ImageGone if status == GONE else RequestError)(said["error"])


@contextmanager
def balanced(*servers: str) -> Iterator[tuple[str, list[tuple[str, str, int]]]]:
    """A load balancer that gives every server its turn, and what of the explorer passed: (method, server, status).

    Only the explorer's requests take turns, so that it is plain which server has which; all others go to the first.
    """
    passed: list[tuple[str, str, int]] = []
    turns = itertools.cycle(servers)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        exploring = "/attention/" in scope["path"] and scope["path"].startswith("/jobs/")
        server = next(turns) if exploring else servers[0]
        url = f"{server}{scope['raw_path'].decode()}?{scope['query_string'].decode()}".rstrip("?")
        headers = [pair for pair in scope["headers"] if pair[0] not in (b"host", b"content-length")]
        async with (
            httpx.AsyncClient(timeout=120, trust_env=False) as client,
            client.stream(scope["method"], url, headers=headers, content=body) as answer,
        ):
            if exploring:
                passed.append((scope["method"], server, answer.status_code))
            told = [pair for pair in answer.headers.raw if pair[0].lower() != b"transfer-encoding"]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": told})
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    with listening(app) as url:  # type: ignore[arg-type]  # any ASGI app would do
        yield url, passed
