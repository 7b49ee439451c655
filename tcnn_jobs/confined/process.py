"""Sandboxed process that examines uploads: limits on memory and CPU time, and an environment without secrets.

`ask` runs `FUNCTION(*arguments)` of a module in such a process and returns its JSON object. A bomb kills that process
and not the service, and the requests that wait beside it never wait for it.

A process that answers more than once (`explorer`) hears and says frames: a status, a JSON object, and bytes after it.
"""

import contextlib
import json
import os
import resource
import struct
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO

from tcnn.errors import EnvironmentFailure, RequestError, StorageError, TcnnError, shorten
from tcnn.processes import QuickExit, die_with_parent
from tcnn_jobs.engines.base import environment
from tcnn_jobs.errors import BytesExceeded

if TYPE_CHECKING:
    import asyncio  # the child has no use for it

HEAD = struct.Struct(">BII")
"""Status, and the lengths of the JSON and of the bytes."""
OK, REFUSED, GONE = 0, 1, 2
"""Done; a mistake of whoever asked; what was asked about is no longer there."""
KEPT = 4096
"""Bytes of the end of standard error that are kept, however much a process writes."""
GIVEN_UP = 9
"""The exit code of a child that ran out of memory and cannot say so any more."""
_KINDS: dict[str, type[TcnnError]] = {
    "request": RequestError, "quota": BytesExceeded, "storage": StorageError, "environment": EnvironmentFailure,
}  # fmt: skip


def frame(status: int, said: Any, content: bytes = b"") -> bytes:
    """Encode a frame, as `read` decodes it."""
    text = json.dumps(said).encode()
    return HEAD.pack(status, len(text), len(content)) + text + content


def write(out: BinaryIO, status: int, said: Any) -> None:
    """Write a frame and flush it."""
    out.write(frame(status, said))
    out.flush()


def read(source: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Read the next frame, or None at the end of the pipe."""
    head = source.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    _, text, content = HEAD.unpack(head)
    return json.loads(source.read(text)), source.read(content)


async def last_line(stream: "asyncio.StreamReader") -> str:
    """The last line of a stream that is not empty, on which an exception's traceback ends; "" where there is none.

    It says why a process failed, to the log of the service that started it. Reads to the stream's end, so that a
    process never waits for room to write.
    """
    end = b""
    while part := await stream.read(KEPT):
        end = (end + part)[-KEPT:]
    lines = end.decode("utf-8", "replace").strip().splitlines()
    return shorten(lines[-1]) if lines else ""


async def ask(module: str, function: str, *arguments: str, memory: int, seconds: int) -> dict[str, Any]:
    """The answer of a function that may need so many bytes and seconds; call it from the thread that lives longest.

    Raises `RequestError` for what the function refuses and for what needs more than it may have, `BytesExceeded` for
    what the tenant may not store, `StorageError` for a full disk, `EnvironmentFailure` when the process could not be
    started.
    """
    import asyncio  # the child has no use for these, and would spend half of its start on them

    import structlog

    limits = str(os.getpid()), str(memory), str(seconds)
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tcnn_jobs.confined.process", *limits, module, function, *arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environment() | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
    except OSError as error:
        raise EnvironmentFailure("the upload cannot be checked just now; try again later") from error
    assert child.stdout is not None and child.stderr is not None  # noqa: S101
    try:
        output, reason = await asyncio.wait_for(asyncio.gather(child.stdout.read(), last_line(child.stderr)), seconds)
        await child.wait()
    except TimeoutError:
        raise RequestError(f"checking it takes more than {seconds} s; send less at once") from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if not output and reason:
        structlog.get_logger("tcnn.confined").warning("a check failed", function=f"{module}.{function}", reason=reason)
    return _answer(output, memory)


def _answer(output: bytes, memory: int) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(output)
    except ValueError:
        raise RequestError(f"checking it needs more than {memory >> 20} MiB of memory, or too long") from None
    if "error" in said:
        raise _KINDS[said["kind"]](said["error"])
    return said


def confine(memory: int, seconds: int, parent: int | None = None) -> None:
    """Limit this process: bytes of its own data (mapped libraries are free), seconds of CPU time, and a parent."""
    die_with_parent(parent=parent)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)


def main(parent: str, memory: str, seconds: str, module: str, function: str, *arguments: str) -> None:
    """Entry point of the sandboxed process: prints one JSON object."""
    confine(int(memory), int(seconds), int(parent))
    try:
        answer = getattr(import_module(module), function)(*arguments)
    except StorageError as error:
        answer = {"kind": "storage", "error": str(error)}
    except EnvironmentFailure as error:
        answer = {"kind": "environment", "error": str(error)}
    except BytesExceeded as error:
        answer = {"kind": "quota", "error": str(error)}
    except TcnnError as error:
        answer = {"kind": "request", "error": str(error)}
    except MemoryError:
        os._exit(GIVEN_UP)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    leave = QuickExit()
    main(*sys.argv[1:])
    leave(0)
