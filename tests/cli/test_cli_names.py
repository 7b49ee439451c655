"""Models by every name that people have for them, in every command: tags, `timm/…`, `t_…`, files of timm's train.py."""

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from data_pictures import draw_classes
from safetensors import safe_open
from safetensors.torch import save_file
from timm.utils import CheckpointSaver
from torch import nn

import tcnn as library
from tcnn.errors import RequestError
from tcnn.workflows.pipeline import plan
from tcnn.zoo.catalogue import cnn_of

Run = Callable[..., Any]
TRAINED = "timm/model_best.pth.tar"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> Path:
    """What timm's train.py leaves of a T-CNN, and of a CNN; and images."""
    root = tmp_path_factory.mktemp("made")
    draw_classes(root / "p", ["a", "b", "c"], 4)
    for name, folder in (("t_test_resnet", "timm"), ("test_resnet", "cnn")):
        kwargs = {"content_heads": 2, "anneal_steps": 9} if name.startswith("t_") else {}
        model = lively(name, num_classes=3, **kwargs)
        options = argparse.Namespace(model=name, num_classes=3, model_kwargs=kwargs, img_size=48, in_chans=None)
        (root / folder).mkdir()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        saver = CheckpointSaver(model, optimizer, args=options, checkpoint_dir=str(root / folder))
        saver.save_checkpoint(0, metric=50.0)
    return root


@pytest.fixture
def trained(tmp_path: Path, made: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def test_models_are_listed_by_any_spelling(tcnn: Run) -> None:
    expected = tcnn("models", "resnet50d").out
    for spelling in ("timm/resnet50d.ra2_in1k", "resnet50d.ra2_in1k", "hf-hub:timm/resnet50d.a1_in1k", "t_resnet50d"):
        assert tcnn("models", spelling).out == expected, spelling
    assert "best" in tcnn("models", "resnet50d.best").error(2)


def test_the_hubs_name_and_the_t_cnns_are_timms(tcnn: Run) -> None:
    for spelling in ("timm/test_resnet.r160_in1k", "t_test_resnet"):
        shown = tcnn("convert", spelling, "--dry-run", "--json").json["conversion"]
        assert shown["base_model"] == "test_resnet.r160_in1k"
        assert shown["layers"]
    assert tcnn("convert", "timm/no_such", "--dry-run").error(2).startswith("no_such: no timm model of this name")
    (Path.cwd() / "i.jpg").touch()
    assert tcnn("predict", "runs/gone", "i.jpg").error(2).startswith("runs/gone: no such file or directory")
    error = tcnn("finetune", "t_test_resnet", "--data", "p", "--no-convert").error(2)
    assert error == "--no-convert: t_test_resnet is a T-CNN; name test_resnet"


def test_what_is_not_there_is_said_to_be_missing(tcnn: Run, trained: Path) -> None:
    missing = "gone/run: no such file or directory; a timm name has no slash, a repository is hf-hub:gone/run"
    (trained / "here" / "resume").mkdir(parents=True)
    empty = "here/resume: neither a checkpoint nor a directory of a run or a model; name one of these, or a timm name"
    for command, name, expected in (
        ("evaluate", "gone/run", missing),  # and not that it does not say what it was trained on
        ("info", "gone/run", missing),
        ("evaluate", "gone.safetensors", "gone.safetensors: expected a tcnn checkpoint, found nothing"),
        ("finetune", "here/resume", empty),
        ("finetune", "gone.pth.tar", "gone.pth.tar: no such file"),
        ("evaluate", "timm", "timm: expected a tcnn checkpoint, found no model.safetensors"),
    ):
        data = ("--data", "p") if command == "finetune" else ()
        assert tcnn(command, name, *data).error(2) == expected
    save_file({"x": torch.zeros(1)}, trained / "w.safetensors")
    foreign = "w.safetensors: a safetensors file, but not written by tcnn; convert its model first: "
    assert tcnn("convert", "w.safetensors", "o.safetensors").error(2).startswith(foreign)
    assert tcnn("verify", "t_test_resnet", "--against", "w.safetensors").error(2).startswith(foreign)
    named = tcnn("models", "w.safetensors").error(2)
    assert named.endswith("where a model's name is expected; weights stand beside it: MODEL --weights w.safetensors")
    (trained / "runs").mkdir()
    assert tcnn("convert", TRAINED, "runs/one").code == 0
    for command in (("predict", "runs", "p/a/0.jpg"), ("evaluate", "runs")):
        assert tcnn(*command).error(2).endswith("found no model.safetensors; runs/one has one")


def test_a_run_stopped_in_its_first_epoch_is_said_to_be_one(tcnn: Run, trained: Path) -> None:
    """It was no run, no checkpoint, and no timm model of this name, whichever command was asked."""
    run = trained / "run"
    (run / "resume").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    begun = "run: a run whose first epoch has not ended, so that there is no model in it yet; go on with it "
    commands = (
        ("info",), ("predict", "p/a/0.jpg"), ("evaluate", "--data", "p"), ("push", "me/net", "--dry-run"),
        ("finetune", "--data", "p", "--out", "o"), ("plan", "--data", "p"), ("fold", "o.safetensors"),
    )  # fmt: skip
    for command, *rest in commands:
        assert tcnn(command, "run", *rest).error(2) == f"{begun}(tcnn finetune … --resume)", command
    (run / "converted.safetensors").touch()
    assert tcnn("info", "run").error(2).endswith(", or name run/converted.safetensors, with which it began")


def test_so_do_python_and_a_service(tmp_path: Path) -> None:
    assert plan("t_test_resnet", library.ConversionConfig()).model == "test_resnet"
    with pytest.raises(RequestError, match="convert=False: t_test_resnet is a T-CNN; name test_resnet"):
        library.finetune("t_test_resnet", "p", out=tmp_path / "run", convert=False)
    with pytest.raises(RequestError, match="p: no such"):  # the name itself is taken
        library.finetune("t_test_resnet", "p", out=tmp_path / "run")


def test_what_lies_there_is_meant_before_timms_t_cnn(tcnn: Run, trained: Path) -> None:
    assert cnn_of("t_test_resnet") == "test_resnet"
    assert tcnn("convert", TRAINED, "t_test_resnet").code == 0
    assert cnn_of("t_test_resnet") == "t_test_resnet"
    assert "t_test_resnet brings weights of its own" in tcnn("finetune", "t_test_resnet", "--weights", "w.pth").err


@pytest.mark.slow
def test_what_timm_trained_enters_every_command(tcnn: Run, trained: Path) -> None:
    (row,) = tcnn("evaluate", TRAINED, "--data", "p", "--json").json["rows"]
    assert (row["outputs"], row["height"]) == (3, 48), "of the size that it was trained at"
    (layers,) = [tcnn("inspect", TRAINED, "--json").json["layers"]]
    assert [len(layer["heads"]) for layer in layers] == [11, 11], "with the arguments that it was built with"
    assert len(tcnn("predict", TRAINED, "p/a", "--json").json["models"][0]["images"]) == 4
    assert tcnn("export", TRAINED, "x.pt2", "--fixed", "--size", 32).code == 0
    error = tcnn("verify", TRAINED).error(2)
    assert error.startswith(f"{TRAINED}: of timm's train.py, which records no source; name it with --against MODEL")
    assert tcnn("convert", TRAINED, "o.safetensors", "--stride", "dilate").error(2) == (
        f"{TRAINED}: is a T-CNN already, so stride would have no effect; leave it out"
    )
    made = tcnn("convert", TRAINED, "o.safetensors")
    assert "a T-CNN already, and trained, so it was not compared with its CNN" in made.out
    (again,) = tcnn("evaluate", "o.safetensors", "--data", "p", "--json").json["rows"]
    assert again["clean"]["loss"] == row["clean"]["loss"]


def test_a_cnn_that_timm_trained_is_converted(tcnn: Run, trained: Path) -> None:
    assert tcnn("convert", "cnn/model_best.pth.tar", "c.safetensors").code == 0
    with safe_open("c.safetensors", "pt") as file:
        assert file.get_tensor("fc.weight").shape[0] == 3
    assert tcnn("verify", "c.safetensors", "--weights", "cnn/model_best.pth.tar").code == 0
    error = tcnn("fold", "cnn/model_best.pth.tar", "f.safetensors").error(2)
    assert error == "cnn/model_best.pth.tar: nothing in it is converted; convert it first: tcnn convert"


def test_a_file_opens_nothing_that_it_names(tcnn: Run, trained: Path) -> None:
    for name in ("hf-hub:timm/resnet18.a1_in1k", "local-dir:elsewhere"):
        torch.save({"arch": name, "state_dict": {"a": torch.ones(1)}}, "w.pth")
        assert "which is no timm name; name its architecture" in tcnn("evaluate", "w.pth", "--data", "p").error(2)
    options = argparse.Namespace(model_kwargs={"pretrained_cfg": {"file": "other.pth"}})
    torch.save({"arch": "test_resnet", "args": options, "state_dict": {"a": torch.ones(1)}}, "w.pth")
    assert "'pretrained_cfg' is not allowed in a file" in tcnn("evaluate", "w.pth", "--data", "p").error(2)


def test_weights_of_a_file_are_evaluated(tcnn: Run, trained: Path) -> None:
    state = timm.models.load_state_dict(TRAINED)
    torch.save({f"model.{name}": tensor for name, tensor in state.items()}, "w.pth")
    assert tcnn("evaluate", "w.pth", "--data", "p").error(2).endswith("name it: MODEL --weights w.pth")
    assert "does not fit t_test_resnet" in tcnn("evaluate", "t_test_resnet", "--weights", "w.pth", "--data", "p").err
    torch.save(timm.models.load_state_dict("cnn/model_best.pth.tar"), "cnn.pth")
    done = tcnn("evaluate", "test_resnet", "--checkpoint", "cnn.pth", "--data", "p", "--size", 48)
    assert done.code == 0
    assert "note: cnn.pth: weights for 3 classes, so that is what the model tells apart" in done.err
    assert tcnn("evaluate", "a", "b", "--weights", "w.pth", "--data", "p").error(2).startswith("--weights: belong to")
    error = tcnn("evaluate", TRAINED, "--weights", "cnn.pth", "--data", "p").error(2)
    assert error.startswith(f"--weights: {TRAINED} brings weights of its own")


@pytest.mark.slow
def test_verify_says_what_a_run_is(tcnn: Run, trained: Path) -> None:
    short = ("--preset", "quick", "--epochs", 1, "--batch-size", 4, "--size", 32, "--device", "cpu", "--workers", 0)
    common = ("--weights", "cnn/model_best.pth.tar", "--data", "p", "--val-split", 0.25, *short)
    assert tcnn("finetune", "test_resnet", *common, "--no-convert", "--out", "run").code == 0
    assert tcnn("verify", "run").error(2) == (
        "run: a CNN, in which nothing is converted, so there is nothing to verify; convert it: tcnn convert run OUT, "
        "which verifies what it writes"
    )
    assert tcnn("verify", "run/best.safetensors").error(2).startswith("run/best.safetensors: a CNN, in which ")
    assert (
        tcnn(
            "finetune", TRAINED, "--data", "p", "--val-split", 0.25, *short, "--anneal", "warmup", "--out", "tuned"
        ).code
        == 0
    )
    assert tcnn("verify", "tuned").error(2).startswith("tuned: has been trained since it was converted")
