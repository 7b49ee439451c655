"""Gloo processes: one batch between them, one result however many they are, files from the first."""

from pathlib import Path

import pytest
import torch
from data_pictures import draw_classes
from forked import ranks
from safetensors.torch import load_file
from tiny_runs import Normed, RunsOutOfMemory, seeded
from torch import nn

from tcnn.config import finetune_config
from tcnn.errors import EnvironmentFailure, RequestError
from tcnn.training.finetune import finetune
from tcnn.training.runs.rundir import RunDirectory

OPTIONS = {
    "size": 48, "epochs": 2, "batch_size": 8, "workers": 0, "device": "cpu", "val_split": 0.25, "mixup": 0.8,
    "drop_path": 0.2, "log_steps": 1, "checkpoint_steps": 2, "hold": "gates", "bn_reestimate": 2,
    "anneal": "warmup", "conversion": {"content_heads": 0},
}  # fmt: skip


def model() -> nn.Module:
    """Has batch normalisation and stochastic depth."""
    return seeded(lambda: Normed(0.2))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("data"), ["a", "b", "c"], images=15)


@pytest.fixture(scope="module")
def alone(images: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """What one process learns."""
    out = tmp_path_factory.mktemp("alone") / "run"
    finetune(model(), str(images), config=finetune_config("quick", options=OPTIONS), out=out, pretrained=False)
    return RunDirectory(out)


def share(out: Path, images: Path, **options: object) -> None:
    """What each of several processes does."""
    config = finetune_config("quick", options=OPTIONS | options)
    finetune(model(), str(images), config=config, out=out, pretrained=False)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_learn_what_one_does(
    images: Path, tmp_path: Path, alone: RunDirectory, processes: int
) -> None:
    """Nothing depends on how a batch is shared but rounding: eleven images to validate with divide by neither."""
    assert ranks(processes, share, tmp_path / "run", images) == [0] * processes
    one, two = alone, RunDirectory(tmp_path / "run")
    assert [row["kind"] for row in two.rows()] == [row["kind"] for row in one.rows()]
    for a, b in zip(one.rows("train"), two.rows("train"), strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)
        assert (b["lr"], b["temperature"], b["updates"]) == (a["lr"], a["temperature"], a["updates"])
    for a, b in zip(one.rows("epoch"), two.rows("epoch"), strict=True):
        assert b["val"]["images"] == a["val"]["images"], "every image is counted once"
        assert b["val"]["loss"] == pytest.approx(a["val"]["loss"], rel=1e-3)
    first, second = load_file(one.last), load_file(two.last)
    for key, tensor in first.items():
        torch.testing.assert_close(second[key], tensor, rtol=1e-2, atol=2e-4, msg=key)


MATCHED = {"matching": 0.5, "anneal_epochs": 1.5, "opt": "sgd", "lr": 0.01, "bn_reestimate": 1}
"""With plain steps: the gradient of matching begins as rounding, of which Adam would make a step of full length."""


def matched(out: Path, images: Path) -> None:
    share(out, images, **MATCHED)


@pytest.mark.slow
def test_several_processes_match_what_one_does(images: Path, tmp_path: Path) -> None:
    matched(tmp_path / "one", images)
    assert ranks(2, matched, tmp_path / "two", images) == [0, 0]
    one, two = RunDirectory(tmp_path / "one"), RunDirectory(tmp_path / "two")
    assert [row["loss"] for row in two.rows("train")] == pytest.approx([row["loss"] for row in one.rows("train")])
    first, second = load_file(one.last), load_file(two.last)
    for key, tensor in first.items():
        torch.testing.assert_close(second[key], tensor, rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.slow
def test_a_run_of_two_goes_on_with_one(images: Path, tmp_path: Path) -> None:
    assert ranks(2, share, tmp_path / "run", images) == [0, 0]
    run = RunDirectory(tmp_path / "run")
    whole = run.rows("epoch")
    for path in sorted(run.resume.glob("step-*"), reverse=True)[:1]:
        path.unlink()  # back to the point before the last validation
    result = finetune(
        model(), str(images), config=finetune_config("quick", options=OPTIONS), out=run.path, resume=True,
        pretrained=False,
    )  # fmt: skip
    assert result.epochs == 2
    assert [row["updates"] for row in run.rows("epoch")] == [row["updates"] for row in whole]
    again, before = run.rows("epoch")[-1]["val"], whole[-1]["val"]
    assert (again["images"], again["top1"]) == (before["images"], before["top1"])
    assert again["loss"] == pytest.approx(before["loss"], rel=1e-5)


def exhaust(out: Path, images: Path) -> None:
    """What each of two processes does: it cannot go on alone with a smaller part."""
    config = finetune_config("quick", options=OPTIONS | {"drop_path": 0.0})
    with pytest.raises(
        EnvironmentFailure, match="out of memory on device cpu; go on with --resume --set micro_batch=2"
    ):
        finetune(seeded(RunsOutOfMemory), str(images), config=config, out=out, pretrained=False)


def test_out_of_memory_ends_all_of_them(images: Path, tmp_path: Path) -> None:
    assert ranks(2, exhaust, tmp_path / "run", images) == [0, 0]


def refuse(out: Path, images: Path) -> None:
    """What each of two processes does."""
    config = finetune_config("quick", options=OPTIONS | {"batch_size": 7, "mixup": 0.0})
    with pytest.raises(RequestError, match="a batch of 7 cannot be shared equally among 2 processes"):
        finetune(model(), str(images), config=config, out=out, pretrained=False)


def test_a_batch_that_cannot_be_shared_is_refused(images: Path, tmp_path: Path) -> None:
    assert ranks(2, refuse, tmp_path / "run", images) == [0, 0]
    assert not (tmp_path / "run").exists()
