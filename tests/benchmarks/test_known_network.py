"""The network of the pictures is known to every process of a server by its name, whatever that imports first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.drawing import dogs


@pytest.mark.slow
def test_it_is_built_by_a_process_that_first_reads_checkpoints(tmp_path: Path) -> None:
    """As the explorer's does. What registers it must not need tcnn, which is only half imported then."""
    program = (
        "import gc, os; gc.disable(); from tcnn.checkpoints import checkpoint; import timm; "
        "print(timm.create_model('tiny_darknet').num_classes, flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **dogs.environment(tmp_path)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr
