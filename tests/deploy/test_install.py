"""The Dockerfile's steps without Docker: a clean environment, a user who is not root, one job, and no process left."""

import subprocess
import sys

import pytest
from deployed import ROOT


@pytest.mark.slow  # a new environment with everything in it: 36 s
def test_install() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "deploy/install_test.py"], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hash compared" in done.stdout
