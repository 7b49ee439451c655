"""A command that cannot print or write, has no memory, or is interrupted twice: one line at most, its exit code."""

import importlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from data_pictures import draw_classes
from torch import nn

import tcnn as package
from tcnn.cli.commands.runs.demo import without_resume
from tcnn.errors import Stopped, StorageError
from tcnn.exporting.export import write_program
from tcnn.files import replacing

MODELS = (sys.executable, "-m", "tcnn", "models")
IMPATIENT = """
import signal
from tcnn.cli import group, main

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what runs in a shell's background

def slow() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    finally:  # what is put in order takes long, and the user presses again
        signal.raise_signal(signal.SIGINT)
        print("not reached")

group.app.command("models")(slow)
main.main()
"""
IN_A_CALLBACK = """
import signal, time, weakref
from tcnn.cli import group, main

signal.signal(signal.SIGINT, signal.default_int_handler)

class Lock:
    pass

def slow() -> None:
    lock = Lock()
    watched = weakref.ref(lock, lambda gone: signal.raise_signal(signal.NUMBER))
    del lock
    time.sleep(60)
    print("not reached")

group.app.command("models")(slow)
main.main()
"""
WITHOUT_ROOM = """
import re, resource, sys
from pathlib import Path
import torch
from torch import nn
from tcnn.cli import group, main

def crowded() -> None:
    images, layers = torch.zeros(1, 16, 24, 24), [nn.Conv2d(16, 16, size, padding=size // 2) for size in (3, 5, 7, 9)]
    with torch.no_grad():
        layers[0](images)
        kept = [torch.empty(1 << 14) for _ in range(200)]
        del kept  # room for what the layers return, but for no code
        used = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
        resource.setrlimit(resource.RLIMIT_AS, (used, -1))
        for layer in layers[1:]:
            layer(images)

group.app.command("models")(crowded)
main.main()
"""
needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def test_what_was_measured_is_printed_before_it_is_written(
    tcnn: Any, tmp_path: Path, lively: Callable[..., nn.Module], file_size_limit: Any
) -> None:
    package.save(package.convert(lively(num_classes=2)).model, tmp_path / "t.safetensors")
    draw_classes(tmp_path / "p", ["a", "b"], 2)
    with file_size_limit(20):
        done = tcnn("evaluate", "t.safetensors", "--data", "p", "--size", 32, "--csv", "r.csv")
        guessed = tcnn("predict", "t.safetensors", "p/a", "--size", 32, "--csv", "g.csv")
    assert (done.code, guessed.code) == (4, 4)
    assert "4 images" in done.out
    assert "%" in guessed.out
    for result, name in ((done, "r.csv"), (guessed, "g.csv")):
        assert result.err.startswith(f"error: {name}: no space left while writing; ")
        assert result.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p", "t.safetensors"]


def test_a_program_that_does_not_fit_is_no_crash(tmp_path: Path, file_size_limit: Any) -> None:
    """PyTorch's own writer ends the process from C++ when its file cannot be written."""
    program: Any = SimpleNamespace(program=torch.export.export(nn.Linear(64, 64), (torch.zeros(1, 64),)))
    place = tmp_path / "x.pt2"
    with file_size_limit(1000), pytest.raises(StorageError, match="no space left"), replacing(place) as temporary:
        write_program(program, temporary, {})
    assert list(tmp_path.iterdir()) == []
    write_program(program, place, {"a": "b"})
    found = torch.export.load(place).module()(torch.ones(1, 64))
    torch.testing.assert_close(found, program.program.module()(torch.ones(1, 64)))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_memory_that_is_not_there_for_libraries_or_their_code(tmp_path: Path) -> None:
    """What oneDNN compiles, and what the loader maps."""
    done = subprocess.run((sys.executable, "-c", WITHOUT_ROOM, "models"), capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("error: out of memory (") and done.stderr.count("\n") == 1
    limited = f"ulimit -v 400000; exec {sys.executable} -m tcnn convert resnet18 o.safetensors --no-pretrained"
    done = subprocess.run(limited, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("error: out of memory while loading libraries (") and done.stderr.count("\n") == 1


@needs_dev_full
@pytest.mark.parametrize("form", [pytest.param((), marks=pytest.mark.slow), ("--json",)])
def test_a_full_stdout_is_the_environments_failure(form: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run((*MODELS, *form), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith("error: the output: no space left on device while writing; ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "form", [pytest.param((), marks=pytest.mark.slow), ("--json",), pytest.param(("--help",), marks=pytest.mark.slow)]
)
def test_a_closed_pipe_is_quiet(form: tuple[str, ...]) -> None:
    command = subprocess.Popen((*MODELS, *form), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    assert (command.stderr.read(), command.wait()) == ("", 141)


@pytest.mark.skipif(os.name != "posix", reason="a shell that closes what a command writes to")
@pytest.mark.parametrize(
    "closed", [*(pytest.param(one, marks=pytest.mark.slow) for one in (">&-", "2>&-")), ">&- 2>&-"]
)
def test_what_is_closed_is_not_written_to(closed: str) -> None:
    done = subprocess.run(f"{shlex.join(MODELS)} resnet18d {closed}", shell=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b"11.7 M" in done.stdout) == (closed == "2>&-")


def test_a_terminal_without_greek_letters_gets_question_marks() -> None:
    done = subprocess.run(
        (*MODELS, "resnet18d"), env={"PYTHONIOENCODING": "cp1252"}, capture_output=True, check=False
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"11.7 M ? 14.2 M" in done.stdout


def test_a_second_interrupt_ends_at_once() -> None:
    done = subprocess.run((sys.executable, "-c", IMPATIENT, "models"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [pytest.param("SIGINT", 130, "interrupted\n", marks=pytest.mark.slow), ("SIGTERM", 143, "")],
)
def test_a_signal_within_a_callback_is_not_lost(name: str, code: int, said: str) -> None:
    """As while a module's lock is given back, where Python drops what is raised and goes on."""
    script = IN_A_CALLBACK.replace("NUMBER", name)
    done = subprocess.run(
        (sys.executable, "-c", script, "models"), capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_a_stopped_demo_advises_nothing_that_it_has_not() -> None:
    asked = Stopped("stopped in epoch 2; go on with --resume --out /tmp/x")
    assert "--resume" not in str(without_resume(asked))
    assert without_resume(asked).exit_code == 143
    asked.exit_code = 130
    assert without_resume(asked).exit_code == 130


def test_what_is_imported_on_a_full_disk_is_whole_for_the_next(
    tmp_path: Path, file_size_limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11 keeps bytecode without a look at how much of it was written."""
    (tmp_path / "read_on_a_full_disk.py").write_text("VALUE = 'long enough ' * 3\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        with file_size_limit(20):
            assert importlib.import_module("read_on_a_full_disk").VALUE
        del sys.modules["read_on_a_full_disk"]
