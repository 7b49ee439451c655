"""Commands of other packages join `tcnn` by entry points: lazily, and in one line when their libraries are missing."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

WITHOUT = """
import sys

class Missing:
    "An installation without the extra: these libraries are not there."

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
ASK = """
import json, os, sys
from tcnn.cli.main import main

codes, printed = [], os.dup(1)
for number, arguments in enumerate(json.loads(sys.argv[1])):
    for place, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{sys.argv[2]}/{number}.{name}", os.O_WRONLY | os.O_CREAT), place)
    try:
        codes.append(main(arguments) or 0)
    except SystemExit as ended:
        codes.append(ended.code)
    sys.stdout.flush(), sys.stderr.flush()
os.dup2(printed, 1)
print(json.dumps(codes))
"""
"""One Python loads the command line and runs them all."""
EXTRA = ("fastapi", "starlette", "uvicorn", "sqlalchemy", "pydantic_settings", "structlog", "httpx")


def run(script: str, *paths: Path, given: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", script, *given],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )


class Ended(NamedTuple):
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def run_all(folder: Path, *commands: tuple[str, ...], before: str = "", paths: Sequence[Path] = ()) -> list[Ended]:
    """One after the other in one process, after the statements of `before`."""
    done = run(before + ASK, *paths, given=(json.dumps(commands), str(folder)))
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout)
    said = [[(folder / f"{number}.{name}").read_text() for name in ("out", "err")] for number in range(len(codes))]
    return [Ended(code, *texts) for code, texts in zip(codes, said, strict=True)]


def test_without_the_extra_a_command_says_what_to_install_and_all_others_work(tmp_path: Path) -> None:
    serve, worker, overview, *others = run_all(
        tmp_path, ("serve",), ("worker",), ("--help",), ("serve", "--help"), ("models", "resnet18"),
        before=WITHOUT.format(names=EXTRA),
    )  # fmt: skip
    for command, done in (("serve", serve), ("worker", worker)):
        assert done.returncode == 4
        assert done.stdout == ""
        assert done.stderr.startswith(f"error: `tcnn {command}` needs ")
        assert done.stderr.endswith('which is not installed: pip install "tcnn[serve]"\n')
        assert done.stderr.count("\n") == 1
    assert overview.returncode == 0
    assert all(name in overview.stdout for name in ("convert", "serve", "worker"))
    assert [done.returncode for done in others] == [0, 0]


def test_a_command_of_another_package(tmp_path: Path) -> None:
    """A function and a group, installed as any package is; one that is broken disturbs nobody else."""
    (tmp_path / "guest.py").write_text(
        "import typer\n"
        "def command(name: str = 'you') -> None:\n"
        "    'Greet.'\n"
        "    print('hello', name)\n"
        "app = typer.Typer(help='Many.')\n"
        "@app.command()\n"
        "def one() -> None: print('one')\n"
        "@app.command()\n"
        "def two() -> None: raise ZeroDivisionError('nothing')\n"
    )
    info = tmp_path / "guest-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[tcnn.commands]\ngreet = guest:command\nmany = guest:app\nbroken = no_such_module:app\n"
    )

    failing = {("broken",): 4, ("many", "two"): 1, ("many", "three"): 2, ("greet", "--x"): 2}
    greeted, one, help_text, misspelt, *failed = run_all(
        tmp_path, ("greet", "--name", "me"), ("many", "one"), ("--help",), ("gret",), *failing, paths=[tmp_path]
    )
    assert greeted.stdout == "hello me\n"
    assert one.stdout == "one\n"
    assert help_text.returncode == 0
    assert "Greet." in help_text.stdout and "Many." in help_text.stdout and "broken" not in help_text.stdout
    assert "'greet'" in misspelt.stderr
    for done, code in zip(failed, failing.values(), strict=True):
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
