"""A server that leaves while requests are under way: they end as if their client had left, and nothing stays behind."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from anyio import to_thread
from fastapi import Request
from sse_starlette.sse import AppStatus

from tcnn_api import serve
from tcnn_api.app import create_app
from tcnn_api.connections import PatientProtocol
from tcnn_api.routes.uploads import datasets
from tcnn_api.settings import load
from tcnn_api.uploading import forms
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.confined.room import Rooms

PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * (2 << 20)
END = b"\r\n--b--\r\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that hangs up at once, in a process that goes on after it."""
    interval = sys.getswitchinterval()
    monkeypatch.setattr(serve, "HANGING_UP", 0.1)
    monkeypatch.setattr(serve, "gc", SimpleNamespace(freeze=lambda: None))
    yield
    sys.setswitchinterval(interval)
    AppStatus.should_exit = False  # it ends the event streams of the process, and would those of every later server


async def leave(home: Path, body: bytes, announced: int, busy: Callable[[], bool], twice: bool = False) -> bytes:
    """Begin an upload, tell the server to leave when it is at it, once or twice; returns what the client got."""
    listener = serve.listen("127.0.0.1", 0)
    config = uvicorn.Config(
        create_app(load(home=home)), http=PatientProtocol, log_config=None, access_log=False, lifespan="on",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = serve.Server(config, serve.address("127.0.0.1", listener), None)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    async with asyncio.timeout(60):
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        head = f"POST /datasets HTTP/1.1\r\nHost: localhost\r\nContent-Length: {announced}\r\n"
        writer.write(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n".encode() + body)
        while not busy():
            await asyncio.sleep(0.01)
        server.handle_exit(signal.SIGINT, None)
        if twice:
            server.handle_exit(signal.SIGINT, None)
        await serving
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What uvicorn says."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("uvicorn.error").addHandler(handler)
    yield lines
    logging.getLogger("uvicorn.error").removeHandler(handler)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("twice", [False, True], ids=["SIGTERM", "a second one"])
@pytest.mark.parametrize("during", ["receiving", "examining"])
def test_nothing_of_an_upload_stays(
    tmp_path: Path,
    during: str,
    twice: bool,
    monkeypatch: pytest.MonkeyPatch,
    said: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither files, nor a traceback in the log. Examining goes on after the connection is closed, and is cancelled."""
    asked: list[str] = []

    async def ask(*given: Any, **more: Any) -> None:
        asked.append("asked")
        await asyncio.sleep(60)

    monkeypatch.setattr(datasets, "ask", ask)
    incoming = tmp_path / "home/incoming"

    def receiving() -> bool:
        return any(path.stat().st_size for path in incoming.glob("*/file"))

    if during == "receiving":
        got = asyncio.run(leave(tmp_path / "home", PART, 900_000_000, receiving, twice))
    else:
        got = asyncio.run(leave(tmp_path / "home", PART + END, len(PART + END), lambda: bool(asked), twice))
    assert got == b""
    assert list(incoming.iterdir()) == []
    assert not [line for line in said if "ASGI" in line]
    assert "Traceback" not in "".join(capsys.readouterr())


def test_a_cancelled_clean_up_is_done_all_the_same(tmp_path: Path) -> None:
    """As the process ends, what has been cancelled is cancelled once more."""
    home = Home(tmp_path).create()

    async def stream() -> AsyncIterator[bytes]:
        yield PART
        await asyncio.sleep(60)

    async def run(call: Callable[..., Any], *given: Any) -> Any:
        return call(*given)

    async def upload() -> None:
        given = {"content-type": "multipart/form-data; boundary=b"}
        request = cast(Request, SimpleNamespace(headers=given, stream=stream))
        with Rooms(home.incoming, 0).enter("alice", "dataset") as room:
            async with forms.received(request, home, room, cast(Callable[..., Awaitable[Any]], run)):
                raise AssertionError("it never ends")

    async def story() -> None:
        await to_thread.run_sync(list)  # so that there is a thread
        task = asyncio.create_task(upload())
        await asyncio.sleep(0.05)
        assert len(list(home.incoming.iterdir())) == 1
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert list(home.incoming.iterdir()) == []

    asyncio.run(story())
