"""What names and files stand for: a file of ours or a model to be built, a run without a model yet, whose training."""

import argparse
import json
import math
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from tcnn.checkpoints.files import (
    checkpoint_file,
    finite,
    forbidden,
    from_json,
    is_ours,
    licence_of,
    training_record,
    unfinished,
)
from tcnn.checkpoints.opening import architecture_of, as_source, open_model
from tcnn.errors import CheckpointError, RequestError

RECORD = {"data": "photos", "seed": 3}


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("a.safetensors", True),
        (Path("resnet18"), True),
        ("resnet18", False),
        ("resnet18.a1_in1k", False),
        ("t_resnet18", True),  # such as what `tcnn convert resnet18 t_resnet18` writes
        ("empty", True),  # a folder whose name is no model's
        ("train/model_best.pth.tar", True),
    ],
)
def test_a_name_is_a_file_or_a_model(
    name: str | Path, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("resnet18", "t_resnet18", "resnet18.a1_in1k", "empty", "train"):
        (tmp_path / folder).mkdir()
    torch.save({"state_dict": {}, "arch": "resnet18"}, tmp_path / "train" / "model_best.pth.tar")
    assert is_ours(name) is ours


def test_a_folder_called_like_a_model_is_ours_with_a_checkpoint_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resnet18").mkdir()
    (tmp_path / "resnet18" / "best.safetensors").touch()
    assert is_ours("resnet18")


@pytest.mark.parametrize("below", ["", "run"])
def test_a_run_without_a_model_yet(tmp_path: Path, below: str) -> None:
    run = tmp_path / below
    (run / "resume").mkdir(parents=True)
    assert unfinished(tmp_path) is None, "a folder of that name, but no run"
    (run / "config.json").write_text("{}")
    assert str(unfinished(tmp_path)).endswith("go on with it (tcnn finetune … --resume)")
    (run / "converted.safetensors").touch()
    assert checkpoint_file(tmp_path) is None, "what a run began with has learnt nothing"
    assert f"or name {run / 'converted.safetensors'}, with which it began" in str(unfinished(tmp_path))
    (run / "last.safetensors").touch()
    assert checkpoint_file(tmp_path) == run / "last.safetensors"
    assert unfinished(tmp_path) is None


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"training": RECORD}, RECORD),
        ({"source": {"training": RECORD}}, RECORD),
        ({"learned_from": RECORD}, RECORD),
        ({"training": {"data": "last"}, "source": {"training": RECORD}}, {"data": "last"}),
        ({"training": RECORD | {"metrics": {"loss": math.nan}}}, RECORD | {"metrics": {"loss": None}}),
        ({"training": None, "source": {}}, None),
        ({"training": [1]}, None),
        ({"source": [1]}, None),
        ({}, None),
    ],
    ids=str,
)
def test_the_training_that_made_the_weights(
    tmp_path: Path, metadata: dict[str, object], expected: dict[str, object] | None
) -> None:
    file = tmp_path / "m.safetensors"
    save_file({"a": torch.zeros(1)}, file, {name: json.dumps(value) for name, value in metadata.items()})
    assert training_record(file) == expected


def test_null_in_the_place_of_numbers_that_json_does_not_have() -> None:
    given = {"loss": math.nan, "spans": [(1.5, math.inf), [-math.inf, 2]], "top1": 0.5, "name": "NaN", "best": True}
    expected = given | {"loss": None, "spans": [[1.5, None], [None, 2]]}
    assert finite(given) == from_json(json.dumps(given)) == expected


def test_what_has_no_record(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "m.safetensors", {"training": "{not JSON"})
    assert [training_record(tmp_path / name) for name in ("none", "text", "m.safetensors")] == [None] * 3


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"num_classes": 3, "block_args": {"act": "relu", "sizes": (1, 2.5, None)}}, None),
        ({"num_classes": 3, "checkpoint_path": "x"}, "checkpoint_path"),
        ({"block_args": {"inner": {"checkpoint_path": "x"}}}, "block_args"),
        ({"act_layer": torch.nn.ReLU}, "act_layer"),
        ({"deep": [[[[1]]]]}, "deep"),
        ({"deep": [[[1]]]}, None),
    ],
    ids=str,
)
def test_arguments_that_no_file_may_have(arguments: dict[str, object], found: str | None) -> None:
    assert forbidden(arguments) == found


@pytest.mark.parametrize(
    ("weights", "earlier", "licence"),
    [
        ("pretrained", None, "apache-2.0"),
        (None, None, "apache-2.0"),
        ("random", None, None),
        ("file", None, None),
        ("file", "random", None),
        ("file", "pretrained", "apache-2.0"),  # of a training of ours that began with timm's
    ],
)
def test_whose_licence(weights: str | None, earlier: str | None, licence: str | None) -> None:
    assert licence_of({"license": "apache-2.0"}, weights, earlier) == licence
    assert licence_of({}, weights, earlier) is None


def of_train(file: Path, architecture: str = "test_resnet", **options: object) -> Path:
    """A file as timm's train.py writes it, with next to no weights."""
    torch.save(
        {"arch": architecture, "state_dict": {"fc.bias": torch.zeros(1)}, "args": argparse.Namespace(**options)}, file
    )
    return file


def test_what_a_file_of_timms_train_py_was_built_with(tmp_path: Path) -> None:
    file = of_train(tmp_path / "a.pth.tar", in_chans=1, model_kwargs={"anneal_steps": 9, "drop_rate": 0.1})
    assert architecture_of(file) == ("test_resnet", {"in_chans": 1, "drop_rate": 0.1})
    assert architecture_of(of_train(tmp_path / "b.pth.tar", in_chans=None)) == ("test_resnet", {})
    with pytest.raises(CheckpointError, match=r"c\.pth\.tar: the model argument 'checkpoint_path' is not"):
        architecture_of(of_train(tmp_path / "c.pth.tar", model_kwargs={"checkpoint_path": "x"}))
    with pytest.raises(CheckpointError, match=r"of the model '\.\./x', which is no timm name"):
        architecture_of(of_train(tmp_path / "d.pth.tar", "../x"))


def test_a_file_of_a_cnn_is_its_architecture_and_weights(tmp_path: Path) -> None:
    cnn, own = of_train(tmp_path / "a.pth.tar"), of_train(tmp_path / "b.pth.tar", "t_test_resnet")
    assert as_source(cnn) == ("test_resnet", cnn)
    assert as_source(own) == (own, None)
    assert as_source("resnet18", cnn) == ("resnet18", cnn)
    with pytest.raises(RequestError, match="test_resnet built with in_chans, which training would not know of"):
        as_source(of_train(tmp_path / "c.pth.tar", in_chans=1))


def test_a_model_of_timms_train_py_is_made_for_the_size_that_it_was_trained_at(tmp_path: Path) -> None:
    trained = timm.create_model("test_resnet", num_classes=3)
    own = trained.pretrained_cfg["input_size"]
    for options, size in (({}, own), ({"img_size": 48}, (3, 48, 48)), ({"input_size": [3, 32, 40]}, (3, 32, 40))):
        given = argparse.Namespace(num_classes=3, **options)
        torch.save({"arch": "test_resnet", "state_dict": trained.state_dict(), "args": given}, tmp_path / "a.pth.tar")
        model = open_model(tmp_path / "a.pth.tar")
        assert model.pretrained_cfg["input_size"] == size
        assert torch.equal(model.fc.weight, trained.fc.weight)
