"""Trials of mutants: a copy of the repository in which tests run in forked processes, all libraries already imported.

A process that imports torch, timm and pytest by itself takes ten seconds; a forked one begins at once. It imports our
own packages from the copy, and finds the mutated file there, as do the processes that it starts.
"""

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mutants import Mutant

COPIED = ("tcnn", "tcnn_jobs", "tcnn_api", "tests", "pyproject.toml", "docs/openapi.json", "docs/http-api.md")
IMPORT = ""
"""Coverage's name for what ran before any test did."""
MEMORY = 16 << 30
"""Bytes of address space for one trial."""
PR_SET_PDEATHSIG = 1
NO_TESTS = 5
"""pytest's exit status where none is selected."""
EVERYTHING = ()
"""pytest's options for what `make test` runs of some files."""
QUICK = ("-k", "not postgres")
"""Of that, what needs no server of its own, which takes seconds to start."""
SLOW = ("-m", "slow")
"""What `make test` leaves out."""

_processes = multiprocessing.get_context("fork")


@dataclass
class Coverage:
    """Which test ran which line, and how long each took."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Of every test that passed."""
    tests: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    """file → line → the tests that ran it, or `IMPORT`."""
    modules: list[str] = field(default_factory=list)
    """Of libraries, all that the tests import."""

    def touching(self, mutant: Mutant) -> set[str]:
        """The tests that run a mutant's statement; all of them if it runs at import."""
        lines = self.tests.get(mutant.file, {})
        first, last = mutant.lines
        found = set().union(*(lines.get(line, ()) for line in range(first, last + 1)))
        return set(self.seconds) if IMPORT in found else found & self.seconds.keys()

    def elsewhere(self) -> set[str]:
        """The tests that run none of the mutated files in this process; perhaps they do in others."""
        return self.seconds.keys() - set().union(*(tests for lines in self.tests.values() for tests in lines.values()))


class Trials:
    """The copy, and what runs in it."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", *COPIED], cwd=root, check=True, capture_output=True, text=True
        ).stdout
        for name in filter(None, listed.split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
        os.environ |= {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(folder)}

    def cover(self, files: list[str], tests: list[str], which: tuple[str, ...]) -> Coverage:
        """Run the tests as they are, those that pytest's options select; raises RuntimeError if one fails."""
        code, coverage = self._fork(_cover, 3600, [*which, *tests], [str(self.folder / file) for file in files])
        if code not in (0, NO_TESTS) or coverage is None:
            raise RuntimeError(f"{' '.join(tests)}: pytest ended with {code} though nothing is mutated")
        coverage.tests = {str(Path(file).relative_to(self.folder)): lines for file, lines in coverage.tests.items()}
        for name in coverage.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        return coverage

    def kill(self, mutant: Mutant, tests: list[str], only: list[str] | None, limit: float) -> str | None:
        """What killed the mutant: a test's name, "import", or "signal" if it had to be stopped; None if it lives.

        `tests` are pytest's arguments, `only` the names of those to run, in this order, `limit` seconds of processor
        time.
        """
        if Path(mutant.file).parts[0] in sys.modules:
            raise RuntimeError(f"{mutant.file}: its package is imported already, so that no change would be noticed")
        with self._written(mutant):
            code, killer = self._fork(_try, limit, tests, only)
        if code == 0:
            return None
        return killer or ("signal" if code is None else "import")

    @contextlib.contextmanager
    def _written(self, mutant: Mutant) -> Iterator[None]:
        path = self.folder / mutant.file
        original, times = path.read_bytes(), path.stat()
        path.write_text(mutant.source(), encoding="utf-8")
        try:
            yield
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # what was compiled from it stays good

    def _fork(self, target: Callable[..., None], limit: float, *arguments: object) -> tuple[int | None, Any]:
        """pytest's exit status, None if it had to be ended, and what it told."""
        hears, tells = _processes.Pipe(duplex=False)
        process = _processes.Process(target=_forked, args=(target, tells, self.folder, limit, *arguments))
        process.start()
        tells.close()
        told, ended = [], time.monotonic() + 3 * limit  # of processor time there is less on a busy machine
        while (left := ended - time.monotonic()) > 0 and hears.poll(left):
            try:
                told.append(hears.recv())
            except EOFError:
                break
        process.join(max(1.0, min(10.0, left)))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)  # with all that it has started
        process.join()
        over = process.exitcode is None or process.exitcode < 0
        return None if over else process.exitcode, told[-1] if told else None


def _forked(target: Callable[..., None], pipe: Connection, folder: Path, limit: float, *arguments: object) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(folder)
    sys.path[:0] = [str(folder)]
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1,) * 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with (folder / "output.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    target(pipe, *arguments)


def _pytest(tests: list[str], *plugins: object) -> int:
    import pytest

    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", "temporary", "--tb=short"]
    return int(pytest.main([*options, *tests], plugins=list(plugins)))


def _cover(pipe: Connection, tests: list[str], files: list[str]) -> None:
    import coverage

    found, before = Coverage(), set(sys.modules)
    measured = coverage.Coverage(data_file=None, include=files, config_file=False)
    measured.start()
    code = _pytest(tests, _Recorder(found, measured))
    measured.stop()
    data = measured.get_data()
    found.tests = {file: {line: set(c) for line, c in data.contexts_by_lineno(file).items()} for file in files}
    found.modules = [name for name in sys.modules if name not in before and _is_library(name)]
    pipe.send(found)
    pipe.close()
    os._exit(code)


def _is_library(name: str) -> bool:
    file = getattr(sys.modules[name], "__file__", None) or ""
    return "site-packages" in file and not name.startswith(("_pytest", "coverage"))


def _try(pipe: Connection, tests: list[str], only: list[str] | None) -> None:
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    code = _pytest(tests, _Hunter(only, pipe))
    pipe.close()
    os._exit(code)


class _Recorder:
    """Tells coverage whose lines are running, and notes how long each test takes."""

    def __init__(self, found: Coverage, measured: Any) -> None:
        self._found, self._measured = found, measured
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._measured.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.when == "call" and report.passed:
            self._found.seconds[report.nodeid] = self._seconds[report.nodeid]


class _Hunter:
    """Has these tests run alone, and tells which one failed."""

    def __init__(self, only: list[str] | None, pipe: Connection) -> None:
        self._only, self._pipe = only, pipe

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self._only is not None:
            place = {name: place for place, name in enumerate(self._only)}
            items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._pipe.send(report.nodeid)
