"""The oldest torch that pyproject.toml allows, installed beside this one, compiles layers of every kind."""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
PROGRAM = """
import sys
import torch
import tcnn
from tcnn.layers import GPSA2d

def gradients(call, x):
    x = x.clone().requires_grad_()
    y = call(x)
    return y, *torch.autograd.grad(y.square().sum(), x)

options = eval(sys.argv[1])
torch.manual_seed(0)
layer = GPSA2d(4, 6, 3, **{"padding": 1, "temperature": 0.8, "dtype": torch.float64, **options})
layer.fused_attn = "exposed" not in sys.argv
for dynamic in (False, True):
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for batch, height in ((2, 6), (5, 7)):
        x = torch.randn(batch, 4, height, 5, dtype=torch.float64)
        for found, expected in zip(gradients(compiled, x), gradients(layer, x)):
            torch.testing.assert_close(found, expected)
torch._dynamo.reset()
fused = tcnn.fuse(torch.nn.Sequential(layer))
torch.testing.assert_close(torch.compile(fused, backend="aot_eager", fullgraph=True)(x), layer.eval()(x))
print(torch.__version__)
"""
OPTIONS: dict[str, dict[str, object]] = {
    "soft": {}, "hard": {"temperature": 1 / 46}, "groups": {"groups": 2}, "stride": {"stride": 2},
    "content heads": {"content_heads": 1}, "both": {"content_heads": 1, "temperature": 1 / 46},
    "window": {"content": "window:3"}, "pooled": {"content": "pooled:2"}, "unpadded": {"content": "global,unpadded"},
    "quadratic": {"position": "quadratic"}, "relative": {"position": "relative"},
    "relative content": {"position": "relative-content"}, "reflect": {"padding_mode": "reflect"},
    "same": {"padding": "dynamic", "stride": 2}, "exposed": {},
}  # fmt: skip


def oldest() -> str:
    """The version that pyproject.toml names, as 2.8.0."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    found = next(filter(None, (re.fullmatch(r"torch>=([\d.]+).*", line) for line in wanted)))[1]
    return found if found.count(".") > 1 else f"{found}.0"


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """Of an environment with the oldest torch and tcnn, which is deleted afterwards."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:  # gigabytes: too much for a place in memory
        python = Path(folder, "bin", "python")
        for words in (
            ("venv", "--quiet", "--clear", "--python", sys.executable, folder),
            ("pip", "install", "--quiet", "--python", python, f"torch=={oldest()}", ROOT),
        ):
            done = subprocess.run([UV, *words], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"NOT TESTED: torch {oldest()}, which could not be installed: {done.stderr.strip()[-200:]}")
        yield python


@pytest.mark.parametrize("name", OPTIONS)
def test_the_oldest_torch_compiles_a_layer(name: str, python: Path, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-P", "-W", "ignore", "-c", PROGRAM, repr(OPTIONS[name]), name],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(oldest())
