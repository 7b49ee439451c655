"""Signals at moments where an exception is dangerous, gets lost or comes too late: each command is a process of its
own, in which Python itself tells the moment.
"""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
SCRIPT = """
import atexit, importlib, os, signal, sys, time
from pathlib import Path
from tcnn import signals
from tcnn.cli import group, main
from tcnn.cli.output import console
from tcnn.files import replacing
from tcnn.processes import loading

signals.LATER = 0.3
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what runs in a shell's background
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and by what nohup started
NUMBER = signal.NAME
sys.path.insert(0, "")

def command() -> None:
    sys.stdout = console.results()  # what it prints is its result
    BODY
    print("not reached")

group.app.command("models")(command)
main.main()
"""
IMPORTED = """
import signal, time
try:
    signal.raise_signal(signal.NAME)
    time.sleep(PAUSE)
except BaseException:  # as some libraries have it
    print("raised within an import")
print("imported")
"""
BOTH = pytest.mark.parametrize(
    ("name", "code", "said"), [("SIGINT", 130, "interrupted\n"), ("SIGTERM", 143, "")], ids=["Ctrl-C", "SIGTERM"]
)
Ended = subprocess.CompletedProcess[str]


def ended(folder: Path, name: str, body: str, stderr: int = subprocess.PIPE) -> Ended:
    """What becomes of a command that does what `body` says."""
    lines = "\n    ".join(body.strip().splitlines())
    script = SCRIPT.replace("NAME", name).replace("BODY", lines)
    return subprocess.run(
        (sys.executable, "-c", script, "models"),
        cwd=folder, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False, timeout=50,
    )  # fmt: skip


def imported(folder: Path, name: str, pause: float) -> None:
    (folder / "heavy.py").write_text(IMPORTED.replace("NAME", name).replace("PAUSE", str(pause)), encoding="utf-8")


@BOTH
def test_nothing_is_raised_within_an_import(tmp_path: Path, name: str, code: int, said: str) -> None:
    """It may pass through C++, as Triton's, which aborts the process, or be taken for a missing module."""
    imported(tmp_path, name, 0)
    done = ended(tmp_path, name, 'importlib.import_module("heavy"); time.sleep(60)')
    assert (done.returncode, done.stdout, done.stderr) == (code, "imported\n", said)


@BOTH
def test_while_libraries_are_loaded_it_ends_at_once(tmp_path: Path, name: str, code: int, said: str) -> None:
    imported(tmp_path, name, 60)
    done = ended(tmp_path, name, 'with loading():\n    importlib.import_module("heavy")')
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


LOST = """
try:
    signal.raise_signal(NUMBER)
except BaseException:
    print("lost", flush=True)
time.sleep(60)
"""


@BOTH
def test_what_a_library_swallows_is_raised_again(tmp_path: Path, name: str, code: int, said: str) -> None:
    done = ended(tmp_path, name, LOST)
    assert (done.returncode, done.stdout, done.stderr) == (code, "lost\n", said)


SLOW = """
try:
    signal.raise_signal(NUMBER)
finally:
    time.sleep(1)
    print("in order", flush=True)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_what_takes_long_to_put_in_order_is_left_alone(tmp_path: Path, name: str, code: int) -> None:
    done = ended(tmp_path, name, SLOW)
    assert (done.returncode, done.stdout) == (code, "in order\n")
    assert f"{code}: ended by {name}" in (Path(__file__).parents[2] / "docs/cli.md").read_text(encoding="utf-8")


AGAIN = """
removed = []

def again(event, words):
    if event == "os.remove" and not removed:
        removed.append(words)
        signal.raise_signal(NUMBER)

sys.addaudithook(again)
with replacing(Path("out")) as temporary:
    temporary.mkdir()
    for name in "abc":
        (temporary / name).write_text(name)
    signal.raise_signal(NUMBER)
"""


@BOTH
def test_a_second_one_in_the_middle_of_tidying_leaves_nothing(tmp_path: Path, name: str, code: int, said: str) -> None:
    """`timeout` and schedulers tell a process and its group, so that SIGTERM comes twice."""
    done = ended(tmp_path, name, AGAIN)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert list(tmp_path.iterdir()) == []


TIDYING = """
from tcnn.files import removed_if_ended, scratch_directory
with scratch_directory() as place, removed_if_ended(Path("beside")):
    (place / "checkpoint").write_text("a gigabyte")
    Path("beside").mkdir()
    try:
        signal.raise_signal(NUMBER)
    finally:
        signal.raise_signal(NUMBER)
"""


@BOTH
def test_a_second_one_leaves_no_scratch_directory(
    tmp_path: Path, name: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of `tcnn demo` and `tcnn push` were Python's own, of whose removal nothing was known here."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = ended(tmp_path, name, TIDYING)
    assert (done.returncode, done.stdout) == (code, "")
    assert list(tmp_path.iterdir()) == []


BAR = """
with console.steps(3) as step:
    step("one")
    try:
        signal.raise_signal(NUMBER)
    finally:
        signal.raise_signal(NUMBER)
"""


def test_a_second_one_gives_a_terminal_its_cursor_back(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        done = ended(tmp_path, "SIGINT", BAR, stderr=theirs)
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(theirs)
        os.close(ours)
    assert done.returncode == 130
    assert "\x1b[?25l" in shown, "the bar hides it"
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


CLEARED = """
class Heavy:
    def __del__(self, write=os.write):
        write(1, b"cleared")

globals()["heavy"] = Heavy()
atexit.register(print, "exit handlers")
signal.raise_signal(NUMBER)
"""


@BOTH
def test_it_leaves_without_clearing_its_memory(tmp_path: Path, name: str, code: int, said: str) -> None:
    """With torch loaded that took a second, and five on a busy machine, in which another signal killed it."""
    done = ended(tmp_path, name, CLEARED)
    assert (done.returncode, done.stdout, done.stderr) == (code, "exit handlers\n", said)


STARTING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.addaudithook(lambda event, words: event == "import" and words[0] == "MODULE" and signal.raise_signal(signal.NAME))
"""


@BOTH
@pytest.mark.parametrize("module", ["wrapt", "typer"])
@pytest.mark.parametrize("way", [("-m", "tcnn"), (str(Path(sys.executable).with_name("tcnn")),)], ids=["-m", "script"])
def test_while_it_starts_it_ends_without_a_traceback(
    tmp_path: Path, way: tuple[str, ...], module: str, name: str, code: int, said: str
) -> None:
    done = starting(tmp_path, STARTING.replace("MODULE", module).replace("NAME", name), *way, "models", "resnet18")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_another_program_keeps_pythons_own_ctrl_c(tmp_path: Path) -> None:
    hook = STARTING.replace("MODULE", "wrapt").replace("NAME", "SIGINT")
    done = starting(tmp_path, hook, "-c", "try:\n    import tcnn\nexcept KeyboardInterrupt:\n    print('mine')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "mine\n", "")


def starting(folder: Path, hook: str, *words: str) -> Ended:
    """A program of which Python tells the hook of every module that is imported."""
    (folder / "sitecustomize.py").write_text(hook, encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(folder), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        (sys.executable, *words), env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
        timeout=50,
    )  # fmt: skip


FINISHED = """
from tcnn.files import directory_for
try:
    signal.raise_signal(NUMBER)
except BaseException:
    print("lost", flush=True)
signal.setitimer(signal.ITIMER_REAL, 0)  # as if it were finished before it is raised anew
WRITES
return
"""


@BOTH
@pytest.mark.parametrize(
    ("writes", "left"),
    [
        ("", []),
        ('with replacing(Path("out")) as temporary:\n    temporary.write_text("whole")', []),
        ('with directory_for(Path("out")):\n    print("drawn")', []),
        ('Path("drawn").write_text("whole")', ["drawn"]),
    ],
    ids=["nothing", "file", "directory", "no name of ours"],
)
def test_what_got_lost_ends_a_command_that_is_finished_as_interrupted(
    tmp_path: Path, name: str, code: int, said: str, writes: str, left: list[str]
) -> None:
    """It ended with 0, and with its files, if it took less than the two seconds until it is raised again."""
    done = ended(tmp_path, name, FINISHED.replace("WRITES", writes))
    assert (done.returncode, done.stderr) == (code, said)
    assert [path.name for path in tmp_path.iterdir()] == left


TAKEN_OVER = """
try:
    signal.raise_signal(NUMBER)
except BaseException:
    print("lost", flush=True)
assert signals.take_over() == NUMBER
with replacing(Path("resume")) as temporary:
    temporary.write_text("whole")
return
"""


def test_what_a_training_has_taken_over_does_not_keep_it_from_saving(tmp_path: Path) -> None:
    done = ended(tmp_path, "SIGTERM", TAKEN_OVER)
    assert (done.returncode, done.stdout) == (0, "lost\n")
    assert (tmp_path / "resume").read_text() == "whole"


UNWINDING = """
try:
    signal.raise_signal(NUMBER)
finally:
    with replacing(Path("saved")) as temporary:
        temporary.write_text("whole")
"""


def test_what_is_saved_while_it_unwinds_is_saved(tmp_path: Path) -> None:
    done = ended(tmp_path, "SIGTERM", UNWINDING)
    assert (done.returncode, done.stderr) == (143, "")
    assert (tmp_path / "saved").read_text() == "whole"
