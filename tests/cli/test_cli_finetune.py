"""`tcnn finetune`: what it prints, its exit codes, and how it stops when it is asked to."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from forked import run_tcnn
from PIL import Image
from safetensors.torch import load_file

import tcnn as library
from tcnn.cli.commands.runs.finetune import default_name

Run = Callable[..., Any]
TINY = (
    "--preset", "quick", "--anneal", "warmup", "--no-pretrained", "--size", "32", "--batch-size", "8", "--workers", "0",
    "--val-split", "0.2", "--device", "cpu", "--out", "run",
)  # fmt: skip


@pytest.fixture
def colours(tmp_path: Path) -> str:
    """Three classes of ten plain images."""
    for name in ("blue", "green", "red"):
        for number in range(10):
            path = tmp_path / "data" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), name).point(lambda value, add=4 * number: value // 2 + add).save(path)
    return "data"


def test_a_run_and_what_it_says(tcnn: Run, colours: str, tmp_path: Path) -> None:
    result = tcnn("finetune", "test_resnet", "--data", colours, *TINY, "--epochs", 2)
    assert result.code == 0, result
    said = result.err.splitlines()
    assert said[0] == "classifier replaced: 1000 → 3 classes"
    assert said[1].startswith("anneal_epochs: 4 updates are too few for filters to follow τ")
    assert "anneal_epochs: the best epoch is one from epoch 2 on, when annealing is over" in said
    for number, line in enumerate(said[-2:], 1):
        assert re.fullmatch(
            rf"epoch {number}: loss \d+\.\d+, top-1 \d+\.\d%, lr \S+, τ \d\.\d+, \d+:\d\d(, best so far)?", line
        ), line
    assert said[-1].endswith("best so far"), "annealing is over, so the second epoch's model is the first that counts"
    first, best, last = result.out.splitlines()
    assert first.startswith("test_resnet: top-1 ")
    assert "after 2 epochs (6 updates, 2 GPSA layers); best " in first
    assert best == "best checkpoint: run/best.safetensors"
    assert last == "last checkpoint: run/last.safetensors"
    assert len(library.load(tmp_path / "run" / "best.safetensors").pretrained_cfg["label_names"]) == 3
    again = tcnn("finetune", "test_resnet", "--data", colours, *TINY, "--epochs", 2)
    assert "run: holds a run already; go on with it (--resume), replace it (--force)" in again.error(2)
    changed = tcnn("finetune", "test_resnet", "--data", colours, *TINY, "--epochs", 2, "--lr", 1, "--resume")
    assert "ran with other settings (lr: 0.0005 → 1.0); give the same ones, or --allow-changes" in changed.error(2)
    finished = tcnn("finetune", "test_resnet", "--data", colours, *TINY, "--epochs", 2, "--resume")
    assert finished.code == 0
    assert "the run is finished already" in finished.err
    assert "epoch 1:" not in finished.err


def test_the_epochs_of_the_baseline_are_shown_after_the_t_cnns(tcnn: Run, colours: str) -> None:
    result = tcnn("finetune", "test_resnet", "--data", colours, *TINY, "--epochs", 1, "--baseline")
    assert result.code == 0, result
    own, between, cnn = result.err.splitlines()[-3:]
    assert re.fullmatch(r"epoch 1: loss \d+\.\d+, top-1 \d+\.\d%, lr \S+, τ 1\.000, \d+:\d\d, best so far", own)
    assert between == "training the CNN with the same recipe"
    assert re.fullmatch(r"CNN epoch 1: loss \d+\.\d+, top-1 \d+\.\d%, lr \S+, \d+:\d\d, best so far", cnn)


def test_images_that_cannot_be_read_are_counted_at_the_end(tcnn: Run, colours: str, tmp_path: Path) -> None:
    (tmp_path / colours / "blue" / "3.png").write_bytes(b"no image")
    result = tcnn("finetune", "test_resnet", "--data", colours, *TINY, "--epochs", 1)
    assert result.code == 0, result
    assert result.out.splitlines()[1] == "1 image could not be read and took no part"


def test_json_is_one_object(tcnn: Run, colours: str) -> None:
    result = tcnn("finetune", "test_resnet", "--data", colours, *TINY, "--epochs", 1, "--json")
    assert result.err == ""
    assert result.json["updates"] == 3
    assert (result.json["model"], result.json["classes"], result.json["layers"]) == ("test_resnet", 3, 2)
    classifier, annealing = result.json["notes"]
    assert classifier == "classifier replaced: 1000 → 3 classes"
    assert annealing.startswith("anneal_epochs: 2 updates are too few for filters to follow τ")
    again = tcnn("finetune", "test_resnet", "--data", colours, *TINY, "--epochs", 1, "--json")
    assert again.code == 2
    assert again.json["error"]["code"] == "OutputError"


def test_a_loss_that_is_not_finite(tcnn: Run, colours: str) -> None:
    result = tcnn("finetune", "test_resnet", "--data", colours, *TINY, "--lr", 1e30, "--set", "checkpoint_steps=1")
    assert result.code == 5
    line = result.err.splitlines()[-1]
    assert line.startswith("error: the loss is not finite in epoch 1, step ")
    assert "the newest resume point is run/resume/step-" in line


OPTIONS = {
    "--epochs": ("7", "epochs", 7),
    "--batch-size": ("12", "batch_size", 12),
    "--lr": ("0.003", "lr", 0.003),
    "--size": ("64x48", "size", [64, 48]),
    "--convert-at": ("2", "convert_at", 2),
    "--anneal": ("none", "anneal", "none"),
    "--fraction": ("0.5", "fraction", 0.5),
    "--teacher": ("source", "teacher", "source"),
    "--seed": ("9", "seed", 9),
    "--workers": ("1", "workers", 1),
    "--device": ("cpu", "device", "cpu"),
    "--val-split": ("0.25", "val_split", 0.25),
    "--set": ("conversion.stride=remove", "conversion", {"stride": "remove"}),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_a_setting(tcnn: Run, option: str) -> None:
    text, key, value = OPTIONS[option]
    result = tcnn("finetune", "test_resnet", "--print-config", "--preset", "quick", option, text)
    shown = yaml.safe_load(result.out)
    if isinstance(value, dict):
        assert value.items() <= shown[key].items()
    else:
        assert shown[key] == value
    plain = yaml.safe_load(tcnn("finetune", "test_resnet", "--print-config", "--preset", "quick").out)
    assert {name for name in plain if plain[name] != shown[name]} == {key} - (
        {"device"} if plain["device"] == "cpu" else set()
    )


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("hf-hub:timm/resnet18.a1_in1k", "resnet18.a1_in1k"), ("local-dir:a b", "a_b"), ("ශ්\u200dරී.safetensors",) * 2,
        ("می\u200cخواهم.safetensors",) * 2, ("a\x1b\u202eb\u3000c", "a__b_c"),
        ("..", "run"), ("models/.hidden", "hidden"),
    ],
)  # fmt: skip
def test_a_run_is_called_as_its_model(model: str, name: str) -> None:
    assert default_name(model) == name.removesuffix(".safetensors")


def test_what_is_printed_can_be_given(tcnn: Run, tmp_path: Path) -> None:
    given = ("--no-convert", "--size", "64x48", "--lr", "1.5e-5", "--set", "conversion.target=x.*", "--set", "ema=0.9")
    first = tcnn("finetune", "test_resnet", "--print-config", *given)
    assert first.code == 0
    (tmp_path / "c.yaml").write_text(first.out)
    again = tcnn("finetune", "test_resnet", "--print-config", "--preset", "cifar", "--config", "c.yaml")
    assert again == first
    assert list(yaml.safe_load(first.out)) == list(library.FinetuneConfig.model_fields)
    as_json = tcnn("finetune", "test_resnet", "--print-config", "--json", *given)
    assert as_json.json == yaml.safe_load(first.out)
    (tmp_path / "c.json").write_text(as_json.out)
    assert tcnn("finetune", "test_resnet", "--print-config", "--config", "c.json").out == first.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--data"),
        (("--data", "nosuch"), "nosuch: no such data set"),
        (("--data", "data", "--preset", "fast"), "--preset: expected one of paper, quick, cifar, found 'fast'"),
        (("--data", "data", "--config", "no.yaml"), "no.yaml: no such configuration file"),
        (("--data", "data", "--config", "broken.yaml"), "broken.yaml: neither YAML nor JSON in line 2"),
        (("--data", "data", "--config", "typed.yaml"), "epochs: input should be a valid integer"),
        (("--data", "data", "--config", "unknown.yaml"), "epohcs: no such setting; did you mean epochs?"),
        (("--data", "data", "--set", "epohcs=3"), "epohcs: no such setting; did you mean epochs?"),
        (("--data", "data", "--set", "epochs"), "expected KEY=VALUE"),
        (("--data", "data", "--size", "0"), "--size: expected pixels as 224 or 224x160"),
        (("--data", "data", "--size", "abc"), "--size: expected pixels as 224 or 224x160"),
        (("--data", "data", "--set", "size=0"), "size: input should be greater than or equal to 1"),
        (("--data", "data", "--epochs", "many"), "--epochs"),
        (
            ("--data", "data", "--epochs", "3", "--set", "warmup_epochs=5"),
            "warmup_epochs: expected at most the 3 epochs, found 5",
        ),
        (("--data", "data", "--val-split", "0.2"), "batch_size: 1024 is more than the data set's 24 training images"),
        (
            ("--data", "data", "--no-convert", "--convert-at", "2"),
            "--convert-at: nothing is converted with --no-convert",
        ),
        (("--data", "data", "--val-split", "0.2", "--out", "broken.yaml"), "expected a directory for the run"),
        (("--data", "data", "--val-split", "0.2", "--anneal", "fast"), "anneal: input should be 'warmup', 'none' or"),
    ],
)
def test_bad_input_is_one_line(
    tcnn: Run, colours: str, tmp_path: Path, listing: Callable[[], list[str]], arguments: tuple[str, ...], expected: str
) -> None:
    (tmp_path / "broken.yaml").write_text("epochs: [1\n")
    (tmp_path / "typed.yaml").write_text("epochs: soon\n")
    (tmp_path / "unknown.yaml").write_text("epohcs: 3\n")
    before = listing()
    assert expected in tcnn("finetune", "test_resnet", "--no-pretrained", *arguments).error(2)
    assert listing() == before, "nothing was made"


@pytest.mark.parametrize(
    ("model", "expected"),
    [("test_vit", "no k×k convolution"), ("resnet5", "resnet5"), ("w.safetensors", "expected a tcnn checkpoint")],
)
def test_models_that_cannot_be_trained(tcnn: Run, colours: str, model: str, expected: str) -> None:
    assert expected in tcnn("finetune", model, "--data", colours, *TINY).error(2)


@pytest.mark.slow
def test_asked_to_stop_it_saves_leaves_and_goes_on(colours: str, tmp_path: Path) -> None:
    """SIGTERM is 75, Ctrl-C 130; the command with --resume finishes with the weights of a run that nobody stopped."""
    command = ("finetune", "test_resnet", "--data", colours, *TINY, "--epochs", 6, "--set", "log_steps=1", "--resume")

    def after(lines: int, number: signal.Signals) -> Callable[[int], None]:
        def disturb(pid: int) -> None:
            metrics, ends = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 300
            while not (metrics.is_file() and metrics.read_text().count("\n") > lines) and time.monotonic() < ends:
                time.sleep(0.005)
            os.kill(pid, number)

        return disturb

    for lines, number, expected in ((1, signal.SIGTERM, 75), (6, signal.SIGINT, 130)):
        code, err, *_ = run_tcnn(tmp_path, *command, disturb=after(lines, number))
        assert code == expected, err
        assert "Traceback" not in err
        line = err.splitlines()[-1]
        assert line.startswith("error: stopped ")
        assert line.endswith("go on with --resume --out run")
    assert "going on in epoch " in err
    code, err, *_ = run_tcnn(tmp_path, *command)
    assert code == 0, err
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["updates"] for row in rows if row["kind"] == "train"] == list(range(1, 19))
    stopped = load_file(tmp_path / "run" / "last.safetensors")
    code, err, *_ = run_tcnn(tmp_path, *("whole" if part == "run" else part for part in command[:-1]))
    assert code == 0, err
    whole = load_file(tmp_path / "whole" / "last.safetensors")
    assert all((stopped[name] == tensor).all() for name, tensor in whole.items())
