"""`tcnn serve` as a process: it says where it is, keeps a worker, leaves when told to, and refuses in one line."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import uvicorn
from structlog.testing import capture_logs

from tcnn.cli.main import main
from tcnn_api import serve
from tcnn_api.serve import listen, tell_of_roots
from tcnn_api.settings import ApiSettings, load

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="NOT TESTED: processes, for lack of /proc")
COMMAND = [sys.executable, "-m", "tcnn", "serve", "--port", "0"]


def environment(home: Path, **more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("TCNN_")}
    return {**own, "TCNN_HOME": str(home), "OMP_NUM_THREADS": "1", "TCNN_GRACE": "5", **more}


@contextmanager
def serving(home: Path, *options: str, **more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its URL."""
    with (home.parent / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [*COMMAND, *options], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(home, **more)
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"tcnn is at (http://\S+) \(what it can do: \1/docs\); Ctrl-C stops it\n", line)
            assert found, (line, (home.parent / "stderr").read_text())
            yield process, found[1]
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def eventually(what: Callable[[], Any], seconds: float = 90) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


@needs_proc
def test_a_server_without_a_worker(tmp_path: Path) -> None:
    with serving(tmp_path / "home", "--no-worker", "--log-format", "console") as (process, url):
        answer = httpx.post(f"{url}/transform", json={"model": "resnet18"}, trust_env=False)
        assert answer.status_code == 202
        assert httpx.get(f"{url}/openapi.json", trust_env=False).status_code == 200
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "python" in maps and "libtorch" not in maps, "a server that has no worker has no use for it"
        assert not children(process.pid)
        streams = [f"{url}/jobs", f"{url}/jobs/{answer.json()['id']}/events"]
        with ExitStack() as opened:
            options: dict[str, Any] = {"headers": {"Accept": "text/event-stream"}, "timeout": 60, "trust_env": False}
            lines = [opened.enter_context(httpx.stream("GET", stream, **options)).iter_lines() for stream in streams]
            assert [next(line).partition(":")[0] for line in lines] == ["event", "id"]
            process.send_signal(signal.SIGTERM)
            assert [list(line)[-1] for line in lines] == ["", ""], "whole messages, and then the end"
        assert process.wait(60) == 0
        assert process.stdout is not None and process.stdout.read() == ""
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/healthz", trust_env=False)
    log = (tmp_path / "stderr").read_text()
    assert re.search(rf"request .*job={answer.json()['id']}", log)
    assert "Traceback" not in log and "ASGI" not in log


@needs_proc
@pytest.mark.parametrize("stdout", ["full", pytest.param("closed", marks=pytest.mark.slow)])
def test_a_server_whose_first_line_cannot_be_written_serves(tmp_path: Path, stdout: str) -> None:
    """As one whose log is on a full disk, or whose reader has left; what was to be said is in the log."""
    log, (reading, out) = tmp_path / "stderr", os.pipe()
    os.close(reading)
    if stdout == "full":
        os.dup2(full := os.open("/dev/full", os.O_WRONLY), out)
        os.close(full)
    with log.open("w") as errors:
        command, env = [*COMMAND, "--no-worker"], environment(tmp_path / "home")
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=env)
    os.close(out)
    try:
        (url,) = eventually(lambda: re.findall(r"tcnn is at (http://\S+) ", log.read_text()))
        assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow  # three processes load torch; how it is started, and again, is shown by a script below
@needs_proc
def test_a_worker_that_dies_is_started_again_and_leaves_with_the_server(tmp_path: Path) -> None:
    with serving(tmp_path / "home", "--slots", "1") as (process, url):
        first = eventually(lambda: children(process.pid))
        os.kill(first[0], signal.SIGKILL)
        second = eventually(lambda: [pid for pid in children(process.pid) if pid not in first])
        metrics = f"{url}/metrics"
        eventually(lambda: "tcnn_worker_slots{" in httpx.get(metrics, trust_env=False).text)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert not Path(f"/proc/{second[0]}").exists()


def test_a_worker_that_cannot_be_started_is_started_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fork() may fail for want of processes or memory, which come back."""
    start = asyncio.create_subprocess_exec
    refused: list[Any] = []

    async def sometimes(*command: str, **options: Any) -> asyncio.subprocess.Process:
        if len(refused) < 2:
            refused.append(command)
            raise BlockingIOError("Resource temporarily unavailable")
        return await start(sys.executable, "-S", "-c", "import time; time.sleep(60)", **options)

    async def story() -> None:
        worker = serve.WorkerProcess(ApiSettings(home=tmp_path, grace=0))
        minding = asyncio.create_task(worker.run())
        async with asyncio.timeout(60):
            while worker._process is None:
                assert not minding.done()
                await asyncio.sleep(0.01)
            process = worker._process
            process.kill()
            while worker._process is process:
                await asyncio.sleep(0.01)
            await worker.stop(cast(uvicorn.Server, SimpleNamespace(force_exit=True)))
            await minding

    monkeypatch.setattr(asyncio, "create_subprocess_exec", sometimes)
    monkeypatch.setattr(serve, "FIRST_PAUSE", 0.01)
    asyncio.run(story())
    assert len(refused) == 2
    assert all(command[1:4] == ("-m", "tcnn", "worker") for command in refused)


@pytest.mark.slow
@needs_proc
def test_a_worker_does_not_outlive_a_killed_server(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as (process, url):
        worker = eventually(lambda: children(process.pid))[0]
        eventually(lambda: "tcnn_worker_slots{" in httpx.get(f"{url}/metrics", trust_env=False).text)
        process.kill()
        process.wait()
        eventually(lambda: not Path(f"/proc/{worker}").exists())
        assert not Path(f"/proc/{worker}").exists()


@needs_proc
@pytest.mark.slow
def test_an_open_stream_does_not_keep_the_server(tmp_path: Path) -> None:
    with serving(tmp_path / "home", "--no-worker") as (process, url):
        job = httpx.post(f"{url}/transform", json={"model": "resnet18"}, trust_env=False).json()["id"]
        stream = httpx.stream(
            "GET", f"{url}/jobs/{job}/events", headers={"Accept": "text/event-stream"}, timeout=60, trust_env=False
        )
        with stream as answer:
            lines = answer.iter_lines()
            assert next(lines) == "id: 1"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_answers_do_not_wait_for_acknowledgements(host: str) -> None:
    """Head and body are written apart; with Nagle's algorithm the second would wait 40 ms for the first."""
    with closing(listen(host, 0)) as listener, socket.create_connection(listener.getsockname()[:2]):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line of a server that does not start."""
    for name in os.environ:
        if name.startswith("TCNN_"):
            monkeypatch.delenv(name)

    def refuse(*options: str, code: int, **variables: str) -> str:
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
            for name, value in ({"TCNN_HOME": str(tmp_path / "home")} | variables).items():
                patch.setenv(name, value)
            main(["serve", *(() if "--port" in options else ("--port", "0")), "--no-worker", *options])
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (code, ""), err
        assert err.startswith("error: ")
        assert err.count("\n") == 1, err
        return err

    return refuse


def test_what_cannot_be_served_is_one_line(tmp_path: Path, refuse: Callable[..., str]) -> None:
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}: address already in use" in refuse("--port", port, code=4)
    assert "without API keys" in refuse("--host", "0.0.0.0", code=2)
    assert "not an address" in refuse("--host", "no.such.host.invalid", code=2, TCNN_API_KEYS="a:key-of-a")
    assert "TCNN_HOME" in refuse("--home", str(tmp_path / "file" / "x"), code=4)
    assert "TCNN_LEASE" in refuse(code=2, TCNN_LEASE="soon")
    assert "TCNN_HOME=~nosuchuser/x: expected a directory" in refuse(code=2, TCNN_HOME="~nosuchuser/x")
    assert "TCNN_MAX_BODY_MB" in refuse(code=2, TCNN_MAX_BODY_MB="inf")
    assert "TCNN_API_KEYS" in refuse(code=2, TCNN_API_KEYS="nonsense")
    assert "TCNN_DATABASE_URL" in refuse("--database-url", "mysql://x/y", code=2)
    assert "TCNN_LOG_FORMAT" in refuse("--log-format", "xml", code=2)


@pytest.mark.slow  # it is waited for
def test_a_database_that_is_not_there_is_one_line(refuse: Callable[..., str]) -> None:
    assert "127.0.0.1" in refuse("--database-url", "postgresql://nobody@127.0.0.1:1/none", code=4)


def test_a_root_of_data_sets_that_is_not_there_is_warned_of(tmp_path: Path) -> None:
    with capture_logs() as logged:
        tell_of_roots(load(home=tmp_path, dataset_roots=f"{tmp_path},{tmp_path / 'nothing'},~nosuchuser/x"))
    assert {line["log_level"] for line in logged} == {"warning"}
    assert [line["path"] for line in logged] == [str(tmp_path / "nothing"), "~nosuchuser/x"]
