"""The house: nothing is imported in a circle, neither files nor rooms, every room says what it is for, the page
about it (docs/architecture.md) is true; and `make check`, which runs every tool, whatever another finds, and fails if
one does.
"""

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from benchmarks.drawing import architecture

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
WINGS = ("tcnn", "tcnn_jobs", "tcnn_api")


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What every module imports, where only a type checker looks as well."""
    graph = grimp.build_graph(*WINGS, exclude_type_checking_imports=False, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def circle(imports: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_file_imports_itself_through_others(imports: dict[str, set[str]]) -> None:
    assert len(imports) > 250
    assert circle(imports) == []


KINDS = (
    (r"(.*/)?__(init|main)__\.py|tcnn/version\.py", "what a package is"),
    (r"tests/(.*/)?conftest\.py", "fixtures of a folder"),
    (r"tcnn_jobs/migrations/(env|versions/\w+)\.py", "one step of the database"),
    (r"(deploy|docs/site)/\w+\.py", "a script of its own"),
    (r"(tcnn/cli/commands|tcnn_jobs/cli)/(.*/)?\w+\.py|tcnn_api/cli\.py", "one command, without what others import"),
)
SMALL = {
    "benchmarks/drawing/architecture.py": "a script that fills one page",
    "benchmarks/drawing/tiny_darknet_of_timm.py": "a model that registers itself when it is imported",
    "benchmarks/drawing/notebook.py": "a script that fills one page",
    "benchmarks/gpu_tests.py": "a process of its own",
    "benchmarks/models/initial_hits.py": "a script",
    "tcnn/analysis/pages/explanation.py": "a page of its own, which loads torch, as the pages beside it must not",
    "tcnn/data/order.py": "a leaf of four files that would import each other",
    "tcnn/evaluation/corruptions/levels.py": "a leaf of all corruptions",
    "tcnn/layers/backends/reference.py": "the formula, which the other backends are tested by",
    "tcnn/layers/exposed.py": "attention that hooks can look at",
    "tcnn/layers/initialise.py": "a leaf of layers and of the transformers of vit/",
    "tcnn/layers/shards.py": "distributed tensors",
    "tcnn/starting.py": "loaded before everything, so it loads nothing",
    "tcnn/training/launch/agent.py": "a process of its own, without torch",
    "tcnn/training/launch/rank.py": "a process of its own",
    "tcnn/vit/report.py": "a leaf of three files that would import each other",
    "tcnn_api/document.py": "a process of its own",
    "tcnn_api/routes/models.py": "a resource of its own",
    "tcnn_api/submission/target.py": "asks a process, which the pure functions of `check.py` do not",
    "tcnn_jobs/confined/patterns.py": "a process of its own",
    "tcnn_jobs/database/address.py": "pure functions of a text, below everything that connects",
    "tcnn_jobs/logs.py": "what server and workers configure alike",
    "tcnn_jobs/store/reading/snapshot.py": "a leaf of two files that read the queue",
    "tests/deploy/deployed.py": "a leaf of six files of tests",
    "tests/docs/test_notebook.py": "a page of its own",
    "tests/gpu/test_kernels.py": "a process of its own, beside those of the other files there",
    "tests/helpers/operations.py": "what every test of operations notes",
    "tests/helpers/safetensors_parts.py": "a leaf of tests of uploads and checkpoints",
    "tests/helpers/sampled.py": "a leaf of seventy files of tests, without torch",
    "tests/helpers/timm_suite.py": "a plugin that another process loads by name",
    "tests/jobs/worker/receiving.py": "a leaf of two files of tests",
}
"""Files of fewer than 80 lines, and why they are no part of another."""


def test_files_have_80_to_300_lines() -> None:
    """One concept a file: a longer one has several, a shorter one belongs to another, unless it is named above."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in listed.stdout.split()}
    assert {name: lines for name, lines in files.items() if lines > 300} == {}
    small = {name for name, lines in files.items() if lines < 80}
    unexplained = {name for name in small if not any(re.fullmatch(kind, name) for kind, _ in KINDS)}
    assert unexplained == set(SMALL)


def test_files_of_tests_have_names_of_their_own() -> None:
    """Where one process imports two of one name, the second is an error."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("wing", WINGS)
def test_no_room_imports_itself_through_others(imports: dict[str, set[str]], wing: str) -> None:
    """A room is a package, or a file that stands beside the packages of its wing."""

    def room(module: str) -> str:
        return ".".join(module.split(".")[:2])

    rooms: dict[str, set[str]] = {}
    for module, others in imports.items():
        if module.startswith(f"{wing}."):
            found = {room(other) for other in others if other.startswith(f"{wing}.")}
            rooms.setdefault(room(module), set()).update(found - {room(module)})
    assert circle(rooms) == []


def test_rooms_of_the_dashboard_import_those_above_them() -> None:
    """In the order of docs/architecture.md, which has every room; in a room no module imports itself through others."""
    page = ROOT / "tcnn_api/dashboard"
    told = re.findall(r"tcnn_api/dashboard/(\w+)/\)", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    assert sorted(told) == sorted(path.name for path in page.iterdir() if path.is_dir())
    elsewhere = [
        file for folder in ("tcnn/explorer/page", "tcnn/analysis/charts") for file in (ROOT / folder).iterdir()
    ]
    shared = {page / file.name for file in elsewhere}
    imports = {}
    for module in page.rglob("*.js"):
        named = re.findall(r'(?:from|import|URL\()\s*"(\.[^"]+)"', module.read_text(encoding="utf-8"))
        found = {(module.parent / name).resolve() for name in named}
        assert all(path.is_file() or path in shared for path in found), (module, named)
        imports[str(module)] = {str(path) for path in found - shared}
        rooms = {path.parent.name for path in found - shared if path.parent != module.parent}
        if module.parent != page:
            assert rooms <= set(told[: told.index(module.parent.name)]), module
    assert len(imports) > 50
    assert circle(imports) == []


def test_every_room_says_what_it_is_for() -> None:
    rooms = [path for wing in WINGS for path in (ROOT / wing).rglob("__init__.py") if "versions" not in path.parts]
    silent = [str(path.relative_to(ROOT)) for path in rooms if not path.read_text(encoding="utf-8").startswith('"""')]
    assert silent == []


def test_pictures_are_opened_in_one_place() -> None:
    """Where the formats are listed: of any other, Pillow may start another program."""
    opening = re.compile(
        r"\bImage\.open\(|from PIL\.Image import.*\bopen\b|\b(pil_loader|default_loader|read_image|decode_image)\b"
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for wing in (*WINGS, "benchmarks")
        for path in (ROOT / wing).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if opening.search(line)
    ]
    assert found == ["tcnn/data/decode.py: return Image.open(file, formats=_OPENED)"]


def test_text_is_utf8_wherever_it_is_read_or_written() -> None:
    """Elsewhere the locale would choose, which on Windows and under `LC_ALL=C` knows few letters."""
    rules = ("--isolated", "--no-cache", "--preview", "--select", "PLW1514")
    call = [sys.executable, "-m", "ruff", "check", *rules, *(str(ROOT / wing) for wing in WINGS)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_text_is_read_and_written_in_a_named_encoding() -> None:
    """The locale's may know ASCII alone; `tests/cli/test_cli_processes.py` runs every command there."""
    unnamed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for wing in WINGS
        for path in sorted((ROOT / wing).rglob("*.py"))
        if "_text" in (code := path.read_text(encoding="utf-8"))  # to parse all the others takes a second
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("read_text", "write_text")
        and not any(keyword.arg == "encoding" for keyword in node.keywords)
    ]
    assert unnamed == []


def test_no_models_dtype_or_device_is_that_of_its_first_parameter() -> None:
    """Which may be a whole or complex number, and need not be there: `weights_dtype` and `place_of` find them."""
    first = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for wing in WINGS
        for path in sorted((ROOT / wing).rglob("*.py"))
        if "parameters(" in (code := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and re.fullmatch(r"next\([\w.]+\.parameters\(\)\)", ast.unparse(node))
    ]
    assert first == []


TOOLS = ("ruff", "mypy", "lint-imports")


@pytest.mark.parametrize("faulty", [None, *TOOLS])
def test_every_fault_is_told_at_once(tmp_path: Path, faulty: str | None) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for tool in TOOLS:
        program = programs / tool
        program.write_text(f"#!/bin/sh\necho {tool} ran\nexit {int(tool == faulty)}\n")
        program.chmod(0o755)
    (tmp_path / ".venv" / ".ready").touch()
    done = subprocess.run(["make", "-C", tmp_path, "check"], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode == 0) == (faulty is None)
    assert [tool for tool in TOOLS if f"{tool} ran" not in done.stdout] == []


def test_without_a_cache_types_are_checked_by_two_processes(tmp_path: Path) -> None:
    def command() -> str:
        return subprocess.run(
            ["make", "--no-print-directory", "-n", "-f", ROOT / "Makefile", "types"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    assert "mypy --num-workers 2" in command()
    (tmp_path / ".mypy_cache").mkdir()
    assert "--num-workers" not in command()


@pytest.mark.parametrize(("status", "runs"), [(0, 1), (1, 1), (2, 2)])
def test_workers_that_do_not_start_are_done_without(tmp_path: Path, status: int, runs: int) -> None:
    """A busy machine starts them too late, and mypy ends with 2; faults in types are 1, and told once."""
    program = tmp_path / ".venv" / "bin" / "mypy"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "ran $*"\ntest -z "$*" || exit {status}\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["make", "-f", ROOT / "Makefile", "types"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines().count("ran --num-workers 2") == 1
    assert sum(line.startswith("ran") for line in done.stdout.splitlines()) == runs
    assert (done.returncode == 0) == (status != 1)


def test_before_it_installs_for_minutes_it_says_so(tmp_path: Path) -> None:
    """As `make demo` does in a fresh clone; pip is none, so nothing is installed."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        ["make", "-C", tmp_path, "demo", "PYTHON=false"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode != 0
    assert "installing into .venv, once: torch with its CUDA libraries is some 5 GB, which takes minutes" in done.stdout


def test_the_rooms_are_those_of_the_code() -> None:
    assert architecture.fill(PAGE) == PAGE, "python -m benchmarks.drawing.architecture"
    assert "tcnn/layers/backends/" in PAGE


def test_every_step_names_what_is_there() -> None:
    """`file` `name`: the name is defined in the file, or is a method of a class in it."""
    named = re.findall(r"`((?:tcnn|tcnn_jobs|tcnn_api)/[\w/]+\.py)` `(\w+)`", PAGE)
    assert len(named) > 25
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, kinds)}, (file, name)
    for path in re.findall(r"`((?:tcnn|tcnn_jobs|tcnn_api)/[\w/]+?(?:/|\.py))`", PAGE):
        assert (ROOT / path).exists(), path
