"""`tcnn evaluate` with the words of timm's validate.py, and as its bulk_runner.py calls it."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data_pictures import draw_classes
from torch import nn

from tcnn.cli.options.spellings import model_arguments, timms
from tcnn.errors import RequestError

COLUMNS = "model,img_size,top1,top1_err,top5,top5_err,param_count,crop_pct,interpolation"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> Path:
    """The weights of a T-CNN with a content head, and images."""
    root = tmp_path_factory.mktemp("made")
    torch.save({"state_dict": lively("t_test_resnet", num_classes=6, content_heads=1).state_dict()}, root / "w.pth")
    draw_classes(root / "p", list("abcdef"), 2)
    return root


@pytest.fixture
def files(tmp_path: Path, made: Path) -> Path:
    """A copy of them."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


VALIDATE = (
    "evaluate", "--data-dir", "p", "--model", "t_test_resnet", "--checkpoint", "w.pth", "--img-size", 48,
    "--model-kwargs", "content_heads=1", "drop_rate=0.1", "-b", 4, "-j", 0, "--device", "cpu",
)  # fmt: skip


def test_timms_columns_and_the_answer_that_its_runner_reads(tcnn: Any, files: Path) -> None:
    done = tcnn(*VALIDATE, "--amp", "--amp-dtype", "bfloat16", "--result", "--results-file", "r.csv")
    assert done.code == 0, done
    read = json.loads(done.out.split("--result")[-1])  # what bulk_runner.py does with it
    (row,) = csv.DictReader(Path("r.csv").read_text(encoding="utf-8").splitlines())
    assert ",".join(row) == ",".join(read) == COLUMNS
    assert (read["model"], read["img_size"], read["param_count"]) == ("t_test_resnet", 48, float(row["param_count"]))
    assert read["top1"] + read["top1_err"] == read["top5"] + read["top5_err"] == 100
    same = tcnn("evaluate", "t_test_resnet", "--weights", "w.pth", "--data", "p", "--size", 48, "--amp", "bfloat16",
                "--model-kwargs", "content_heads=1", "--json").json["rows"][0]  # fmt: skip
    assert (round(100 * same["clean"]["top1"], 4), round(100 * same["clean"]["top5"], 4)) == (
        read["top1"],
        read["top5"],
    )
    assert (same["crop_pct"], same["interpolation"]) == (read["crop_pct"], read["interpolation"])


def test_several_are_a_list(tcnn: Any, files: Path) -> None:
    several = ["32,48" if word == 48 else word for word in VALIDATE]
    done = tcnn(*several, "--result")
    assert [row["img_size"] for row in json.loads(done.out.split("--result")[-1])] == [32, 48]
    assert tcnn(*VALIDATE, "--result", "--json").json["error"]["message"].startswith("--json: --result prints timm's")
    assert "CKPT" in tcnn("evaluate", "--data", "p").error(2)


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        ("evaluate m --amp", "evaluate m --amp float16"),
        ("evaluate m --amp --result", "evaluate m --amp float16 --result"),
        ("evaluate m --amp-dtype bfloat16 --amp", "evaluate m --amp bfloat16"),
        ("evaluate m --amp bfloat16", "evaluate m --amp bfloat16"),
        ("evaluate --amp resnet50 --data d", "evaluate --amp float16 resnet50 --data d"),
        ("evaluate m --amp bf16", "evaluate m --amp bf16"),
        ("evaluate m --amp bflaot16", "evaluate m --amp bflaot16"),
        ("evaluate m --amp Float-16", "evaluate m --amp Float-16"),
        ("evaluate --amp runs/float16", "evaluate --amp float16 runs/float16"),
        ("evaluate --model-kwargs a=1 b=x -b 3", "evaluate --model-kwargs a=1 --model-kwargs b=x -b 3"),
        ("finetune m --model-kwargs a=1 --set lr=1 b=2", "finetune m --model-kwargs a=1 --set lr=1 b=2"),
    ],
)
def test_spellings(typed: str, taken: str) -> None:
    assert timms(typed.split()) == taken.split()


def test_what_lies_there_is_a_model_though_its_name_is_near_a_dtypes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert timms(["evaluate", "--amp", "float32-run"]) == ["evaluate", "--amp", "float32-run"]
    Path("float32-run").mkdir()
    assert timms(["evaluate", "--amp", "float32-run"]) == ["evaluate", "--amp", "float16", "float32-run"]
    Path("float32").mkdir()
    assert timms(["evaluate", "m", "--amp", "float32"]) == ["evaluate", "m", "--amp", "float32"]


def test_arguments_of_models_are_read_as_timm_reads_them() -> None:
    given = ["depth=3", "act='gelu'", "pool=avg", "sizes=(1,2)", "flag=True"]
    assert model_arguments(given) == {"depth": 3, "act": "gelu", "pool": "avg", "sizes": (1, 2), "flag": True}
    with pytest.raises(RequestError, match="--model-kwargs: expected KEY=VALUE, found 'depth'"):
        model_arguments(["depth"])
