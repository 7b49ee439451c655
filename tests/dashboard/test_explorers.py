"""The processes behind the attention explorer: how many there are, what a crash and a lost image look like."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from data_pictures import POSTSCRIPT, ghostscript
from structlog.testing import capture_logs
from tiny_runs import colours

from tcnn.config import ConversionConfig
from tcnn.errors import EnvironmentFailure, RequestError
from tcnn.workflows.pipeline import convert_to_file
from tcnn_jobs.confined import explorers
from tcnn_jobs.confined.explorers import Explorers, ImageGone
from tcnn_jobs.confined.views import picked


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "model.safetensors"
    convert_to_file("test_resnet", file, ConversionConfig(), pretrained=False)
    return file


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return (colours(tmp_path_factory.mktemp("images"), 1) / "red" / "0.png").read_bytes()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def exploring(script: Callable[[Explorers], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        own = Explorers()
        try:
            await script(own)
        finally:
            await own.close()

    asyncio.run(main())


def pids(own: Explorers) -> dict[str, int]:
    return {name: child.process.pid for name, child in own._children.items() if child.process is not None}


@pytest.mark.slow
def test_a_crash_is_one_line_and_the_next_picture_works(checkpoint: Path, picture: bytes) -> None:
    async def script(own: Explorers) -> None:
        image = json.loads(await own.ask("a", checkpoint, {"do": "open"}, picture))["id"]
        asked = {"do": "at", "image": image, "y": 0.5, "x": 0.5}
        assert json.loads(await own.ask("a", checkpoint, asked))["layers"]
        with pytest.raises(RequestError, match="cannot be read as an image"):
            await own.ask("a", checkpoint, {"do": "open"}, b"no picture")
        pid = pids(own)["a"]
        os.kill(pid, signal.SIGSTOP)  # it says nothing any more
        waiting = asyncio.create_task(own.ask("a", checkpoint, asked))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFailure, match="no answer"):
            await waiting
        with pytest.raises(ImageGone):
            await own.ask("a", checkpoint, asked)
        assert json.loads(await own.ask("a", checkpoint, {"do": "open"}, picture))["id"] != image
        last = pids(own)["a"]
        await own.close()
        assert not alive(last)

    exploring(script)


@pytest.mark.slow
def test_no_picture_starts_another_program(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, called = ghostscript(tmp_path)
    monkeypatch.setenv("PATH", search)

    async def script(own: Explorers) -> None:
        for asked in ({"do": "open"}, {"do": "predict", "others": [], "top": 5}):
            with pytest.raises(RequestError, match=r"cannot be read as an image .not an image in one of the formats"):
                await own.ask("a", checkpoint, asked, POSTSCRIPT)

    exploring(script)
    assert not called.exists()


def test_the_log_says_why_a_process_did_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can read what it prints but the process that started it; of much that is printed the end is kept."""
    (tmp_path / "torch.py").write_text(
        "import sys\nsys.stderr.write('a warning, and another\\n' * 50_000)\nraise ImportError('libtorch.so is gone')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def script(own: Explorers) -> None:
        with capture_logs() as logged, pytest.raises(EnvironmentFailure, match="could not be loaded here just now"):
            await own.ask("a", tmp_path / "torch.py", {"do": "open"}, b"")  # any file: it is not come to
        (line,) = logged
        assert line["event"] == "explorer did not start" and line["reason"] == "ImportError: libtorch.so is gone"
        assert not pids(own)

    exploring(script)


def test_who_took_an_idle_ones_place_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one that nobody asks anything ends, another is dropped to make room, and a new one has its name."""
    monkeypatch.setattr(explorers, "IDLE", 0.01)

    async def child() -> Any:
        made = explorers._Child(tmp_path)
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
        made.process = await asyncio.create_subprocess_exec("sleep", "60", **pipes)
        made.used = float("-inf")
        return made

    async def script(own: Explorers) -> None:
        first, second, third = [await child() for _ in range(3)]
        own._children.update(a=first, b=second)
        own._sweeping = asyncio.create_task(own._sweep())
        while "a" in own._children:
            await asyncio.sleep(0)
        own._leaving.add(own._children.pop("b"))
        third.waiting = 1
        own._children["b"] = third
        while first.process is not None:
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert own._children == {"b": third} and third.process is not None and alive(third.process.pid)
        assert not own._sweeping.done()

    exploring(script)


def test_whoever_has_the_most_models_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that asks counts with what it asks for: so none of another's goes for a second one of its own."""

    async def answer(child: Any, asked: dict[str, Any], content: bytes) -> bytes:
        return b"{}"

    async def script(own: Explorers) -> None:
        for name, expected in (
            ("ann 1", ["ann 1"]), ("ann 2", ["ann 1", "ann 2"]), ("bob 1", ["ann 2", "bob 1"]),
            ("ann 3", ["bob 1", "ann 3"]), ("eve 1", ["ann 3", "eve 1"]),
        ):  # fmt: skip
            await own.ask(name, tmp_path, {"do": "open"}, tenant=name[:3])
            assert list(own._children) == expected

    monkeypatch.setattr(explorers._Child, "ask", answer)
    exploring(script)


def test_an_image_of_a_data_set_by_its_name(tmp_path: Path) -> None:
    """With its class's folder; of two parts the one that nothing was trained on; nothing outside of the set."""
    for name in ("train/red/0.png", "val/red/0.png", "val/blue/00.png"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_bytes(b"")
    (tmp_path / "0.png").write_bytes(b"")
    for asked, found in (
        ("red/0.png", "val/red/0.png"), ("train/red/0.png", "train/red/0.png"), ("00.png", "val/blue/00.png"),
    ):  # fmt: skip
        assert picked(tmp_path / "set", 0, asked) == tmp_path / "set" / found
    for asked in ("../0.png", str(tmp_path / "0.png"), "", "red", "red/1.png"):
        with pytest.raises(RequestError, match="has no image"):
            picked(tmp_path / "set", 0, asked)


@pytest.mark.slow
def test_no_more_models_than_allowed(checkpoint: Path, picture: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorers, "MOST", 1)
    monkeypatch.setattr(explorers, "IDLE", 0.4)

    async def script(own: Explorers) -> None:
        first = asyncio.create_task(own.ask("a", checkpoint, {"do": "open"}, picture))
        await asyncio.sleep(0.1)
        with pytest.raises(EnvironmentFailure, match="try again"):
            await own.ask("b", checkpoint, {"do": "open"}, picture)
        await first
        before = pids(own)["a"]
        await own.ask("b", checkpoint, {"do": "open"}, picture)
        assert list(pids(own)) == ["b"]
        assert not alive(before)
        pid = pids(own)["b"]
        while alive(pid):  # nobody asks anything, so it leaves
            await asyncio.sleep(0.05)
        with pytest.raises(ImageGone):
            await own.ask("b", checkpoint, {"do": "at", "image": "img_0", "y": 0, "x": 0})

    exploring(script)


@pytest.mark.slow
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, picture: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"0" * 100)

    async def script(own: Explorers) -> None:
        for name in ("model", "absent"):
            with pytest.raises(RequestError) as refused:
                await own.ask(name, tmp_path / f"{name}.safetensors", {"do": "open"}, picture)
            assert str(tmp_path) not in str(refused.value)

    exploring(script)
