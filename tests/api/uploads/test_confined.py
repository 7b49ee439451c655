"""What looks at strangers' files has little memory, little time, no secrets, and dies with the server."""

import asyncio
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from data_pictures import POSTSCRIPT, ghostscript
from houses import processes_of, wait_for
from structlog.testing import capture_logs

from tcnn.errors import EnvironmentFailure, RequestError, StorageError
from tcnn_api.uploading import gallery
from tcnn_jobs.confined.process import ask

CHECKS = """
import errno, os, time
from pathlib import Path
from tcnn.errors import CheckpointError, EnvironmentFailure, StorageError

def greet(name): return {"hello": name, "secrets": [key for key in os.environ if "TCNN_API_KEY" in key]}
def refuse(): raise CheckpointError("it is not whole")
def lack(): raise EnvironmentFailure("too many open files")
def fill(): raise StorageError("no space left")
def grow(): return {"size": len(bytearray(1 << 30))}
def spin():
    while True: pass
def sleep(folder): time.sleep(60)
def crash(): os.abort()
def err(): return {}["no such key"]
"""


@pytest.fixture(autouse=True)
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_checks.py").write_text(CHECKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TCNN_API_KEYS", "tenant:key")


def run(function: str, *arguments: str, seconds: int = 30) -> dict[str, Any]:
    return asyncio.run(ask("some_checks", function, *arguments, memory=400 << 20, seconds=seconds))


def test_an_answer_without_secrets() -> None:
    assert run("greet", "you") == {"hello": "you", "secrets": []}


def test_refusals() -> None:
    with pytest.raises(RequestError, match="it is not whole"):
        run("refuse")
    with pytest.raises(StorageError, match="no space left"):
        run("fill")
    with pytest.raises(EnvironmentFailure, match="too many open files") as caught:
        run("lack")
    assert not isinstance(caught.value, StorageError)
    with pytest.raises(RequestError, match="more than 400 MiB of memory"):
        run("grow")
    with pytest.raises(RequestError, match="checking it needs"):
        run("crash")


def test_the_log_says_what_a_check_died_of() -> None:
    with capture_logs() as logged, pytest.raises(RequestError, match="checking it needs"):
        run("err")
    (line,) = logged
    assert line["function"] == "some_checks.err" and line["reason"] == "KeyError: 'no such key'"


def test_time_is_bounded(tmp_path: Path) -> None:
    """Of what computes and of what waits; both at once."""

    async def both() -> list[object]:
        asked = [("spin", ()), ("sleep", (str(tmp_path),))]
        calls = [ask("some_checks", name, *given, memory=400 << 20, seconds=1) for name, given in asked]
        return await asyncio.gather(*calls, return_exceptions=True)

    started = time.monotonic()
    for refusal in asyncio.run(both()):
        assert isinstance(refusal, RequestError)
        assert re.search(r"more than 1 s|too long", str(refusal))
    assert time.monotonic() - started < 20
    assert processes_of(tmp_path) == []


def test_it_ends_with_whoever_asked(tmp_path: Path) -> None:
    script = (
        "import asyncio\nfrom tcnn_jobs.confined.process import ask\n"
        f"asyncio.run(ask('some_checks', 'sleep', {str(tmp_path)!r}, memory=1 << 30, seconds=60))"
    )
    server = subprocess.Popen([sys.executable, "-c", script])
    wait_for(lambda: [pid for pid in processes_of(tmp_path) if pid != server.pid], 20)
    server.send_signal(signal.SIGKILL)
    server.wait()
    wait_for(lambda: not processes_of(tmp_path), 20)


def test_no_picture_starts_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, called = ghostscript(tmp_path)
    monkeypatch.setenv("PATH", search)
    innocent = tmp_path / "set" / "a" / "innocent.png"
    innocent.parent.mkdir(parents=True)
    innocent.write_bytes(POSTSCRIPT)
    limits: dict[str, Any] = {"memory": gallery.MEMORY, "seconds": gallery.SECONDS}
    found = asyncio.run(ask("tcnn_api.uploading.gallery", "survey", str(tmp_path / "set"), **limits))
    (unreadable,) = found["unreadable_images"]
    assert unreadable["file"] == "a/innocent.png"
    assert unreadable["reason"].startswith("not an image in one of the formats JPEG, PNG, ")
    wanted = '{"label": null, "split": null, "start": 0, "limit": 9}'
    page = asyncio.run(ask("tcnn_api.uploading.gallery", "thumbnails", str(tmp_path / "set"), wanted, **limits))
    assert page["data"][0]["reason"] == unreadable["reason"]
    assert not called.exists()
