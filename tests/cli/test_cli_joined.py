"""Commands of other packages join `tcnn` by entry points: lazily, and in one line when their libraries are missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys

class Missing:
    "An installation without the extra: these libraries are not there."

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from tcnn.cli.main import main
main({arguments!r})
"""
EXTRA = ("fastapi", "starlette", "uvicorn", "sqlalchemy", "pydantic_settings", "structlog", "httpx")


def run(script: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300, check=False
    )


def without(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run(WITHOUT.format(names=EXTRA, arguments=list(arguments)))


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_without_the_extra_a_command_says_what_to_install(command: str) -> None:
    done = without(command)
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: `tcnn {command}` needs ")
    assert done.stderr.endswith('which is not installed: pip install "tcnn[serve]"\n')
    assert done.stderr.count("\n") == 1


def test_without_the_extra_everything_else_works() -> None:
    done = without("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("convert", "serve", "worker"))
    assert without("serve", "--help").returncode == 0
    assert without("models", "resnet18").returncode == 0


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

    def tcnn(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run(f"from tcnn.cli.main import main; main({list(arguments)!r})", tmp_path)

    assert tcnn("greet", "--name", "me").stdout == "hello me\n"
    assert tcnn("many", "one").stdout == "one\n"
    help_text = tcnn("--help")
    assert help_text.returncode == 0
    assert "Greet." in help_text.stdout and "Many." in help_text.stdout and "broken" not in help_text.stdout
    assert "'greet'" in tcnn("gret").stderr
    for arguments, code in ((("broken",), 4), (("many", "two"), 1), (("many", "three"), 2), (("greet", "--x"), 2)):
        done = tcnn(*arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


def test_only_the_wanted_command_is_loaded() -> None:
    script = (
        "import json, sys\n"
        "from tcnn.cli.main import main\n"
        "try:\n    main(['models', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(json.dumps([name for name in ('api', 'jobs') if name in sys.modules]))"
    )
    assert json.loads(run(script).stdout.splitlines()[-1]) == []
