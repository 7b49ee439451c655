"""Help: examples that can be typed, no value for a switch; other tools' names of commands; runs' directories."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tcnn.cli.commands.runs.finetune import default_directory
from tcnn.cli.group import command_group
from tcnn.cli.options.help_page import EXAMPLES
from tcnn.cli.options.spellings import SPELLINGS
from tcnn.config import PRESETS

Run = Callable[..., Any]


def given(line: str) -> dict[str, Any]:
    """What a command line asks for: options and arguments by name."""
    name, command, *rest = shlex.split(line)
    assert name == "tcnn"
    leaf = command_group([command]).commands[command]
    return dict(leaf.make_context(command, rest).params)


@pytest.mark.parametrize("command", EXAMPLES)
def test_examples_can_be_typed(command: str) -> None:
    assert 3 <= len(EXAMPLES[command]) <= 5
    for line in EXAMPLES[command]:
        assert line.split()[1] == command
        assert given(line)


@pytest.mark.parametrize("command", ["serve", "worker", "jobs", "keys", "tenants", "audit"])
def test_examples_of_the_service_can_be_typed(command: str, tcnn: Run) -> None:
    shown = " ".join(tcnn(command, "--help").out.split())
    leaf = command_group([command]).commands[command]
    lines = [line for line in leaf.epilog.splitlines() if line.strip().startswith("tcnn ")]
    assert 3 <= len(lines) <= 5
    for line in lines:
        assert " ".join(line.split()) in shown
        name, rest = command, shlex.split(line)[2:]
        inner = leaf
        while rest and rest[0] in getattr(inner, "commands", {}):
            name, inner = rest[0], inner.commands[rest[0]]
            rest = rest[1:]
        assert inner.make_context(name, rest)


@pytest.mark.parametrize("command", [(), ("serve",), ("jobs",), ("jobs", "submit", "finetune"), ("keys", "create")])
def test_switches_of_tcnn_and_of_the_service_take_no_value(command: tuple[str, ...], tcnn: Run) -> None:
    assert "<bool>" not in tcnn(*command, "--help").out


def test_every_command_of_the_library_has_examples() -> None:
    assert set(EXAMPLES) == set(command_group(["convert"]).commands)


@pytest.mark.parametrize("command", ["convert", "finetune"])
def test_help_shows_them(tcnn: Run, command: str) -> None:
    shown = " ".join(tcnn(command, "--help").out.split())
    for line in EXAMPLES[command]:
        assert line in shown
    assert "<bool>" not in shown


@pytest.mark.parametrize("command", ["finetune", "plan"])
def test_help_tells_what_a_preset_sets(tcnn: Run, command: str) -> None:
    words = "".join(tcnn("finetune", "--help").out.replace("│", " ").split())
    for name, preset in PRESETS.items():
        assert f"{name}:" in words
        for key in ("epochs", "batch_size"):
            if key in preset:
                assert str(preset[key]) in words


def test_other_tools_names(tcnn: Run) -> None:
    assert tcnn("train", "--help").out == tcnn("finetune", "--help").out
    assert tcnn("eval", "--help").out == tcnn("evaluate", "--help").out
    assert tcnn("-V").out == tcnn("--version").out


def test_runs_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = Path("runs")
    assert default_directory("resnet18.a1_in1k", existing=False) == runs / "resnet18.a1_in1k"
    assert default_directory("t.safetensors", existing=True) == runs / "t"
    for expected in ("t", "t-2", "t-3"):
        found = default_directory("t.safetensors", existing=False)
        assert found == runs / expected
        found.mkdir(parents=True)
        assert default_directory("t.safetensors", existing=False) == found, "empty, so free"
        (found / "config.json").touch()
        assert default_directory("t.safetensors", existing=True) == found, "--resume and --force mean the last"
    assert default_directory("runs/t-3", existing=True) == runs / "t-3"
    assert default_directory("runs/t-3", existing=True, replace=True) == runs / "t-3-2", "none that the model is in"
    assert default_directory("runs/t", existing=True, replace=True) == runs / "t-3"


def test_other_spellings_mean_the_same_everywhere(tcnn: Run) -> None:
    for command in command_group(["convert"]).commands.values():
        for option in getattr(command, "params", ()):
            for long, others in SPELLINGS.items():
                for other in others:
                    assert (long in option.opts) == (other in option.opts), (command.name, other)
    shown = tcnn("finetune", "--help").out
    assert "--batch-size     -b " in shown
    assert "<bool>" not in shown
    assert (
        tcnn("finetune", "test_resnet", "-b", 14, "-e", 3, "-s", 48, "-j", 0, "--print-config").out.count(": 14\n") == 1
    )
