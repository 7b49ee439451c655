"""No option is ignored in silence, and a run's directory stands for its best checkpoint everywhere."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_pictures import draw_classes
from rich.table import Table
from torch import nn

import tcnn as package
from tcnn.cli.options.spellings import processes
from tcnn.cli.output import console
from tcnn.version import __version__


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> Path:
    root = tmp_path_factory.mktemp("made")
    package.save(package.convert(lively(num_classes=3)).model, root / "t.safetensors")
    (root / "c.yaml").write_text("conversion: {stride: remove}\n", encoding="utf-8")
    (root / "split.yaml").write_text("val_split: 0.1\n", encoding="utf-8")
    draw_classes(root / "p", ["a", "b", "c"], 8)
    return root


@pytest.fixture
def files(tmp_path: Path, made: Path) -> Path:
    """A copy of a T-CNN, configurations and images."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


RUN = ("finetune", "t.safetensors", "--data", "p")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*RUN, "--weights", "w.pth"), "--weights: t.safetensors brings weights of its own; leave it out"),
        ((*RUN, "--no-pretrained"), "--no-pretrained: t.safetensors brings weights of its own; leave it out"),
        ((*RUN, "--set", "conversion.stride=remove"), "--set conversion.stride=remove: t.safetensors is converted"),
        ((*RUN, "--val-split", "0.25", "--config", "c.yaml", "--batch-size", "8"),
         "conversion: t.safetensors is converted already, so stride would have no effect; leave conversion out"),
        ((*RUN, "--num-workers", "2", "--nproc", "2"), "--num-workers: is the old name of --nproc; give --nproc alone"),
        ((*RUN, "--val", "p", "--val-split", "0.1"), "--val-split: --val names the images to validate on; leave out "),
        ((*RUN, "--val", "p", "--set", "val_split=0.1"), "--val-split: --val names the images to validate on; leave "),
        ((*RUN, "--val", "p", "--config", "split.yaml"), "--val-split: --val names the images to validate on; leave "),
        ((*RUN, "--preset", "quick", "--set", "gate_temperature=1"), "--set gate_temperature: has no effect, because"),
        ((*RUN, "--anneal", "none", "--set", "anneal_path=drift"), "--set anneal_path: has no effect, because τ"),
        ((*RUN, "--set", "distillation=hard"), "--set distillation: has no effect, because nothing is distilled"),
        ((*RUN, "--teacher", "source", "--set", "distillation=hard", "--set", "distillation_temperature=2"),
         "--set distillation_temperature: has no effect, because decisions, which distillation=hard"),
        ((*RUN, "--set", "color_jitter=0.1"), "--set color_jitter: has no effect, because auto_augment takes its"),
        ((*RUN, "--set", "crop_padding=4", "--set", "scale=[0.5,1]"), "--set scale: has no effect, because crops of a"),
        (("finetune", "test_resnet", "--data", "p", "--no-convert", "--set", "conversion.stride=remove"),
         "--set conversion: has no effect, because nothing is converted with convert=false"),
        (("plan", "test_resnet", "--data", "p", "--preset", "quick", "--set", "mixup_prob=0.5"), "--set mixup_prob: "),
        (("plan", "test_resnet", "--data", "p", "--set", "conversion.stage=2", "--set", "conversion.target=conv1"),
         "conversion.target: names the convolutions, so that stage 2 has no effect; give one of the two"),
        ((*RUN, "--batch-size", "8", "--set", "content_output_scale=0.5"), "content_output_scale: has no effect"),
        (("plan", "test_resnet", "--data", "p", "--no-convert", "--batch-size", "8", "--set", "gating=false"),
         "gating: has no effect, because the model has no GPSA layers"),
        ((*RUN, "--epochs", "1", "--set", "epochs=2"), "--set epochs=2: --epochs 1 says otherwise; give one of the"),
        ((*RUN, "--set", "seed=1", "--set", "seed=2"), "--set seed=2: seed has a value already, 1; give one of"),
        ((*RUN, "--set", "conversion.stage=2", "--set", "conversion=3"),
         '--set conversion=3: conversion has a value already, {"stage": 2}; give one of the two'),
        (("plan", "test_resnet", "--data", "p", "--set", 'conversion={"stage":2}', "--set", "conversion.stage=3"),
         "--set conversion.stage=3: conversion.stage has a value already, 2; give one of the two"),
        (("convert", "test_resnet", "o.safetensors", "--model-kwargs", "a=1", "--model-kwargs", "a=2"),
         "--model-kwargs: a is given twice, 1 and 2; give one of the two"),
        ((*RUN, "--size", "32x16", "--set", "size=32"), "--set size=32: --size [32, 16] says otherwise; give one of"),
        (("plan", "test_resnet", "--data", "p", "--lr", "0.1", "--set", "lr=1"), "--set lr=1: --lr 0.1 says otherw"),
        (("plan", "test_resnet", "--data", "p", "--no-convert", "--set", "convert=true"), "--set convert=true: --no-c"),
        (("finetune", "test_resnet", "--data", "p", "--set", "convert=false", "--anneal", "none"), "--anneal: has no "),
        ((*RUN, "--resume", "--force"), "--force: with --resume no run is replaced; give one of the two"),
        ((*RUN, "--allow-changes"), "--allow-changes: a new run has nothing to differ from; give --resume as well"),
        (("export", "t.safetensors", "x.onnx", "--dynamic", "batch", "--fixed"), "--fixed: no axis is free then; "),
        (("export", "t.safetensors", "x.onnx", "--format", "torch"), "--format torch: x.onnx would be taken for "),
        (("export", "t.safetensors", "x.pt2", "--format", "onnx"), "--format onnx: x.pt2 would be taken for the other"),
        (("convert", "test_resnet", "--dry-run", "--weights", "no.pth"), "--weights: no.pth is no file"),
        (("convert", "test_resnet", "o.safetensors", "--stage", "-1", "--target", "x"), "--stage: --target names the "),
        (("convert", "test_resnet", "o.safetensors", "--no-pretrained", "--weights", "w"), "--no-pretrained: --weigh"),
        (("finetune", "test_resnet", "--data", "p", "--no-convert", "--anneal", "none"), "--anneal: there is no τ "),
        (("finetune", "test_resnet", "--data", "p", "--no-convert", "--convert-at", "2"), "--convert-at: nothing is "),
        (("evaluate", "t.safetensors", "--data", "p", "--force"), "--force: no file is written; name one"),
        (("evaluate", "t.safetensors", "--data", "p", "--severities", "3"), "--severities: nothing is corrupted"),
        (("evaluate", "t.safetensors", "--data", "p", "--baseline", "x"), "--baseline: nothing is corrupted; give "),
        (("evaluate", "t.safetensors", "--data", "p", "--seed", "0"), "--seed: nothing is drawn at random without "),
        (("evaluate", "t.safetensors", "--data", "p", "--corruptions", "--corruption", "fog"), "--corruption: --corru"),
        (("evaluate", "t.safetensors", "--data", "p", "--examples", "3"), "--examples: they are listed in JSON only"),
        (("evaluate", "t.safetensors", "--data", "p", "--per-class", "--result"), "--per-class: --result prints timm"),
        (("evaluate", "t.safetensors", "--shape-bias", "p", "--channels-last"), "--channels-last: --shape-bias names"),
        (("verify", "t.safetensors", "--against", "t.safetensors", "--model-kwargs", "a=1"), "--model-kwargs: t.safe"),
        (("export", "t.safetensors", "x.pt2", "--opset", "18"), "--opset: applies to ONNX, but OUT is a torch.export "),
        (("export", "t.safetensors", "x.PT2", "--opset", "18"), "--opset: applies to ONNX, but OUT is a torch.export "),
        (("export", "t.safetensors", "d", "--explorer", "--fixed"), "--fixed: applies to files; the page of "),
        (("export", "t.safetensors", "d", "--explorer", "--format", "onnx"), "--format: applies to files; the page"),
        (("inspect", ""), "CKPT: expected a name, found an empty string"),
        (("report", ""), "RUN_DIR: expected a name, found an empty string"),
        (("fold", "t.safetensors", ""), "OUT: expected a name, found an empty string"),
        (("predict", "t.safetensors", "--quiet", ""), "IMAGE...: expected a name, found an empty string"),
        (("inspect", "t.safetensors", "--out", ""), "--out: expected a value, found an empty string"),
        (("verify", "t.safetensors", "--weights="), "--weights: expected a value, found an empty string"),
        (("serve", "--home", ""), "--home: expected a value, found an empty string"),
        (("convert", "test_resnet", "--stage", "3", "--stage=4"), "--stage: expected one value, found 2; give it once"),
        ((*RUN, "--epochs", "1", "-e", "2", "-e", "3"), "--epochs: expected one value, found 3; give it once"),
        (("jobs", "list", "--kind", "a", "--kind", "b"), "--kind: expected one value, found 2; give it once"),
        (("inspect", "t.safetensors", "--force"), "--force: nothing is written; name a directory with --out"),
        (("inspect", "t.safetensors", "--format", "png"), "--format: no picture is written; name a directory"),
        (("inspect", "t.safetensors", "--query", "0.5,0.5"), "--query: there are no attention maps without --images"),
        (("inspect", "t.safetensors", "--images", "p", "--shown", "0", "--query", "0,0"), "--query: no map is taken "),
        (("inspect", "t.safetensors", "--limit", "3"), "--limit: there is nothing to limit without --images"),
        (("serve", "--no-worker", "--slots", "2"), "--slots: there is no worker with --no-worker"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_an_option_without_effect_is_refused(arguments: tuple[str, ...], message: str, tcnn: Any, files: Path) -> None:
    before = sorted(files.rglob("*"))
    assert tcnn(*arguments).error(2).startswith(message)
    assert sorted(files.rglob("*")) == before, "nothing is written"


def test_what_is_added_to_see_what_would_happen_refuses_nothing(tcnn: Any, files: Path) -> None:
    assert tcnn("convert", "test_resnet", "--dry-run", "--force", "--device", "cuda").code == 0
    assert tcnn("finetune", "test_resnet", "--no-convert", "--anneal", "none", "--print-config").code == 0
    assert tcnn("finetune", "test_resnet", "--epochs", 1, "--set", "epochs=2", "--print-config").code == 0
    assert (
        tcnn("finetune", "test_resnet", "--print-config", "--set", "lr=1", "--set", "seed=2", "--print-config").code
        == 0
    )


def test_a_setting_may_be_given_twice_with_one_value(tcnn: Any, files: Path) -> None:
    same = (
        "--epochs",
        9,
        "--set",
        "epochs=9",
        "--size",
        "32",
        "--set",
        "size=[32,32]",
        "--lr",
        "1e-3",
        "--set",
        "lr=0.001",
    )
    refused = tcnn("plan", "test_resnet", "--data", "nowhere", *same).error(2)
    assert refused.startswith("nowhere: no such data set")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resume": True, "force": True}, "force: with resume=True no run is replaced"),
        ({"allow_changes": True}, "allow_changes: a new run has nothing to differ from"),
        ({"weights": Path("w.pth")}, "weights: t.safetensors brings weights of its own"),
        ({"model": nn.Linear(1, 1), "weights": Path("w.pth")}, "weights: Linear brings weights of its own"),
        ({"val": "p", "val_split": 0.5}, "val_split: val names the images to validate on"),
    ],
)
def test_nor_is_one_ignored_in_python(
    options: dict[str, Any], message: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    with pytest.raises(package.TcnnError, match=message):
        package.finetune(**{"model": "t.safetensors", "data": "p", "out": "run", **options})
    assert not Path("run").exists()


@pytest.mark.slow  # `verify` of a run is in test_cli_names.py, too, and its best checkpoint by name everywhere
def test_a_run_stands_for_its_best_checkpoint(tcnn: Any, files: Path) -> None:
    short = (
        "--val-split",
        0.25,
        "--preset",
        "quick",
        "--anneal",
        "warmup",
        "--epochs",
        1,
        "--batch-size",
        8,
        "--size",
        32,
        "--device",
        "cpu",
    )
    assert tcnn(*RUN, *short, "--workers", 0, "--out", "run").code == 0
    assert tcnn("export", "run", "x.pt2", "--fixed").code == 0
    assert tcnn("fold", "run", "folded.safetensors", "--max-error", 1).code == 0
    assert tcnn("finetune", "run", "--data", "p", *short, "--workers", 0, "--out", "again").code == 0
    (row,) = tcnn("evaluate", "run", "--json").json["rows"]
    assert row["model"] == "run"
    assert tcnn("verify", "run").error(2).startswith("run: has been trained since it was converted, so it equals no ")


def test_without_a_terminal_rows_and_notes_stay_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """They were broken at 120 and 80 columns, in the middle of a time, a file's name or a sentence, so that neither
    `grep` nor a log had them whole.
    """
    table = Table(box=None)
    table.add_column("number")
    table.add_column("what is told")
    table.add_row("1", "a word " * 50 + "end")
    console.stdout().print(table)
    with console.training() as (_, say):
        say("a note " * 50 + "end")
    out, err = capsys.readouterr()
    assert [line.split()[-1] for line in out.splitlines()] == ["told", "end"]
    assert max(map(len, out.splitlines())) < 400
    assert err == "a note " * 50 + "end\n"


def test_the_old_name_of_nproc_warns(capsys: pytest.CaptureFixture[str]) -> None:
    assert processes(None, None) == 1
    assert processes(4, None) == 4
    assert capsys.readouterr().err == ""
    assert processes(None, 3) == 3
    assert "--num-workers is called --nproc now; the old name goes with 0.3" in capsys.readouterr().err
    assert __version__ < "0.3", "a promise: the old name goes now"


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [(0, "image", "0 images"), (1, "image", "1 image"), (2, "class", "2 classes"), (1, "class", "1 class")],
)
def test_one_of_a_thing_and_some(count: int, noun: str, said: str) -> None:
    assert console.some(count, noun) == said
