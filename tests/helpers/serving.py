"""`tcnn serve` in a process of its own, for tests that talk to it over HTTP."""

import functools
import hashlib
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from httpx._transports import default

# Every client reads all certificates first, which takes longer than what most tests ask.
vars(default)["create_ssl_context"] = functools.cache(httpx.create_ssl_context)


@dataclass
class Server:
    """Where it listens, and where its files are."""

    url: str
    home: Path

    def client(self, key: str | None = "key-of-alice") -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def files(self) -> dict[str, str]:
        """Everything in the home directory but the database, with its digest; folders and links too. What the server
        deletes meanwhile is not there.
        """
        found = {}
        for folder, folders, names in os.walk(self.home):
            for path in (Path(folder, name) for name in (*folders, *names) if not name.startswith("tcnn.db")):
                kind = "link" if path.is_symlink() else "folder" if path.is_dir() else None
                with suppress(FileNotFoundError):
                    content = kind or hashlib.sha256(path.read_bytes()).hexdigest()
                    found[str(path.relative_to(self.home))] = content
        return dict(sorted(found.items()))


@contextmanager
def serving(home: Path, *arguments: str, largest_file: int | None = None, **environment: str) -> Iterator[Server]:
    """A server until the block ends; `largest_file` bytes and no more can be written to a file, as on a full disk."""
    home.parent.mkdir(parents=True, exist_ok=True)

    def limit() -> None:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    if largest_file is not None:  # Python would keep bytecode that is cut short
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    with (home.parent / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tcnn", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "TCNN_HOME": str(home), "PYTHONUNBUFFERED": "1", **environment},
            preexec_fn=limit,  # noqa: PLW1509 - it calls the kernel and nothing else
        )
        assert process.stdout is not None
        try:
            said = next((line for line in process.stdout if "tcnn is at" in line), "")
            found = re.search(r"http://[\w.:]+", said)
            assert found, (home.parent / "server.log").read_text()
            yield Server(found[0], home)
        finally:
            process.terminate()
            process.stdout.close()
            process.wait(60)
