"""The Dockerfile without Docker: its build, its health check, its entry point, and one job.

    python deploy/install_test.py

The build stage's lines are run as they stand, with /src, /opt/tcnn, /dist and /data in a temporary room: the wheel goes
into a clean virtual environment, and the service runs from there as a user who is not root. Debian's packages and the
user's account are what is left out. Needs pip's index, or uv's cache of it. Exit code 0 when everything held.
"""

import contextlib
import hashlib
import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dockerfile import environment, stages, words

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("/src", "/opt/tcnn", "/dist", "/data")
NOBODY = 65534
JOB = {"model": "test_resnet", "pretrained": False}
LONGEST = 120.0
"""Seconds that a job, or a server's start or end, may take."""


class Room:
    """A folder that stands for the image's root, and the environment that its processes get."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.build, self.runtime = stages(ROOT / "Dockerfile")
        self.data = path / "data"
        self.key = secrets.token_hex(16)
        self.port = free_port()

    def moved(self, text: str) -> str:
        """Text in which the image's folders are ours."""
        for place in PLACES:
            text = re.sub(rf"(?<![\w.-]){place}(?![\w-])", str(self.path) + place, text)
        return text

    def environment(self, **more: str) -> dict[str, str]:
        """Of the image's processes."""
        given = {name: self.moved(value) for name, value in environment(self.runtime).items()}
        given["PATH"] = given["PATH"].replace("$PATH", os.defpath)
        kept = {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ}
        mine = {"TCNN_HOST": "127.0.0.1", "TCNN_PORT": str(self.port), "TCNN_API_KEYS": f"test:{self.key}"}
        # Only root could write compiled files beside the modules, as it does in the image.
        return {**given, "PYTHONPYCACHEPREFIX": str(self.path / "compiled"), **kept, **mine, **more}

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        """The image's entry point as a user who is not root; its log is `log`."""
        command = words(self.runtime, "ENTRYPOINT")
        command = [*command[command.index("tcnn") :], *(arguments or words(self.runtime, "CMD"))]
        command[0] = str(self.path / "opt/tcnn/bin" / command[0])
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, env=self.environment(**more), cwd=self.path, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, **unprivileged(),
            )  # fmt: skip

    @property
    def log(self) -> Path:
        """What the service has said."""
        return self.path / "log.txt"


def unprivileged() -> dict[str, Any]:
    """For subprocess: a user who is not root, if we are."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def interpreter() -> str:
    """A Python that a user who is not root may run: root's own may lie in root's home."""
    for python in (str(Path(sys.executable).resolve()), "/usr/bin/python3", "/usr/local/bin/python3"):
        with contextlib.suppress(OSError):
            question = [python, "-c", "import sys, venv; sys.exit(sys.version_info < (3, 11))"]
            if subprocess.run(question, capture_output=True, check=False, cwd="/", **unprivileged()).returncode == 0:
                return python
    raise AssertionError("expected a Python 3.11 or newer that users other than root may run, found none")


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def install(room: Room) -> None:
    """The build stage, line by line."""
    tools = room.path / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    ours = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    # Links instead of copies, and nothing compiled in advance: minutes that prove nothing.
    given = environment(room.build) | {"UV_COMPILE_BYTECODE": "0", "UV_LINK_MODE": "hardlink"}
    given["UV_PYTHON"] = interpreter()
    given["PATH"] = f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}"
    where = room.path
    for name, text in room.build:
        if name == "WORKDIR":
            where = Path(room.moved(text))
            where.mkdir(parents=True)
        elif name == "COPY":
            *sources, target = text.split()
            for source in sources:
                copy(ROOT / source, where / target / source if target.endswith("/") else where / target)
        elif name == "RUN":
            command = room.moved(re.sub(r"--mount=\S+ *", "", text))
            with room.log.open("ab") as log:
                subprocess.run(
                    ["bash", "-euc", command], cwd=where, env={**ours, **given}, check=True, stdout=log, stderr=log
                )  # fmt: skip


def copy(source: Path, target: Path) -> None:
    """A file or a folder of the build's context."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.py[cod]"))
    else:
        shutil.copyfile(source, target)


def check_wheel(room: Room) -> None:
    """Whatever is in the packages' folders must be in the wheel: migrations, catalogue, py.typed, pages."""
    (wheel,) = (room.path / "dist").glob("tcnn-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    source = room.path / "src"
    wanted = {
        str(file.relative_to(source))
        for package in ("tcnn", "tcnn_jobs", "tcnn_api")
        for file in (source / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    expect(wanted <= held, f"the wheel lacks {sorted(wanted - held)}; see package-data in pyproject.toml")
    expect("tcnn_jobs/migrations/env.py" in held and "tcnn/zoo/catalogue.json" in held, "the wheel is empty")


def check_refusal(room: Room) -> None:
    """A container that was given no keys must not serve everybody."""
    process = room.start(TCNN_HOST="0.0.0.0", TCNN_API_KEYS="")
    expect(process.wait(LONGEST) == 2, f"without keys: expected exit code 2, found {process.returncode}")


@contextlib.contextmanager
def service(room: Room, *arguments: str) -> Iterator[None]:
    """The service, ready within the block; after it SIGTERM, exit code 0, and no process left."""
    process = room.start(*arguments)
    try:
        wait_for(lambda: process.poll() is not None or answers(room), "the server to be ready")
        expect(process.poll() is None, "the server ended")
        expect(healthy(room), "the image's health check says no")
        yield
        process.send_signal(signal.SIGTERM)
        expect(process.wait(LONGEST) == 0, f"after SIGTERM: expected exit code 0, found {process.returncode}")
        expect(not healthy(room), "the image's health check says yes without a server")
        expect(not left_running(room), f"processes are left: {left_running(room)}")
    finally:
        for pid in (process.pid, *left_running(room)) if process.poll() is None else left_running(room):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def healthy(room: Room) -> bool:
    """What the image's health check says."""
    python, *arguments = words(room.runtime, "HEALTHCHECK")
    command = [str(room.path / "opt/tcnn/bin" / python), *arguments]
    environment = room.environment()
    return not subprocess.run(command, env=environment, capture_output=True, check=False, **unprivileged()).returncode


def left_running(room: Room) -> list[int]:
    """Processes that were started from the room."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if str(room.path).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def answers(room: Room) -> bool:
    """Whether the server is ready for requests."""
    try:
        return call(room, "GET", "/readyz")[0] == 200
    except OSError:
        return False


def call(room: Room, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    """Status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", room.port, timeout=30)
    headers = {"Authorization": f"Bearer {room.key}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    with contextlib.closing(connection):
        return answer.status, answer.read()


def check_pages(room: Room) -> None:
    """The pages for people, with all that they load."""
    for path in ("/", "/docs", "/static/dashboard/docs.js", "/static/swagger-ui.css",
                 "/static/swagger-ui-bundle.js"):  # fmt: skip
        expect(call(room, "GET", path)[0] == 200, f"GET {path}: {call(room, 'GET', path)[0]}")


def run_job(room: Room) -> dict[str, Any]:
    """Submit, poll, download, compare; returns the job."""
    status, body = call(room, "POST", "/transform", JOB)
    expect(status == 202, f"POST /transform: {status} {body.decode()}")
    job: dict[str, Any] = json.loads(body)

    def ended() -> bool:
        job.update(json.loads(call(room, "GET", f"/jobs/{job['id']}")[1]))
        return job["status"] not in ("queued", "running")

    wait_for(ended, "the job to end")
    expect(job["status"] == "succeeded", f"the job: {job['status']}, {job['error']}")
    check_download(room, job)
    return job


def check_download(room: Room, job: dict[str, Any]) -> None:
    """The job's checkpoint is what the job says."""
    stated = job["result"]["checkpoint"]
    status, body = call(room, "GET", f"/jobs/{job['id']}/checkpoint")
    expect(status == 200, f"GET checkpoint: {status}")
    expect(len(body) == stated["size"] and hashlib.sha256(body).hexdigest() == stated["sha256"], "another checkpoint")


def wait_for(condition: Any, what: str) -> None:
    """Until it holds, or too long."""
    deadline = time.monotonic() + LONGEST
    while not condition():
        expect(time.monotonic() < deadline, f"waited {LONGEST:g} s for {what}")
        time.sleep(0.1)


def expect(holds: bool, otherwise: str) -> None:
    """Fail with one line."""
    if not holds:
        raise AssertionError(otherwise)


def step(name: str, since: float) -> float:
    """Say what is done and how long it took."""
    now = time.monotonic()
    print(f"{name} ({now - since:.1f} s)", flush=True)
    return now


def main() -> None:
    """All of it, in a temporary room."""
    with tempfile.TemporaryDirectory(prefix="tcnn-install-", ignore_cleanup_errors=True) as folder:
        room = Room(Path(folder).resolve())
        room.path.chmod(0o755)
        for place in (room.data, room.path / "compiled"):
            place.mkdir()
            if os.geteuid() == 0:
                os.chown(place, NOBODY, NOBODY)
        try:
            now = time.monotonic()
            install(room)
            check_wheel(room)
            now = step("built the wheel and installed it", now)
            check_refusal(room)
            now = step("refused to serve everybody without keys", now)
            with service(room):
                check_pages(room)
                now = step("started, healthy", now)
                job = run_job(room)
                now = step(f"{job['id']}: converted, downloaded, hash compared", now)
            now = step("ended at SIGTERM, no process left", now)
            with service(room, "serve", "--no-worker"):
                check_download(room, job)
                expect(room.start("worker", "--burst").wait(LONGEST) == 0, "the worker failed")
            step("started again on the same data without a worker, and a worker beside it", now)
        except BaseException:
            if room.log.exists():
                print(room.log.read_text(errors="replace")[-8000:], file=sys.stderr)
            raise


if __name__ == "__main__":
    main()
