"""`tcnn plan`: what it prints, its exit codes, and what it refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import colours

from tcnn.cli.group import command_group
from tcnn.planning import memory
from tcnn.planning import plan as planned

QUICK = ("--preset", "quick", "--size", "32", "--batch-size", "8", "--workers", "0", "--device", "cpu", "--epochs", "2")

Run = Callable[..., Any]


def options_of(command: str) -> set[str]:
    group: Any = command_group([])
    return {name for one in group.commands[command].params for name in one.opts if name.startswith("--")}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("photos"))


def test_a_plan_in_words(tcnn: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network is asked for weights, and nothing is written. The computed memory, which is not looked at, is any."""
    monkeypatch.setattr(planned, "step_bytes", lambda model, made, shape, *others: shape[0] << 20)
    found = tcnn("plan", "test_resnet", "--data", photos, "--val-split", "0.2", *QUICK, "--seconds", "0.1")
    assert found.code == 0, found
    lines = {line.split()[0]: line for line in found.out.splitlines()}
    assert "24 to train on, 6 to validate on, 3 classes, 32×32 pixels" in lines["images"]
    assert "373.0 k parameters" in lines["CNN"]
    assert "2 GPSA layers" in lines["T-CNN"]
    assert "measured, with 8 images at once" in lines["memory"]
    assert "updates 1–6" in lines["convolution"]
    assert "in all (2 epochs, 6 updates) on cpu" in lines["time"]
    assert "checkpoint" in lines["disk"]
    assert list(tmp_path.iterdir()) == []


def test_the_options_of_a_training_are_those_of_its_plan() -> None:
    """`--no-pretrained`, `--anneal`, `--convert-at` and others were no options of a plan, though it promised them.

    Those that are missing are of runs that exist already, or of several processes.
    """
    elsewhere = {
        "--resume", "--allow-changes", "--force", "--nproc", "--num-workers", "--engine", "--address", "--print-config",
    }  # fmt: skip
    assert options_of("finetune") - elsewhere == options_of("plan") - {"--seconds"}


def test_a_plan_heeds_what_attention_costs_and_when_it_begins(
    tcnn: Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned, "step_bytes", lambda model, made, shape, *others: shape[0] << 20)
    command = ("plan", "test_resnet", "--data", photos, "--val-split", "0.2", *QUICK, "--seconds", "0.1", "--json")
    phases = {
        how: [(one["name"], one["begin"]) for one in tcnn(*command, *options).json["phases"]]
        for how, options in {
            "hold": ("--no-pretrained",),
            "none": ("--anneal", "none"),
            "late": ("--convert-at", "1"),
        }.items()
    }
    assert phases == {
        "hold": [("convolution", 0)],
        "none": [("attention", 0)],
        "late": [("CNN", 0), ("convolution", 3)],
    }


@pytest.mark.slow
def test_a_plan_as_json_by_computation_alone(tcnn: Run, photos: Path) -> None:
    found = tcnn("plan", "test_resnet", "--data", photos, "--val-split", "0.2", *QUICK, "--seconds", "0", "--json").json
    assert found["updates"] == 6
    assert found["phases"] == found["epoch_seconds"] == []
    assert found["memory"]["measured"] is None
    assert found["result"]["layers"] == 2


def test_what_would_end_the_run_ends_the_plan(
    tcnn: Run, photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    little = tmp_path_factory.mktemp("proc") / "meminfo"
    little.write_text("MemAvailable: 100 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", little)
    monkeypatch.setattr(planned, "step_bytes", lambda model, made, shape, *others: shape[0] << 20)
    found = tcnn("plan", "test_resnet", "--data", photos, "--val-split", "0.2", *QUICK)
    assert found.code == 4
    assert found.err.startswith("problem: memory: 8 images at once do not fit into the 0.000102 GB free on cpu")
    assert "computed, with one image at once" in found.out
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("test_resnet",), "Missing option '--data'"),
        (("test_resnet", "--data", "nowhere/"), "nowhere"),
        (("no_such_net", "--data", "PHOTOS", "--val-split", "0.2"), "no_such_net"),
        (("test_resnet", "--data", "PHOTOS", "--val", "PHOTOS", "--val-split", "0.2"), "leave out one of the two"),
        (("test_resnet", "--data", "PHOTOS", "--val-split", "0.2", "--seconds", "-1"), "--seconds"),
        (("test_resnet", "--data", "PHOTOS", "--val-split", "0.2", "--batch-size", "512"), "batch_size: 512 is more"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_one_line(tcnn: Run, photos: Path, arguments: tuple[str, ...], expected: str) -> None:
    given = [str(photos) if argument == "PHOTOS" else argument for argument in arguments]
    assert expected in tcnn("plan", *given).error(2)


@pytest.mark.slow
def test_the_cnn_beside_it(tcnn: Run, photos: Path) -> None:
    found = tcnn(
        "plan", "test_resnet", "--data", photos, "--val-split", "0.2", *QUICK, "--seconds", "0.1", "--baseline"
    )
    assert found.code == 0, found
    lines = [line.split("  ")[0] for line in found.out.splitlines()]
    assert lines[lines.index("convolution") :][:6] == [
        "convolution",
        "time",
        "CNN's memory",
        "CNN",
        "CNN's time",
        "time of both",
    ]
