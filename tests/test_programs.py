"""What `tcnn.processes` makes of a program: it begins without garbage collection, keeps the memory that it freed and
its secrets, and ends without clearing it.
"""

import ctypes
import json
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import processes

from tcnn.processes import keep_freed_memory


def program(script: str, *arguments: str, cwd: Path | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        cwd=cwd, check=False, timeout=300, text=True, **{"capture_output": True, **options},
    )  # fmt: skip


LEAVES = """
    import atexit, sys, threading, time
    from tcnn.processes import QuickExit

    class Cleared:
        def __del__(self): sys.stderr.write("cleared ")

    leave = QuickExit()
    atexit.register(sys.stdout.write, "handlers run, ")
    threading.Thread(target=lambda: (time.sleep(0.1), sys.stdout.write("threads are waited for, "))).start()
    kept = Cleared()
    kept.itself = kept
"""


def test_threads_handlers_and_output_are_waited_for_but_nothing_is_cleared() -> None:
    done = program(LEAVES + "\n    leave(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "threads are waited for, handlers run, ", "")


@pytest.mark.parametrize(("end", "code"), [("sys.exit(7)", 7), ("raise ValueError('unforeseen')", 1)])
def test_a_program_that_ends_otherwise_ends_as_python_has_it(end: str, code: int) -> None:
    done = program(LEAVES + f"\n    {end}")
    assert (done.returncode, done.stdout) == (code, "threads are waited for, handlers run, ")
    assert "cleared" in done.stderr
    assert ("ValueError: unforeseen" in done.stderr) == (code == 1)


def test_output_that_cannot_be_written_is_told() -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = program(
            LEAVES + "\n    leave(0)", capture_output=False, stdout=full, stderr=subprocess.PIPE, env=buffered
        )
    assert done.returncode == 120, "Python's own, where its output is lost"
    assert "No space left" in done.stderr


def test_loading_collects_nothing_and_leaves_what_it_loaded_out() -> None:
    done = program("""
        import gc
        from tcnn.processes import loading
        with loading():
            assert not gc.isenabled()
        assert gc.isenabled() and gc.get_freeze_count()
        try:
            with loading():
                import nowhere_to_be_found
        except ImportError:
            assert gc.isenabled()
        gc.unfreeze()
        gc.disable()
        with loading():
            pass
        assert not gc.isenabled() and not gc.get_freeze_count(), "who has turned it off has his reasons"
        gc.enable()
        import sys
        sys.modules["torch"] = sys
        with loading():
            assert gc.isenabled()
        assert not gc.get_freeze_count()
    """)
    assert (done.returncode, done.stderr) == (0, "")


def torch_that_tells(directory: Path) -> None:
    """A `torch` that says whether garbage is looked for while it is imported, and then is not there."""
    (directory / "torch.py").write_text(
        "import gc, sys\n"
        "print('collected' if gc.isenabled() else 'quick', file=sys.__stdout__)  # a command's own is its result\n"
        "raise ImportError('told')\n"
    )


COMMANDS = (
    ("convert", "test_resnet", "--dry-run"), ("verify", "a.safetensors"), ("fold", "a.safetensors", "b.safetensors"),
    ("export", "a.safetensors", "b.pt2"), ("inspect", "a.safetensors"), ("predict", "a.safetensors", "b.png"),
    ("evaluate", "a.safetensors", "--data", "images"), ("finetune", "test_resnet", "--data", "images"), ("demo",),
)  # fmt: skip


def test_every_command_loads_quickly(tmp_path: Path) -> None:
    torch_that_tells(tmp_path)
    script = """
        import json, sys
        from tcnn.cli.main import main
        for arguments in json.loads(sys.argv[1]):
            print(arguments[0], end=" ")
            try:
                main(arguments)
            except SystemExit:
                pass
    """
    done = program(script, json.dumps(COMMANDS), cwd=tmp_path)
    assert done.stdout.splitlines() == [f"{command[0]} quick" for command in COMMANDS], done.stderr


@pytest.mark.parametrize(
    "call",
    [
        "from tcnn_jobs.confined.model_files import _load; _load(None, None, None)",
        "from tcnn_jobs.confined.explorer import Explorer; Explorer('')",
        "from tcnn.training.launch.rank import finetune_request; finetune_request(None, None)",
    ],
    ids=["an upload", "an explorer", "a rank"],
)
def test_processes_of_the_service_load_quickly(call: str, tmp_path: Path) -> None:
    torch_that_tells(tmp_path)
    done = program(call, cwd=tmp_path)
    assert done.stdout == "quick\n", done.stderr


def faults(keep: bool, pipe: object) -> None:
    """How often pages come anew when 50 MiB of ten blocks are wanted again and again, from the fifth time on.

    It begins with every block mapped for itself, as glibc does first: whether its heap is trimmed depends on what lies
    at its end, and so on chance.
    """
    ctypes.CDLL(None).mallopt(-3, 2**17)
    os.environ.pop("MALLOC_TRIM_THRESHOLD_", None)
    os.environ.pop("GLIBC_TUNABLES", None)
    if keep:
        keep_freed_memory()
    before = 0
    for times in range(8):
        if times == 4:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [torch.ones(5 * 2**18) for _ in range(10)]
        del blocks
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.platform != "linux" or os.confstr("CS_GNU_LIBC_VERSION") is None, reason="of glibc")
def test_freed_memory_is_kept() -> None:
    found = []
    for keep in (False, True):
        ours, theirs = processes.Pipe(duplex=False)
        process = processes.Process(target=faults, args=(keep, theirs))
        process.start()
        found.append(ours.recv())
        process.join()
    given_back, kept = found
    assert given_back > 4 * 50 * 2**20 / 4096 / 2, "else there is nothing to mend any more"
    assert kept < given_back / 20


def test_what_the_environment_says_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("ctypes.CDLL", asked.append)
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1")
    keep_freed_memory()
    assert not asked
    monkeypatch.delenv("GLIBC_TUNABLES")
    keep_freed_memory()
    assert bool(asked) == (sys.platform == "linux"), "else it is never asked"


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: /proc is Linux's")
def test_a_service_can_close_its_own_proc_entry() -> None:
    """PR_GET_DUMPABLE is 3; what is not dumpable has a /proc entry that is root's, and cannot be traced."""
    script = (
        "import ctypes; from tcnn.processes import keep_to_oneself; ask = lambda: ctypes.CDLL(None).prctl(3); "
        "before = ask(); keep_to_oneself(); print(before, ask())"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "1 0\n"
