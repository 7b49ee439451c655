"""A run that is killed at any moment and resumed ends with the very weights of one that was not. Real processes die."""

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from data_pictures import draw_classes
from forked import processes
from safetensors.torch import load_file
from tiny_runs import Normed, seeded

from tcnn.config import finetune_config
from tcnn.training.finetune import finetune
from tcnn.training.runs.callbacks import Progress
from tcnn.training.runs.resume import points
from tcnn.training.runs.rundir import RunDirectory

OPTIONS = {
    "size": 48, "epochs": 2, "batch_size": 8, "micro_batch": 4, "workers": 1, "device": "cpu", "checkpoint_steps": 2,
    "auto_augment": "rand-m9-mstd0.5-inc1", "mixup": 0.8, "cutmix": 1.0, "reprob": 0.25, "repeats": 3, "drop_path": 0.1,
    "ema": 0.9, "val_split": 0.25, "anneal": "warmup", "conversion": {"content_heads": 0},
}  # fmt: skip
ANNEALED = {
    "anneal_epochs": 5 / 3, "matching": 0.5, "hold": "all", "bn_reestimate": 2, "attention_lr": 1e-3,
    "anneal_path": "drift", "gate_temperature": 0.9, "position_temperature": 0.4,
}  # fmt: skip
"""Killed in the middle of annealing, which lasts for five updates of six."""
WAYS: dict[str, dict[str, Any]] = {
    "early": {"anneal_epochs": 1},
    "late": {"convert_at": 1},
    "annealed": ANNEALED,
    "held": {
        "anneal": "hold",
        "freeze": "trunk",
        "conversion": {"content_heads": 2, "query_key": "mimetic", "content": "pooled:2"},
    },
    "dilated": {
        "anneal_epochs": 5 / 3,
        "hold": "gates",
        "crop_padding": 4,
        "train_interpolation": "random",
        "teacher": "source",
        "position_lr": 0.02,
        "value_lr": 1e-4,
        "output_lr": 2e-4,
        "content_output_scale": 0.2,
        "conversion": {"stride": "dilate", "content_heads": 1, "content": "global,unpadded"},
    },
    "relative": {
        "anneal_epochs": 5 / 3,
        "convert_at": 1,
        "ema": None,
        "conversion": {"position": "relative-content", "position_reach": 4, "content": "window:2"},
    },
    "annealed late": ANNEALED | {"convert_at": 1, "anneal_epochs": 2 / 3},
    "compiled late": ANNEALED | {"convert_at": 1, "anneal_epochs": 2 / 3, "compile": True},
    "compiled, frozen": {"anneal": "hold", "freeze": "trunk", "compile": True},
}

SMALL = {"early", "annealed late", "compiled late"}
"""Ways of a network of two convolutions; the others have `test_resnet`."""


def train(out: Path, images: Path, when: str, way: str) -> None:
    """A run in this process, which dies in the middle of it unless `when` is never."""

    def report(now: Progress) -> None:
        if when == "in an epoch" and now.phase == "training" and (now.epoch, now.step) == (2, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        if when == "in a validation" and now.phase == "validating" and now.epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if when == "in a write" and now.phase == "training" and (now.epoch, now.step) == (2, 1):
            # The kernel ends the process in the middle of the write that passes this size: the next resume point.
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8_000 if way in SMALL else 300_000, resource.RLIM_INFINITY))

    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    config = finetune_config("quick", options=OPTIONS | WAYS[way])
    torch.manual_seed(0)
    own = timm.create_model("test_resnet", num_classes=3, drop_path_rate=0.1)  # a teacher must know the classes
    model = seeded(lambda: Normed(0.1)) if way in SMALL else own if config.teacher else "test_resnet"
    finetune(model, str(images), config=config, out=out, resume=True, pretrained=False, report=report)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("data"), ["a", "b", "c"], images=14)


def run(out: Path, images: Path, way: str, when: str = "never") -> int:
    """The exit status of a training process."""
    process = processes.Process(target=train, args=(out, images, when, way))
    process.start()
    process.join(300)
    assert process.exitcode is not None, "it did not end"
    return process.exitcode


@pytest.fixture(scope="module")
def uninterrupted(
    request: pytest.FixtureRequest, images: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert run(out, images, request.param) == 0
    return out, request.param


@pytest.mark.parametrize(
    ("uninterrupted", "when", "status"),
    [
        ("annealed late", "in a write", -signal.SIGXFSZ),
        ("annealed late", "in an epoch", -signal.SIGKILL),
        pytest.param("early", "in a write", -signal.SIGXFSZ, marks=pytest.mark.slow),
        pytest.param("held", "in a validation", -signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("early", "in an epoch", -signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("early", "in a validation", -signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("late", "in an epoch", -signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("annealed", "in an epoch", -signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("annealed", "in a validation", -signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("held", "in an epoch", -signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("dilated", "in an epoch", -signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("relative", "in a validation", -signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("compiled late", "in an epoch", -signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("compiled, frozen", "in an epoch", -signal.SIGKILL, marks=pytest.mark.slow),
    ],
    indirect=["uninterrupted"],
)
def test_killed_and_resumed_is_uninterrupted(
    uninterrupted: tuple[Path, str], images: Path, tmp_path: Path, when: str, status: int
) -> None:
    whole, way = uninterrupted
    out = tmp_path / "run"
    assert run(out, images, way, when) == status
    assert points(out / "resume"), "there is something to resume from"
    strays = list((out / "resume").glob(".*"))
    assert bool(strays) == (when == "in a write"), "the write was cut off in the middle, and only that one"
    assert run(out, images, way) == 0
    assert list((out / "resume").glob(".*")) == []
    for name in ("last.safetensors", "best.safetensors"):
        expected, found = load_file(whole / name), load_file(out / name)
        assert expected.keys() == found.keys()
        different = [key for key, tensor in expected.items() if not tensor.equal(found[key])]
        assert different == [], name
    untimed = [
        [{k: v for k, v in row.items() if k != "images_per_second"} for row in RunDirectory(path).rows()]
        for path in (whole, out)
    ]
    assert untimed[0] == untimed[1]
    assert (whole / "summary.csv").read_text() == (out / "summary.csv").read_text()
