"""A user's own script under `torchrun`: two processes make one run, which one process goes on with."""

import json
import os
import subprocess
import sys
from pathlib import Path

from data_pictures import draw_classes

from tcnn.config import finetune_config
from tcnn.training.finetune import finetune
from tcnn.training.runs.rundir import RunDirectory

OPTIONS = {
    "size": 48, "epochs": 2, "batch_size": 8, "workers": 0, "device": "cpu", "val_split": 0.25, "mixup": 0.8,
    "drop_path": 0.2, "log_steps": 1, "checkpoint_steps": 2, "hold": "gates", "bn_reestimate": 2,
    "anneal": "warmup", "conversion": {"content_heads": 0},
}  # fmt: skip
SCRIPT = """
import json, sys
import torch
from tcnn.config import finetune_config
from tcnn.training.finetune import finetune

torch.set_num_threads(1)
out, data, options = sys.argv[1:4]
config = finetune_config("quick", options=json.loads(options))
finetune("test_resnet", data, config=config, out=out, pretrained=False, resume=True)
"""


def test_two_processes_of_torchrun_make_one_run(tmp_path: Path) -> None:
    images = draw_classes(tmp_path / "data", ["a", "b", "c"], images=15)
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0", "--nproc-per-node=2",
        "train.py", "run", str(images), json.dumps(OPTIONS),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = RunDirectory(tmp_path / "run")
    assert [row["updates"] for row in run.rows("epoch")] == [4, 8]  # of 34 images in batches of 8
    config = finetune_config("quick", options=OPTIONS)
    result = finetune("test_resnet", str(images), config=config, out=run.path, resume=True, pretrained=False)
    assert result.epochs == 2
