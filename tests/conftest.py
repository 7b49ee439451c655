"""What all tests share: one thread, source models whose every branch matters, a disk that fills up, a house of jobs."""

import atexit
import gc
import logging
import os
import re
import resource
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from houses import House, RealWorkers

if TYPE_CHECKING:  # the process that only hands out tests loads neither
    from torch import nn

SLOW = Path(__file__).parent / "slow"
MEMORY = Path("/dev/shm")
"""A file system in memory, on Linux."""
SMALL = ("test_resnet", "test_efficientnet", "test_byobnet", "test_convnext", "test_nfnet")
"""timm's smallest CNNs."""
OF_ANY_SIZE = (
    "analysis", "checkpoints", "cli", "conversion", "docs", "evaluation", "exporting", "folding", "jobs", "networks",
    "planning", "publishing", "training", "verification", "vit",
)  # fmt: skip
"""Folders whose tests say something of a network, whatever the size of its images."""
COMPILES = re.compile(r"\btorch\.compile\(|^from torch\.export|^from tcnn\.(exporting|explorer\.export)", re.MULTILINE)
"""The first compilation of a process takes four seconds, its first export as long."""
STARTS = re.compile(r"^from (forked|deeds(?= import .*\bChild\b)) import", re.MULTILINE)
STORES = re.compile(r"^from (s3|apart) import", re.MULTILINE)
"""To start moto and load s3fs takes five seconds."""
PROCESS = 4 << 30
"""Bytes that a process of tests takes, with what its tests start."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test` does not even import what it will not run."""
    return True if collection_path == SLOW and config.getoption("markexpr") == "not slow" else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.is_relative_to(SLOW):
        item.add_marker("slow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Of a test that passed at its second try, tell what it failed of at its first."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_sep("_", f"failed at the first try: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several tests under one name pytest-xdist runs a single one.

    The whole journeys beside this file come first: last, each would keep one process busy for half a minute while the
    others have nothing left to do.
    """
    items.sort(key=lambda item: item.path.parent != SLOW.parent)
    twice = [name for name, count in Counter(item.nodeid for item in items).items() if count > 1]
    if twice:
        raise pytest.UsageError(f"several tests have one name: {', '.join(twice)}")


@pytest.hookimpl(optionalhook=True)  # `make mutation` runs without xdist
def pytest_xdist_auto_num_workers() -> int:
    """With `-n auto`: three for two cores, as memory allows. A third of their time tests wait for other processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores + cores // 2, memory // PROCESS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files whose tests share a process that takes seconds to start, or what takes seconds the first time, are run one
    after the other, by one process of tests: else each of the three would take them.
    """
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    scheduler: Any = LoadScopeScheduling(config, log)
    own = scheduler._split_scope
    scheduler._split_scope = lambda nodeid: _shared(nodeid.partition("::")[0]) or own(nodeid)
    return scheduler


@cache
def _shared(file: str) -> str | None:
    """What a file takes seconds for, if another has not had it before: the process from which others are forked, the
    first compilation, or a server that speaks S3.
    """
    text = (SLOW.parents[1] / file).read_text(encoding="utf-8")
    if STARTS.search(text):
        return "forked"
    if STORES.search(text):
        return "stores"
    return "compiled" if COMPILES.search(text) else None


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Until all tests are found nothing is garbage: looking for it took a quarter of the time.

    Temporary directories lie in memory, where there is enough: waiting for a disk took a third of some tests' time.
    pytest-rerunfailures has every process ask a server, before each test, how often it crashed: as long as a short test
    takes. What ends a whole process is not tried again.
    """
    gc.disable()
    logging.getLogger().addHandler(logging.NullHandler())  # else what nobody handles is written to stderr
    if hasattr(config, "workerinput") and hasattr(config, "failures_db"):
        from pytest_rerunfailures import StatusDB

        config.failures_db = StatusDB()
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_finish() -> None:
    """What is loaded by now stays, and tests are short: looking for garbage took a tenth of their time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """What the tests of a file leave behind stays, too: every `gc.collect` of tcnn took a second to look through it."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    _codes[:] = [int(exitstatus)]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Where pytest is not the program, what was frozen is cleared with all else: extensions count what they leave."""
    program = Path(sys.argv[0])
    if not (hasattr(config, "workerinput") or program.name == "pytest" or program.match("pytest/__main__.py")):
        gc.unfreeze()
        _codes.clear()


def _leave() -> None:
    """End the process without clearing its memory, which takes a second or two once torch is loaded."""
    if _codes and not hasattr(sys, "last_value"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_codes[0])


_codes: list[int] = []
"""The exit status, once it is known."""
atexit.register(_leave)  # before others are, so that it is the last to run


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Most models here are tiny, and the tests run side by side: one thread each is the fastest."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def small_images(request: pytest.FixtureRequest) -> Iterator[None]:
    """The smallest CNNs take images of 96 pixels, not of 160, and compute a third: three by three places of a last map
    have corners, edges and a middle. In processes of their own they are as timm has them.
    """
    from timm.models import _registry

    with pytest.MonkeyPatch.context() as patch:
        if request.path.relative_to(SLOW.parent).parts[0] in OF_ANY_SIZE:
            for name, known in _registry._model_pretrained_cfgs.items():
                if name.partition(".")[0] in SMALL:
                    patch.setattr(known, "input_size", (3, 96, 96))
                    patch.setattr(known, "pool_size", (3, 3))
        yield


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """Of exceptions that are logged: with the values of all variables, as structlog has them drawn, each takes a second
    or three. The programs themselves log them as plainly (`tcnn_jobs/logs.py`).
    """
    for step in structlog.get_config()["processors"]:
        if isinstance(step, structlog.dev.ConsoleRenderer):
            step.exception_formatter = structlog.dev.plain_traceback


@pytest.fixture(scope="session")
def lively() -> "Callable[..., nn.Module]":
    """Makes a timm model with random statistics, scales and shifts.

    A fresh network multiplies many residual branches by exactly zero, so the layers inside could do anything.
    """

    import timm
    import torch

    def lively(name: str = "test_resnet", seed: int = 0, **options: object) -> "nn.Module":
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            model = timm.create_model(name, **options).eval()
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.dim() == 1 and tensor.is_floating_point():
                    tensor.uniform_(0.5, 1.5)
        return model

    return lively


@pytest.fixture(scope="session")
def assert_same_state() -> "Callable[[nn.Module, nn.Module], None]":
    """Both models hold the same names, dtypes and bits, parameters and persistent buffers alike."""
    import torch

    def assert_same_state(found: "nn.Module", expected: "nn.Module") -> None:
        ours, theirs = found.state_dict(), expected.state_dict()
        assert list(ours) == list(theirs)
        for name, tensor in theirs.items():
            assert ours[name].dtype == tensor.dtype, name
            assert torch.equal(ours[name], tensor), name

    return assert_same_state


@pytest.fixture(scope="session")
def file_size_limit() -> Callable[[int], AbstractContextManager[None]]:
    """The kernel refuses to let any file grow beyond so many bytes: a disk that is full half way.

    Python ignores the signal that comes with it, so that the write fails with an error number. Only when it keeps the
    bytecode of a module does it not look: what is imported meanwhile would be cut short for every later process.
    """

    @contextmanager
    def file_size_limit(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            yield
        finally:
            sys.dont_write_bytecode = kept
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return file_size_limit


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A house of its own for every test, and nobody left in it."""
    house = House(tmp_path / "home")
    yield house
    for worker in house.workers:
        for attempt in worker._running:
            attempt.process.kill()
    house.store.close()


@pytest.fixture
def workers(house: House) -> Iterator[RealWorkers]:
    workers = RealWorkers(house.settings.root)
    yield workers
    workers.end()
