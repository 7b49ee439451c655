"""`make gpu` where there is no GPU: what it refuses, which Python it takes, and the tables that it writes."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.parts import CUT_OFF, DONE, FAILED, Outcome

ROOT = Path(__file__).parents[2]
SCRIPT = ("-m", "benchmarks.gpu")
HARDWARE = {"name": "NVIDIA H100", "capability": "9.0", "multiprocessors": 132, "memory_gib": 79.6, "cudnn": 91002}
FACTS = {
    "device": "cuda",
    "gpu": HARDWARE,
    "cuda": "12.8",
    "versions": {"torch": "2.8.0", "timm": "1.0.31", "triton": None},
}


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env={**os.environ, **environment}
    )


def test_a_python_without_the_packages_is_told_apart() -> None:
    assert run(sys.executable, *SCRIPT, "--can-run").returncode == 0
    bare = run(sys.executable, "-S", *SCRIPT, "--can-run", PYTHONPATH="")
    assert bare.returncode == 2
    assert len(bare.stderr.splitlines()) == 1
    assert "torch>=2.8 (none here)" in bare.stderr and "pydantic>=2.10 (none here)" in bare.stderr


def test_versions_are_compared_as_numbers() -> None:
    assert gpu._numbers("2.11.0+cu130") > gpu._numbers("2.8") > gpu._numbers("2.7.1")
    assert gpu.unmet() == []


@pytest.mark.parametrize(
    "probe", ["print('{\"gpu\": null}')", pytest.param(gpu.PROBE, marks=pytest.mark.slow)], ids=["told", "torch"]
)
def test_without_a_gpu_it_says_so_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], probe: str
) -> None:
    """The real probe loads torch, in a process of its own."""
    monkeypatch.setattr(gpu, "PROBE", probe)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "gpu: torch sees no GPU; for a dry run without one: make gpu DEVICE=cpu\n"
    assert not (tmp_path / "out").exists()


def test_every_part_is_there_on_both_devices() -> None:
    """Names are files; both runs measure the same kinds of thing; the tests come first."""
    kinds = {}
    for device in ("cuda", "cpu"):
        parts = gpu.parts(device)
        assert len({part.name for part in parts}) == len(parts)
        assert [part.name == "tests" for part in parts[:2]] == [True, False]
        assert {f"tests/gpu/{path.name}" for path in (ROOT / "tests/gpu").glob("test_*.py")} == {
            argument for part in parts for argument in part.arguments if argument.startswith("tests/gpu/")
        }
        assert all(any("{out}" in argument for argument in part.arguments) for part in parts)
        assert all(part.arguments[0] == "-m" and find_spec(part.arguments[1]) for part in parts), (
            "there is such a module"
        )
        kinds[device] = {part.name.partition("_")[0] for part in parts}
    assert kinds["cuda"] == kinds["cpu"]
    assert [pattern for pattern in gpu.SOURCES if not any(ROOT.glob(pattern))] == []


@pytest.mark.slow
def test_tests_run_side_by_side_and_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_a(): pass\n")
    (tmp_path / "test_two.py").write_text("def test_b(): assert False\ndef test_c(): pass\n")
    found = tmp_path / "found.xml"
    files = [str(tmp_path / f"test_{name}.py") for name in ("one", "two")]
    assert run(sys.executable, "-m", "benchmarks.gpu_tests", *files, "--out", str(found)).returncode == 1
    assert gpu.tests(found) == {"passed": 2, "failed": ["test_b"], "skipped": {}}


def test_what_pytest_found_is_read(tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no GPU')\ndef test_c(): assert 0\n"
        "@pytest.fixture\ndef broken(): raise OSError\ndef test_d(broken): pass\n"
    )
    report = tmp_path / "report.xml"
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(tmp_path))
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    assert run(*command, **alone).returncode == 1
    assert gpu.tests(report) == {"passed": 1, "failed": ["test_c", "test_d"], "skipped": {"no GPU": 1}}
    run(*command, "-k", "none", **alone)
    with pytest.raises(ValueError, match="no test was found"):
        gpu.tests(report)


def outcomes() -> list[Outcome]:
    """With the numbers that a CPU has given: they have the form of a GPU's."""
    layer = json.loads((ROOT / "benchmarks/results/gpsa_cpu.json").read_text())
    network = {
        "network": "T-resnet50", "what": "inference", "compiled": True, "images_per_second": 4321.5, "ratio": 0.87,
        "giga_multiply_adds": 7.26, "floor_share": 0.41, "against": "resnet50, stride removed",
    }  # fmt: skip
    return [
        Outcome("tests", FAILED, 31.0, "1 failed", {"passed": 55, "failed": ["test_a"], "skipped": {}}),
        Outcome("layer_512x14x4", DONE, 9.0, "", {**layer, "multiply_adds_per_second": 4e14, "bytes_per_second": 4e12}),
        Outcome("networks_stride-removed_compiled", DONE, 80.0, "", {"rows": [network]}),
        Outcome("networks_stride-removed_compiled_graphs", DONE, 40.0, "", {"rows": [{**network, "graphs": True}]}),
        Outcome("memory", CUT_OFF, 3.0, "still running | after 3 s"),
    ]


def test_the_tables_show_what_was_measured_and_what_was_not() -> None:
    text = gpu.report(outcomes(), FACTS)
    assert text.startswith("NVIDIA H100 (80 GiB, compute capability 9.0), CUDA 12.8, clocks as they were; torch 2.8.0,")
    assert "Triton missing" in text
    assert "800 TFLOP/s, the best copy 4000 GB/s" in text
    rows = json.loads((ROOT / "benchmarks/results/gpsa_cpu.json").read_text())["rows"]
    (row,) = [r for r in rows if (r["map"], r["what"], r["name"]) == ("14x14", "forward", "gpsa")]
    assert f"| 512, 14x14, 4 | forward | gpsa | {row['ms']:.1f} | {row['of_convolution']:.2f} |" in text
    assert "| T-resnet50 | inference | compiled | 4322 | 7.26 | 0.41 | resnet50, stride removed | 0.87 |" in text
    assert "| T-resnet50 | inference | compiled, replayed | 4322 |" in text
    assert "| tests | failed, 55 passed, 1 failed, 0 skipped | 31 |" in text
    assert "| memory | cut off: still running / after 3 s | 3 |" in text
    assert "window:14` a 64×64" not in text, "of what was cut off there are no numbers"


def test_the_page_is_filled_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    shutil.copy(ROOT / "docs" / "speed.md", page)
    before = page.read_text()
    for _ in range(2):
        gpu.show(page, "| new |\n")
    head, rest = before.split("<!-- gpu -->\n")
    assert page.read_text() == head + "<!-- gpu -->\n| new |\n<!-- /gpu -->" + rest.split("<!-- /gpu -->")[1]


STUB = "import sys\nprint(sys.argv[1:])\nif '--can-run' in sys.argv: sys.exit({can_run})\n"


@pytest.mark.parametrize("there", ["a virtual environment", "a Python with torch", "neither"])
def test_make_takes_the_python_that_can(tmp_path: Path, there: str) -> None:
    """Never installs where something can run: the machine may have no network."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "gpu.py").write_text(STUB.format(can_run=0 if there == "a Python with torch" else 2))
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    system = tmp_path / "system-python"
    system.write_text(f'#!/bin/sh\necho system "$@"\nif [ "$2" = venv ]; then exit 1; fi\nexec {sys.executable} "$@"\n')
    if there == "a virtual environment":
        (tmp_path / ".venv" / "bin").mkdir(parents=True)
        (tmp_path / ".venv" / ".ready").touch()
        (tmp_path / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\necho venv\nexec {sys.executable} "$@"\n')
        (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
    system.chmod(0o755)
    done = run("make", "-C", str(tmp_path), "gpu", f"PYTHON={system}", "DEVICE=cpu", "OUT=here")
    said = [line for line in done.stdout.splitlines() if not line.startswith("make")]
    ran = "['--device', 'cpu', '--out', 'here']"
    if there == "a virtual environment":
        assert said == ["venv", ran]
    elif there == "a Python with torch":
        asked, runs = "system -m benchmarks.gpu --can-run", "system -m benchmarks.gpu --device cpu --out here"
        assert said == [asked, "['--can-run']", runs, ran]
    else:
        assert "system -m venv .venv" in said and done.returncode != 0 and ran not in said


def test_the_training_loop_of_the_dry_run_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls `tcnn.finetune`, whose refusals grow: with fewer images than `make gpu DEVICE=cpu`, in this process."""
    from benchmarks.models import train_overhead

    (part,) = (part for part in gpu.parts("cpu") if part.name == "training_loop")
    out = tmp_path / "loop.json"
    given = [str(out) if argument == "{out}" else argument for argument in part.arguments[2:]]
    monkeypatch.setattr(sys, "argv", ["train_overhead", *given, "--images", "24"])
    train_overhead.main()
    assert json.loads(out.read_text())["images_per_second"].keys() == {"bare", "tcnn"}
