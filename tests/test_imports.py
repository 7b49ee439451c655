"""`import tcnn` and `tcnn --help` load next to nothing; timm learns the converted models whatever is imported first;
the types of what is public are complete.

Each question is asked in a Python of its own, because a module is imported only once.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import flop_registry

import tcnn

HEAVY = ("torch", "timm", "torchvision", "pydantic", "numpy", "safetensors")
JOINED = ("tcnn_api", "tcnn_jobs")
"""Packages whose commands join `tcnn`: only the overview loads them all."""


def ask(script: str) -> Any:
    """Run a script in a fresh Python and read the JSON that it prints last."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def loaded_after(statements: list[str], names: tuple[str, ...] = HEAVY) -> list[str]:
    """Which heavy packages, or others, are loaded once these statements ran."""
    loaded = f"[name for name in {names!r} if name in sys.modules]"
    return ask("\n".join([*statements, "import json, sys", f"print(json.dumps({loaded}))"]))


def command(*arguments: str) -> str:
    """Statements that run a `tcnn` command and go on when it is done."""
    run = f"    main({list(arguments)!r})"
    return f"from tcnn.cli.main import main\ntry:\n{run}\nexcept SystemExit as end:\n    assert not end.code"


NOTHING = [
    "import tcnn",
    "import tcnn; dir(tcnn); tcnn.__version__; tcnn.TcnnError",
    command("--help"),
    command("--version"),
]
LITTLE = [
    command("models", "resnet18"),
    command("models", "resnet18", "--json"),
    *(command(name, "--help") for name in ("convert", "verify", "models", "demo")),  # typer itself loads pydantic
    "import tcnn\ntcnn.ConversionConfig(stride='remove')",
    "from tcnn.zoo import catalogue\ncatalogue.check('resnet50d.ra2_in1k')",
]


def test_next_to_nothing_is_loaded() -> None:
    """One after the other in one process, and so the less for those that come first."""
    assert loaded_after(NOTHING) == []


def test_the_catalogue_and_the_configuration_need_no_torch() -> None:
    """Nor does one command load those of other packages."""
    assert set(loaded_after(LITTLE, (*HEAVY, *JOINED))) <= {"pydantic"}


@pytest.mark.slow
@pytest.mark.parametrize("statements", [*NOTHING, *LITTLE])
def test_each_alone_loads_what_it_needs(statements: str) -> None:
    assert set(loaded_after([statements])) <= ({"pydantic"} if statements in LITTLE else set())


def test_the_public_names_are_there() -> None:
    assert dir(tcnn) == sorted(tcnn.__all__)
    assert len(set(tcnn.__all__)) == len(tcnn.__all__)
    for name in tcnn.__all__:
        found = getattr(tcnn, name)
        assert name == "__version__" or found.__name__ == name
    with pytest.raises(AttributeError, match="module 'tcnn' has no attribute 'transmogrify'"):
        tcnn.transmogrify  # noqa: B018


FIRST = """
import gc
import json
import os
import sys

gc.disable()  # and _exit below: neither is asked about here, and both take a second
import torch
import torch._dynamo  # which timm loads, too, and every fork would
import torchvision

assert "timm" not in sys.modules and "tcnn" not in sys.modules
answers = {}
for statement in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            exec(statement)
            import timm

            answer = [name for name in ("t_resnet18", "t_resnet50d", "t_convnext_atto") if timm.is_model(name)]
        except BaseException as error:
            answer = repr(error)
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answers[statement] = json.load(pipe)
    os.wait()
print(json.dumps(answers), flush=True)
os._exit(0)
"""
MORE = [
    "import timm.layers, tcnn",
    "import tcnn; tcnn.convert",
    "import tcnn, timm",
    "import timm, tcnn",
    "from timm import create_model; import tcnn",
    "import tcnn; tcnn.GPSA2d",
    "import tcnn; tcnn.load",
    *(
        f"import tcnn.{module}"
        for module in (
            "layers.filters",
            "conversion.surgery",
            "conversion.register",
            "demo.journey",
            "hugging_face",
            "training.finetune",
        )
    ),
]


def answers(statements: Iterable[str]) -> dict[str, object]:
    """One Python loads torch, and a fork of it answers each question."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST, json.dumps(list(statements))],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


EXPECTED = ["t_resnet18", "t_resnet50d", "t_convnext_atto"]


def anew(statement: str) -> object:
    """What the statement leads to in a fork of this process that forgets timm and tcnn: torch need not be loaded."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for name in [*sys.modules]:
                if name.partition(".")[0] in ("timm", "tcnn", "tcnn_jobs"):
                    del sys.modules[name]
            flop_registry.pop(torch.ops.mkldnn._linear_pointwise, None)  # torch takes a formula only once
            place: dict[str, object] = {}
            exec(statement, place)
            exec("import timm", place)
            models: Any = place["timm"]
            answer: object = [name for name in EXPECTED if models.is_model(name)]
        except BaseException as error:
            answer = repr(error)
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = json.load(pipe)
    os.waitpid(child, 0)
    return answer


@pytest.mark.slow
def test_whatever_is_imported_first_timm_knows_the_converted_models() -> None:
    assert anew("import timm.layers, tcnn") == EXPECTED


@pytest.mark.slow
def test_whatever_else_is_imported_first() -> None:
    assert answers(MORE) == dict.fromkeys(MORE, EXPECTED)


def test_a_model_without_data_leaves_nothing_behind() -> None:
    """Built on the meta device; then real ones of the same geometry compute as ever. Here tcnn is imported first."""
    assert anew(f"import tcnn; tcnn.convert\n{WAYS['meta']}") == EXPECTED


@pytest.mark.slow
def test_a_model_of_fake_tensors_leaves_nothing_behind() -> None:
    """Nor one whose device is an argument."""
    assert answers(WAYS.values()) == dict.fromkeys(WAYS.values(), EXPECTED)


OPTIONAL = (
    "datasets", "fastapi", "httpx", "matplotlib", "onnx", "onnxruntime", "onnxscript", "ray", "scipy", "sklearn",
    "sqlalchemy", "structlog", "tenacity",
)  # fmt: skip
BARE = f"""
import sys
loaded = [name for name in sys.modules if name.partition(".")[0] in {OPTIONAL}]
sys.modules.update(dict.fromkeys([*{OPTIONAL}, *loaded]))
import tcnn
assert all(hasattr(tcnn, name) for name in tcnn.__all__)
for statement in ("tcnn.report('run')", "tcnn.plots('run')", "import tcnn_jobs.client"):
    try:
        exec(statement)
        raise AssertionError(statement)
    except (tcnn.TcnnError, ImportError) as error:
        assert 'not installed: pip install "tcnn[' in str(error), (statement, error)
"""


def test_without_the_extras_every_name_is_there_and_says_what_to_install() -> None:
    assert anew(BARE) == EXPECTED


AFTERWARDS = """
source = timm.create_model("test_resnet").eval()
x = torch.randn(1, 3, 64, 64)
with torch.no_grad():
    expected = source(x)
    assert (tcnn.convert(source).model(x) - expected).norm() < 1e-5 * expected.norm()
    soft = timm.create_model("t_test_resnet", temperature=1.0).eval()
    assert soft(x).isfinite().all()
"""
"""Real models of the same geometry compute as if nothing had been."""

META = """
import torch, tcnn, timm
with torch.device("meta"):
    model = timm.create_model("t_test_resnet")
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}
    assert model(torch.empty(1, 3, 64, 64)).shape == (1, 1000)
    model.layer4[0].conv1.set_temperature(1)
    assert model(torch.empty(1, 3, 64, 64)).shape == (1, 1000)
"""

FAKE = """
import torch, tcnn, timm
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
with FakeTensorMode():
    model = timm.create_model("t_test_resnet")
    assert all(isinstance(t, FakeTensor) for t in (*model.parameters(), *model.buffers()))
    assert model(torch.empty(1, 3, 64, 64)).shape == (1, 1000)
    model.train()(torch.empty(2, 3, 64, 64)).sum().backward()
    assert timm.create_model("t_test_resnet", stride="remove")(torch.empty(2, 3, 64, 64)).shape == (2, 1000)
"""

DEVICE = """
import torch, tcnn, timm
model = timm.create_model("t_test_resnet", device="meta", dtype=torch.bfloat16)
assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}
assert {t.dtype for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()} == {torch.bfloat16}
"""

WAYS = {"meta": META + AFTERWARDS, "fake": FAKE + AFTERWARDS, "device=": DEVICE + AFTERWARDS}


PYRIGHT = "pyright@1.1.414"


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("npm") is None, reason="NOT TESTED: complete types, for lack of npm, which has pyright"
)
@pytest.mark.parametrize(("package", "least"), [("tcnn", 0.95), ("tcnn_jobs.client", 1.0)])
def test_types_are_complete(package: str, least: float, tmp_path: Path) -> None:
    """Of this environment from a folder elsewhere, so that the installation, editable or not, is what pyright finds."""
    done = subprocess.run(
        ["npm", "exec", "--yes", "--", PYRIGHT, "--verifytypes", package, "--ignoreexternal", "--outputjson"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        pytest.skip(f"NOT TESTED: complete types, pyright cannot be had ({done.stderr[-200:]})")
    found = json.loads(done.stdout)["typeCompleteness"]
    known = found["exportedSymbolCounts"]
    assert sum(known.values()) > 40, "pyright has found the package"
    incomplete = [
        f"{one['name']}: {one['diagnostics'][0]['message'].splitlines()[0]}"
        for one in found["symbols"]
        if one["isExported"] and not one["isTypeKnown"] and one["diagnostics"]
    ]
    assert found["completenessScore"] >= least, "\n".join(incomplete)
