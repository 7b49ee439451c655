"""Whatever is asked wrongly is answered in one line that says what to do, with the exit code that DESIGN gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data_pictures import draw_classes
from torch import nn

Run = Callable[..., Any]
Lively = Callable[..., nn.Module]
Listing = Callable[[], list[str]]

ON_RANDOM_WEIGHTS: dict[str, tuple[tuple[object, ...], int, tuple[str, ...]]] = {
    # what is asked, the exit code, what the answer must say
    "unknown model": (("resnet5Od", "o.safetensors"), 2, ("resnet5Od: no timm model", "did you mean resnet50d")),
    "unknown tag": (("resnet50d.best", "o.safetensors"), 2, ("no weights tagged 'best'", "ra2_in1k")),
    "unknown scheme": (("ftp:resnet18", "o.safetensors"), 2, ("ftp", "hf-hub:ORG/NAME or local-dir:PATH")),
    "missing local directory": (("local-dir:gone", "o.safetensors"), 2, ("local-dir:gone: expected a directory",)),
    "transformer": (
        ("test_vit", "o.safetensors"),
        2,
        ("test_vit: no k×k convolution", "looked at", "patch_embed.proj"),
    ),
    "transformer, another stage": (("test_vit", "o.safetensors", "--stage", 0), 2, ("no k×k convolution", "looked at")),
    "nothing in the last stage": (("test_coatnet", "o.safetensors"), 2, ("stages.3", "other stages: --stage 0")),
    "mixer": (("mixer_s16_224", "o.safetensors"), 2, ("mixer_s16_224: no k×k convolution", "looked at")),
    "missing directory": (("test_resnet", "no/where.safetensors"), 2, ("no does not exist; create it first",)),
    "wrong suffix": (
        ("test_resnet", "out.onnx"),
        2,
        ("out.onnx", "expected a name that ends in .safetensors", ".onnx"),
    ),
    "root as output": (("test_resnet", "/", "--force"), 2, ("/",)),
    "temperature 0": (
        ("test_resnet", "o.safetensors", "--temperature", 0),
        2,
        ("temperature", "greater than 0", "0.0"),
    ),
    "temperature -1": (("test_resnet", "o.safetensors", "--temperature", -1), 2, ("temperature", "greater", "-1.0")),
    "temperature nan": (("test_resnet", "o.safetensors", "--temperature", "nan"), 2, ("temperature", "nan")),
    "temperature inf": (("test_resnet", "o.safetensors", "--temperature", "inf"), 2, ("temperature", "finite")),
    "temperature word": (("test_resnet", "o.safetensors", "--temperature", "hot"), 2, ("--temperature", "number")),
    "tolerance 0": (("test_resnet", "o.safetensors", "--tolerance", 0), 2, ("tolerance", "greater than 0")),
    "tolerance inf": (("test_resnet", "o.safetensors", "--tolerance", "inf"), 2, ("tolerance", "inf")),
    "tolerance nan": (("test_resnet", "o.safetensors", "--tolerance", "nan"), 2, ("tolerance", "nan")),
    "head width of memory": (
        ("test_resnet", "o.safetensors", "--head-dim", 1_000_000),
        2,
        ("head_dim: layer4.0.conv1 reads 192 channels, and a wider head tells nothing more", "at most 192, got"),
    ),
    "head width 0": (("test_resnet", "o.safetensors", "--head-dim", 0), 2, ("head_dim", "1")),
    "window 0": (("test_resnet", "o.safetensors", "--content", "window:0"), 2, ("content: expected", "'window:0'")),
    "content of nothing": (("test_resnet", "o.safetensors", "--content", "local"), 2, ("window:14", "'local'")),
    "bad regex": (("test_resnet", "o.safetensors", "--target", "("), 2, ("target: not a regular expression", "'('")),
    "target of 1×1": (
        ("test_resnet", "o.safetensors", "--target", r"layer4\.0\.(downsample\.1|conv3)"),
        2,
        ("matches only layers that cannot be converted", "layer4.0.downsample.1: 1×1: it looks at one pixel only"),
    ),
    "target of nothing": (
        ("test_resnet", "o.safetensors", "--target", "layer4"),
        2,
        ("matches no convolution", "whole dotted name must match", "layer4.0.conv2"),
    ),
    "stage 9": (("test_resnet", "o.safetensors", "--stage", 9), 2, ("stage: expected one of 0", "4 (layer4)", "got 9")),
    "stage -9": (("test_resnet", "o.safetensors", "--stage", -9), 2, ("4 (layer4)", "got -9")),
    "stage word": (("test_resnet", "o.safetensors", "--stage", "last"), 2, ("--stage", "integer")),
    "stride of an unknown family": (
        ("test_convnext", "o.safetensors", "--stride", "remove"),
        2,
        ("stride=remove is known for", "ResNet", "ConvNeXt; use stride=keep"),
    ),
    "stride word": (
        ("test_resnet", "o.safetensors", "--stride", "half"),
        2,
        ("stride", "'keep', 'remove' or 'dilate'", "'half'"),
    ),
    "classes -3": (("test_resnet", "o.safetensors", "--num-classes", -3), 2, ("--num-classes",)),
    "seed -1": (("test_resnet", "o.safetensors", "--seed", -1), 2, ("--seed",)),
    "no output": (("test_resnet",), 2, ("OUT", "--dry-run")),
    "no model": ((), 2, ("MODEL",)),
    "unknown option": (("test_resnet", "o.safetensors", "--turbo"), 2, ("--turbo",)),
    "too many arguments": (("test_resnet", "o.safetensors", "again"), 2, ("again",)),
    "no such device": (
        ("test_resnet", "o.safetensors", "--device", "abacus"),
        4,
        ("--device abacus: not usable here",),
    ),
    "device without data": (("test_resnet", "o.safetensors", "--device", "meta"), 4, ("--device meta: not usable",)),
}


@pytest.mark.parametrize(("arguments", "code", "words"), ON_RANDOM_WEIGHTS.values(), ids=ON_RANDOM_WEIGHTS)
def test_convert_answers_in_one_line(
    tcnn: Run, listing: Listing, arguments: tuple[object, ...], code: int, words: tuple[str, ...]
) -> None:
    error = tcnn("convert", *arguments, "--no-pretrained").error(code)
    assert [word for word in words if word not in error] == [], error
    assert listing() == []


@pytest.mark.parametrize(
    "what", ["transformer", "stage 9", "temperature 0", "unknown option", "no output", "no such device"]
)
def test_with_json_the_answer_is_one_object_on_stdout(tcnn: Run, what: str) -> None:
    arguments, code, words = ON_RANDOM_WEIGHTS[what]
    done = tcnn("convert", *arguments, "--no-pretrained", "--json")
    assert (done.code, done.err) == (code, "")
    assert set(done.json) == {"error"}
    assert set(done.json["error"]) == {"code", "message"}
    assert all(word in done.json["error"]["message"] for word in words)


def test_debug_shows_where_it_happened(tcnn: Run) -> None:
    done = tcnn("--debug", "convert", "test_resnet", "o.safetensors", "--no-pretrained", "--stage", 9)
    assert done.code == 2
    assert done.err.startswith("Traceback (most recent call last):\n")
    assert "selection.py" in done.err
    assert done.err.splitlines()[-1].startswith("error: stage: expected one of")


@pytest.mark.skipif(torch.cuda.is_available(), reason="NOT TESTED: a missing GPU, because this machine has one")
def test_a_missing_gpu_is_the_environments_failure(tcnn: Run, listing: Listing) -> None:
    error = tcnn("convert", "test_resnet", "o.safetensors", "--no-pretrained", "--device", "cuda").error(4)
    assert error.startswith("--device cuda: not usable here")
    assert error.endswith("use cpu")
    assert listing() == []


def test_unknown_commands_and_words_are_named(tcnn: Run) -> None:
    assert "fold_it" in tcnn("fold_it").error(2)
    assert "CKPT" in tcnn("verify").error(2)
    assert "--epochs" in tcnn("demo", "--epochs", 0).error(2)
    assert "no_such_model" in tcnn("models", "no_such_model").error(2)


class TestOutput:
    def test_that_exists_is_not_touched(self, tcnn: Run, tmp_path: Path) -> None:
        (tmp_path / "o.safetensors").write_text("mine")
        error = tcnn("convert", "test_resnet", "o.safetensors", "--no-pretrained").error(2)
        assert "o.safetensors: exists already; replace it with --force" in error
        assert (tmp_path / "o.safetensors").read_text() == "mine"

    def test_of_the_wrong_kind_is_refused_even_by_force(self, tcnn: Run, tmp_path: Path, listing: Listing) -> None:
        (tmp_path / "o.safetensors").mkdir()
        (tmp_path / "plain").write_text("mine")
        assert "directory" in tcnn("convert", "test_resnet", "o.safetensors", "--no-pretrained", "--force").error(2)
        assert "file" in tcnn("convert", "test_resnet", "plain", "--no-pretrained", "--force").error(2)
        assert (tmp_path / "plain").read_text() == "mine"
        assert listing() == ["o.safetensors", "plain"]

    def test_in_a_place_that_takes_none(self, tcnn: Run) -> None:
        error = tcnn("convert", "test_resnet", "/proc/x.safetensors", "--no-pretrained").error(4)
        assert (
            error
            == "/proc/x.safetensors: no such file or directory while writing; nothing was kept, choose another place"
        )

    def test_is_checked_before_anything_else(self, tcnn: Run, no_network: None) -> None:
        assert "create it first" in tcnn("convert", "test_resnet", "no/where.safetensors").error(2)


class TestDownloads:
    def test_that_are_impossible_name_the_ways_out(self, tcnn: Run, no_network: None, listing: Listing) -> None:
        for name in ("test_resnet", "hf-hub:timm/resnet18.a1_in1k"):
            error = tcnn("convert", name, "o.safetensors").error(4)
            assert all(
                word in error for word in (name, "--weights", "--no-pretrained", "HF_HOME", "could not be downloaded")
            )
        assert "could not be downloaded" in tcnn("convert", "hf-hub:timm/resnet18.a1_in1k", "--dry-run").error(4)
        assert listing() == []

    @pytest.mark.parametrize(
        ("typed", "advice"),
        [
            ("evaluate test_resnet --data p", "on a connected machine, or give --weights FILE"),
            ("verify t_test_resnet", "on a connected machine, or give --weights FILE"),
            ("predict t_test_resnet p", "or make a checkpoint with tcnn convert, which takes --weights FILE"),
            ("inspect t_test_resnet", "or make a checkpoint with tcnn convert, which takes --weights FILE"),
            ("export t_test_resnet o.onnx", "or make a checkpoint with tcnn convert, which takes --weights FILE"),
            ("fold hf-hub:a/b o.safetensors", "or make a checkpoint with tcnn convert, which takes --weights FILE"),
            ("push t_test_resnet a/b", "or make a checkpoint with tcnn convert, which takes --weights FILE"),
            ("finetune test_resnet --data p", "give --weights FILE, or --no-pretrained for random ones"),
        ],
    )  # fmt: skip
    def test_name_no_option_that_the_command_lacks(
        self, tcnn: Run, no_network: None, tmp_path: Path, typed: str, advice: str
    ) -> None:
        draw_classes(tmp_path / "p", ["a", "b"], 2)
        error = tcnn(*typed.split()).error(4)
        assert "could not be downloaded" in error
        assert error.endswith(advice)

    def test_of_what_has_no_weights_name_none_either(self, tcnn: Run, tmp_path: Path) -> None:
        draw_classes(tmp_path / "p", ["a", "b"], 2)
        said = {
            command: tcnn(*command.split()).error(2)
            for command in ("evaluate test_mambaout --data p", "predict test_mambaout p")
        }
        assert [error.partition("for it; ")[2] for error in said.values()] == [
            "give --weights FILE", "make a checkpoint with tcnn convert, which takes --weights FILE",
        ]  # fmt: skip

    def test_that_do_not_exist_are_not_replaced_by_random_weights(self, tcnn: Run, listing: Listing) -> None:
        error = tcnn("convert", "test_mambaout", "o.safetensors").error(2)
        assert "test_mambaout: timm has no pretrained weights for it; give --weights FILE, or --no-pretrained" in error
        assert listing() == []


def test_what_is_there_under_a_name_that_says_nothing_is_told(tcnn: Run, tmp_path: Path) -> None:
    """A checkpoint without its ending, or a folder, was taken for a misspelt model of timm's."""
    (tmp_path / "checkpoint").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    said = "checkpoint: a file whose name does not say what it is; a checkpoint's ends in .safetensors"
    for command in (("verify", "checkpoint"), ("convert", "checkpoint", "o.safetensors"), ("inspect", "checkpoint")):
        assert tcnn(*command).error(2) == said
    said = "folder: a directory without a checkpoint; expected one of a run or a model, or a timm name"
    draw_classes(tmp_path / "photos", ["a", "b"], 12)
    assert tcnn("finetune", "folder", "--data", "photos", "--preset", "quick", "--batch-size", 4).error(2) == said
