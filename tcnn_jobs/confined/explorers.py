"""Processes that answer what a checkpoint's heads attend to: a few of them, kept while somebody looks.

Loading a model takes seconds and a question milliseconds, so a process stays for the next one (`explorer`). This
side never loads torch. All of it belongs to one event loop.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import structlog

from tcnn.errors import EnvironmentFailure, RequestError
from tcnn_jobs.confined.process import GONE, HEAD, OK, frame, last_line
from tcnn_jobs.engines.base import environment

log = structlog.get_logger("tcnn.explorers")

MOST = 2
"""Models that are held in memory at once."""
IDLE = 300.0
"""Seconds without a question after which a process leaves."""
STARTING, ANSWERING = 120.0, 60.0
"""Seconds to load a model, and to answer: an image goes through the model once."""
MEMORY = 3 << 30
"""Bytes that a process may take beside four times the size of each of its models:"""
MODELS = 5
"""the job's own, its source, the CNN that was fine-tuned in the same way, and two checkpoints of the run."""


class ImageGone(RequestError):
    """The image was sent to a process that has left since, or has seen too many others."""


class _Child:
    """One process, which answers one question at a time."""

    def __init__(self, checkpoint: Path, tenant: str = "") -> None:
        self.checkpoint, self.tenant = checkpoint, tenant
        self.lock = asyncio.Lock()
        self.waiting = 0
        """Questions that are asked or wait to be."""
        self.used = time.monotonic()
        self.process: asyncio.subprocess.Process | None = None
        self._reason: asyncio.Task[str] | None = None
        """What the process writes to its standard error, up to its end."""

    async def ask(self, asked: dict[str, Any], content: bytes) -> bytes:
        """The answer's JSON; any failure ends the process, since its pipe could hold half an answer."""
        async with self.lock:
            try:
                return await self._ask(asked, content)
            except RequestError:
                raise
            except BaseException:
                await self.end()
                raise

    async def _ask(self, asked: dict[str, Any], content: bytes) -> bytes:
        if self.process is None or self.process.returncode is not None:
            await self._start()
        try:
            loading = STARTING if asked["do"] == "predict" else 0.0  # other models may come first
            return await asyncio.wait_for(self._exchange(frame(OK, asked, content)), loading + ANSWERING)
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            log.warning("explorer failed", error=type(error).__name__, reason=await self.end())
            raise EnvironmentFailure(
                "the explorer gave no answer: the image needs too much memory or time; send a smaller one, or try again"
            ) from error

    async def _start(self) -> None:
        if not self.checkpoint.is_file():
            raise RequestError("the checkpoint is no longer on the server; run the job again")
        memory = MEMORY + 4 * MODELS * self.checkpoint.stat().st_size
        try:
            # From the main thread, whose end is then the child's, too.
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tcnn_jobs.confined.explorer", str(os.getpid()), str(memory),
                str(self.checkpoint),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env=environment() | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}, start_new_session=True,
            )  # fmt: skip
            assert self.process.stderr is not None  # noqa: S101
            self._reason = asyncio.create_task(last_line(self.process.stderr))
            await asyncio.wait_for(self._exchange(b""), STARTING)
        except RequestError:
            await self.end()
            raise
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            log.warning("explorer did not start", error=type(error).__name__, reason=await self.end())
            raise EnvironmentFailure("the model could not be loaded here just now; try again later") from error

    async def _exchange(self, question: bytes) -> bytes:
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None  # noqa: S101
        if question:
            process.stdin.write(question)
            await process.stdin.drain()
        status, text, _ = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
        answer = await process.stdout.readexactly(text)
        if status == OK:
            return answer
        raise (ImageGone if status == GONE else RequestError)(json.loads(answer)["error"])

    async def end(self) -> str:
        """Kill the process, and read its pipes to their ends, so that nothing of it is left in the event loop.

        Returns the last line that it wrote to its standard error, "" for none.
        """
        process = self.process
        if process is None:
            return ""
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        reason = "" if self._reason is None else await self._reason
        with contextlib.suppress(RuntimeError):  # somebody still waits for an answer, and sees the end first
            await process.communicate()
        await process.wait()
        if self.process is process:
            self.process = None
        return reason


class Explorers:
    """The processes, the most recently used last."""

    def __init__(self) -> None:
        self._children: OrderedDict[str, _Child] = OrderedDict()
        self._leaving: set[_Child] = set()
        self._choosing = asyncio.Lock()
        self._sweeping: asyncio.Task[None] | None = None

    async def ask(
        self, name: str, checkpoint: Path, asked: dict[str, Any], content: bytes = b"", tenant: str = ""
    ) -> bytes:
        """Ask the process of a tenant's job, which is started if it is not there, and get JSON.

        Whoever asks takes turns: with `MOST` questions at once, each of another tenant, there is always room. Raises
        `RequestError` for what it refuses, `ImageGone` for an image that it does not keep, `EnvironmentFailure` when it
        fails or when all processes are busy with other models.
        """
        async with self._choosing:  # two that ask for the same model at once must find the same process
            if name not in self._children:
                if asked["do"] == "at":
                    raise ImageGone("the image is no longer kept; send it again")
                self._children[name] = await self._room(checkpoint, tenant)
            child = self._children[name]
            child.waiting += 1
            self._children.move_to_end(name)
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())
        try:
            return await child.ask(asked, content)
        finally:
            child.waiting -= 1
            child.used = time.monotonic()

    async def _room(self, checkpoint: Path, tenant: str) -> _Child:
        while len(self._children) >= MOST:
            idle = self._spare(tenant)
            if idle is None:
                raise EnvironmentFailure(f"{MOST} models are being looked at just now; try again in a moment")
            await self._drop(idle)
        return _Child(checkpoint, tenant)

    def _spare(self, newcomer: str) -> str | None:
        """The process that makes room for one of another model: of those that nobody asks anything one of whoever would
        have the most, the least recently used of them.
        """
        held = Counter([newcomer, *(child.tenant for child in self._children.values())])
        idle = [name for name, child in self._children.items() if not child.waiting]
        return max(idle, key=lambda name: held[self._children[name].tenant], default=None)

    async def _drop(self, name: str) -> None:
        child = self._children.pop(name)
        self._leaving.add(child)  # so that `close` knows of it, even if this is cancelled
        await child.end()
        self._leaving.discard(child)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(15.0, IDLE / 4))
            for name, child in list(self._children.items()):
                there = self._children.get(name) is child  # while another ended, it may have made room for a third
                if there and not child.waiting and time.monotonic() - child.used > IDLE:
                    await self._drop(name)

    async def close(self) -> None:
        """End all of them."""
        if self._sweeping is not None and not self._sweeping.done():
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        for child in (*self._children.values(), *self._leaving):
            await child.end()
        self._children.clear()
