"""A Ray cluster of several node processes on this machine, each with its own token, ended by the processes' numbers."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4, "RAY_USAGE_STATS_ENABLED": "0"}
SMALL = ("--object-store-memory=80000000", "--disable-usage-stats", "--block")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def parents() -> dict[int, int]:
    """Every live process and its parent."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                found[int(entry.name)] = int(fields[1])
    return found


def descendants(pid: int) -> list[int]:
    tree, found = parents(), [pid]
    for one in found:
        found += [child for child, parent in tree.items() if parent == one]
    return found[1:]


class Cluster:
    """Nodes as processes with addresses of their own; the first is the head, whose node a driver here belongs to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(self, cpus: int, **environment: str) -> subprocess.Popen[bytes]:
        head = not self.nodes
        where = (
            ["--head", f"--port={self.port}", "--include-dashboard=false", "--node-ip-address=127.0.0.1",
             f"--temp-dir={self.folder / 'r'}"]
            if head else [f"--address={self.address}", f"--node-ip-address=127.0.0.{len(self.nodes) + 1}"]
        )  # fmt: skip
        log = (self.folder / f"node-{len(self.nodes)}.log").open("wb")
        node = subprocess.Popen(
            [str(Path(sys.executable).parent / "ray"), "start", *where, f"--num-cpus={cpus}", *SMALL],
            stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, **TOKEN, "OMP_NUM_THREADS": "1", **environment},
        )  # fmt: skip
        self.nodes.append(node)
        path = self.folder / f"node-{len(self.nodes) - 1}.log"
        deadline = time.monotonic() + 90
        while "Ray runtime started" not in path.read_text():
            assert node.poll() is None and time.monotonic() < deadline, path.read_text()
            time.sleep(0.2)
        return node

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """As a power cut would: everything of this node at once."""
        for pid in [*descendants(node.pid), node.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.wait()

    def end(self) -> None:
        for node in reversed(self.nodes):
            if node.poll() is None:
                self.kill(node)


@contextlib.contextmanager
def cluster(*cpus: int) -> Iterator[Cluster]:
    """Nodes with so many CPUs each.

    In a directory of its own: Ray's sockets lie deep in it, and a path of pytest's is longer than a socket may have.
    """
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder))
        try:
            for count in cpus:
                made.start(count)
            yield made
        finally:
            made.end()
