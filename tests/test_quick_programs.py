"""Programs that load torch begin without garbage collection, and end without clearing their memory."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest


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
        "import gc\nprint('collected' if gc.isenabled() else 'quick')\nraise ImportError('told')\n"
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
        "from tcnn_jobs.confined.checkpoints import _load; _load(None, None, None)",
        "from tcnn_jobs.confined.explorer import Explorer; Explorer('')",
        "from tcnn.training.launch.rank import finetune_request; finetune_request(None, None)",
    ],
    ids=["an upload", "an explorer", "a rank"],
)
def test_processes_of_the_service_load_quickly(call: str, tmp_path: Path) -> None:
    torch_that_tells(tmp_path)
    done = program(call, cwd=tmp_path)
    assert done.stdout == "quick\n", done.stderr
