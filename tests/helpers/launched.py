"""`tcnn finetune --nproc 2` as a process, far enough that there is something to resume from."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tiny_runs import TINY, colours

from tcnn.training.runs.resume import points


def launched(folder: Path) -> "subprocess.Popen[str]":
    """A long run in `folder/run` that has written two resume points."""
    colours(folder / "images")
    options = {**TINY, "epochs": 200, "checkpoint_steps": 1}
    process = subprocess.Popen(
        [
            sys.executable, "-m", "tcnn", "finetune", "test_resnet", "--no-pretrained", "--data", "images", "--preset",
            "quick", "--nproc", "2", "--out", "run",
            *(w for key, value in options.items() for w in ("--set", f"{key}={'null' if value is None else value}")),
        ],
        cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 200
    while len(points(folder / "run" / "resume")) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    return process
