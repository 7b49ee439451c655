"""What tcnn brings of onnxruntime-web is what its makers published: the npm package's own bytes."""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tcnn.explorer.export import page_files

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("npm") is None, reason="NOT TESTED: where onnxruntime-web is from, for lack of npm")
def test_it_is_the_npm_package() -> None:
    ours = dict(page_files())
    version = re.search(rb"ONNX Runtime Web v([\d.]+)", ours["ort.js"][:200])
    assert version is not None
    script = f"""
import hashlib, sys
sys.path.insert(0, {str(ROOT / "deploy")!r})
import onnxruntime_web
for name, content in sorted(onnxruntime_web.fetch({version[1].decode()!r}).items()):
    print(name, hashlib.sha256(content).hexdigest())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED: where onnxruntime-web is from, npm does not serve it ({done.stderr[-200:]})")
    theirs = dict(line.split() for line in done.stdout.splitlines())
    assert theirs == {name: hashlib.sha256(ours[name]).hexdigest() for name in ("ort.js", "ort.wasm")}
