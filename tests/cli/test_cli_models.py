"""`tcnn models`, and what every command shares: help, version, and how little they load."""

from collections.abc import Callable
from typing import Any

import pytest

import tcnn as library
from tcnn.cli.output.console import scale
from tcnn.zoo import catalogue

Run = Callable[..., Any]


class TestModels:
    def test_lists_what_can_be_converted(self, tcnn: Run) -> None:
        done = tcnn("models", "resnet50d")
        assert (done.code, done.err) == (0, "")
        entry = catalogue.entries()["resnet50d"]
        line = next(line for line in done.out.splitlines() if line.startswith("resnet50d "))
        assert "layer4" in line
        assert scale(entry.parameters) in line
        assert scale(entry.converted_parameters or 0) in line
        assert "2 × multiply-adds" in done.out

    def test_every_word_of_the_query_counts(self, tcnn: Run) -> None:
        names = {row["name"] for row in tcnn("models", "resnext", "32x4d", "--json").json["models"]}
        assert "resnext50_32x4d" in names
        assert all("resnext" in name and "32x4d" in name for name in names)

    def test_json_is_the_catalogue(self, tcnn: Run) -> None:
        done = tcnn("models", "resnet18", "--json")
        assert (done.code, done.err) == (0, "")
        assert done.json["timm"] == catalogue.timm_version()
        row = next(row for row in done.json["models"] if row["name"] == "resnet18")
        entry = catalogue.entries()["resnet18"]
        assert row == entry.model_dump(mode="json") | {"registered_as": "t_resnet18"}

    @pytest.mark.parametrize("query", ["no_such_model", "resnet81", "*no*such*", "test_vit2", "vit_base_patch16"])
    def test_json_of_nothing_is_the_error(self, tcnn: Run, query: str) -> None:
        """A script that misspells a name is to notice it."""
        done = tcnn("models", query, "--json")
        assert (done.code, done.err) == (2, "")
        assert done.json["error"]["message"] == tcnn("models", query).error(2)

    def test_without_a_query_everything_convertible_is_listed(self, tcnn: Run) -> None:
        expected = [entry.name for entry in catalogue.entries().values() if entry.convertible]
        assert [row["name"] for row in tcnn("models", "--json").json["models"]] == expected

    def test_all_lists_the_reasons_of_the_others(self, tcnn: Run) -> None:
        assert "patch_embed.proj" in tcnn("models", "test_vit2", "--all").out
        rows = tcnn("models", "test_vit2", "--all", "--json").json["models"]
        assert [(row["name"], row["convertible"]) for row in rows] == [("test_vit2", False)]

    def test_a_single_model_that_cannot_be_converted_gets_its_reason(self, tcnn: Run) -> None:
        assert "no k×k convolution to convert" in tcnn("models", "test_vit2").error(2)

    def test_what_can_begin_as_convolutions_is_said(self, tcnn: Run) -> None:
        for name in ("vit_tiny_patch16_224", "convit_small"):
            assert tcnn("models", name).error(2).endswith("; untrained, it can begin as convolutions: tcnn init")
        assert "tcnn init" not in tcnn("models", "swin_tiny_patch4_window7_224").error(2)

    def test_many_that_cannot_are_counted(self, tcnn: Run) -> None:
        error = tcnn("models", "vit_base_patch16").error(2)
        assert "models match, none can be converted; --all says why" in error

    def test_an_unknown_model_gets_suggestions(self, tcnn: Run) -> None:
        assert "did you mean resnet18" in tcnn("models", "resnet81").error(2)


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_every_command_and_exit_code(tcnn: Run, option: str) -> None:
    done = tcnn(option)
    assert (done.code, done.err) == (0, "")
    assert all(command in done.out for command in ("convert", "verify", "models", "demo"))
    words = " ".join(done.out.split())
    assert all(text in words for text in ("0 success", "2 invalid", "3 verification failed", "4 environment"))


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (
            "convert",
            "--weights --pretrained --no-pretrained --stride --stage --target --temperature --head-dim --tolerance "
            "--num-classes --seed --device --force --dry-run --json",
        ),
        ("verify", "--against --weights --images --tolerance --device --json"),
        ("models", "--all --json"),
        ("demo", "--out --epochs --finetune-epochs --seed --json"),
    ],
)
def test_help_of_a_command_names_every_option(
    tcnn: Run, command: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = tcnn(command, "--help")
    assert done.code == 0
    assert [option for option in options.split() if option not in done.out] == []


def test_no_arguments_show_the_help(tcnn: Run) -> None:
    done = tcnn()
    assert "convert" in done.out
    assert "Traceback" not in done.out + done.err


def test_version(tcnn: Run) -> None:
    assert tcnn("--version").out == f"tcnn {library.__version__}\n"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1234, "1.2 k"), (25_576_264, "25.6 M"), (8.7e9, "8.7 G"), (1.5e12, "1.5 T")],
)
def test_large_numbers_are_scaled(count: float, text: str) -> None:
    assert scale(count) == text
