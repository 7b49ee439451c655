"""`--model-kwargs` wherever a model is named: taken, and kept by what is written, or refused with the reason."""

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from data_pictures import draw_classes
from tiny_runs import tiny
from torch import nn

import tcnn as library
from tcnn.checkpoints import checkpoint
from tcnn.cli.options.spellings import model_arguments, source_arguments
from tcnn.errors import RequestError
from tcnn.training.baseline import baseline_start

Run = Callable[..., Any]
WIDE = ("--model-kwargs", "output_stride=16", "global_pool='max'")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> Path:
    """Weights of a CNN and of its T-CNN with a content head, what timm's train.py wrote of the CNN, and images."""
    root = tmp_path_factory.mktemp("made")
    draw_classes(root / "p", ["a", "b", "c"], 2)
    cnn, t_cnn = lively("test_resnet", num_classes=3), lively("t_test_resnet", num_classes=3, content_heads=1)
    torch.save(cnn.state_dict(), root / "cnn.pth")
    torch.save(t_cnn.state_dict(), root / "t.pth")
    options = argparse.Namespace(num_classes=3, model_kwargs={"output_stride": 16}, in_chans=None)
    torch.save({"arch": "test_resnet", "state_dict": cnn.state_dict(), "args": options}, root / "trained.pth.tar")
    return root


@pytest.fixture
def files(tmp_path: Path, made: Path) -> Path:
    """A copy of them."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def strides(file: str) -> list[tuple[int, int]]:
    """Strides and dilations of what was converted: with an output stride of 16 the last stage has none."""
    return [(layer.stride[0], layer.dilation[0]) for layer in checkpoint.read(file).conversion.layers]


def test_a_conversion_keeps_them(tcnn: Run, files: Path) -> None:
    shown = tcnn("convert", "test_resnet", "--dry-run", *WIDE, "--json").json["conversion"]["layers"]
    assert {layer["stride"][0] for layer in shown} == {1}
    assert tcnn("convert", "test_resnet", "t.safetensors", "--weights", "cnn.pth", *WIDE).code == 0
    assert {stride for stride, _ in strides("t.safetensors")} == {1}
    assert checkpoint.read("t.safetensors").conversion.model_args["global_pool"] == "max"


@pytest.mark.slow
def test_whatever_is_compared_is_built_with_them(tcnn: Run, files: Path) -> None:
    plain = tcnn("convert", "test_resnet", "--dry-run", "--json").json["conversion"]["layers"]
    assert {layer["stride"][0] for layer in plain} == {1, 2}
    assert tcnn("convert", "test_resnet", "t.safetensors", "--weights", "cnn.pth", *WIDE).code == 0
    assert tcnn("verify", "t.safetensors", "--weights", "cnn.pth").code == 0
    assert tcnn("verify", "t.safetensors", "--against", "test_resnet", "--weights", "cnn.pth").code == 3
    same = ("--against", "test_resnet", "--weights", "cnn.pth", *WIDE)
    assert tcnn("verify", "t.safetensors", *same).code == 0
    assert tcnn("convert", "trained.pth.tar", "u.safetensors").code == 0, "what train.py wrote brings its own"
    assert strides("u.safetensors") == strides("t.safetensors")


def test_models_of_other_classes_are_not_compared(tcnn: Run, files: Path) -> None:
    library.save(library.convert(timm.create_model("test_resnet", num_classes=3)).model, "t.safetensors")
    torch.save(timm.create_model("test_resnet", num_classes=5).state_dict(), "other.pth")
    against = ("verify", "t.safetensors", "--against", "test_resnet", "--weights", "other.pth")
    assert (
        tcnn(*against).error(2).startswith("t.safetensors: has 3 outputs and test_resnet 5, so their logits cannot b")
    )


@pytest.mark.slow
def test_the_cnn_that_is_trained_beside_is_built_with_them(tcnn: Run, files: Path) -> None:
    assert tcnn("convert", "test_resnet", "t.safetensors", "--no-pretrained", *WIDE).code == 0
    cnn = baseline_start(files / "t.safetensors", tiny(), ("a", "b", "c")).model
    layer = cnn.get_submodule(checkpoint.read("t.safetensors").conversion.layers[0].name)
    assert isinstance(layer, nn.Conv2d)
    assert layer.stride == (1, 1)


@pytest.mark.slow
def test_models_by_their_names_are_built_with_them(tcnn: Run, files: Path, local_source: str) -> None:
    images = ("p", "--size", 32, "--device", "cpu", "--json")
    plain, wide = tcnn("predict", local_source, *images), tcnn("predict", local_source, *WIDE, *images)
    other = tcnn("predict", local_source, *WIDE, "--compare", local_source + "/", *images)
    first, second = ([one["guesses"] for one in found.json["models"][0]["images"]] for found in (plain, wide))
    assert first != second
    mine, its = ([one["guesses"] for one in answers["images"]] for answers in other.json["models"])
    assert (mine, its) == (second, first), "they are of CKPT, not of what is beside it"
    shapes = []
    for name in ("plain", "wide"):
        given = WIDE if name == "wide" else ()
        assert tcnn("export", local_source, f"{name}.pt2", "--size", 32, "--fixed", *given).code == 0
        nodes = torch.export.load(f"{name}.pt2").graph.nodes
        shapes.append([tuple(node.meta["val"].shape) for node in nodes if "conv2d" in node.name])
    assert shapes[0][-1][2:] == (1, 1)
    assert shapes[1][-1][2:] == (2, 2)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            "finetune test_resnet --data p",
            "training builds its model, and the CNN beside it, again from the name; conv",
        ),
        ("plan test_resnet --data p", "training builds its model, and the CNN beside it, again from the name; convert"),
        (
            "evaluate t.safetensors --data p",
            "t.safetensors records what its model was built with; leave output_stride out",
        ),
        ("predict t.safetensors p", "t.safetensors records what its model was built with; leave output_stride out"),
        ("export t.safetensors x.onnx", "t.safetensors records what its model was built with; leave output_stride out"),
        ("verify t.safetensors", "t.safetensors records what its model was built with; leave output_stride out"),
        ("convert trained.pth.tar u.safetensors", "trained.pth.tar records what its model was built with; leave out"),
        ("convert trained.pth.tar --dry-run", "trained.pth.tar records what its model was built with; leave output_"),
    ],
)
def test_where_they_would_do_nothing_they_are_refused(typed: str, said: str, tcnn: Run, files: Path) -> None:
    library.save(library.convert(timm.create_model("test_resnet", num_classes=3)).model, "t.safetensors")
    error = tcnn(*typed.split(), "--model-kwargs", "output_stride=8").error(2)
    assert error.startswith(f"--model-kwargs: {said}"), error


def test_training_does_not_forget_what_a_file_was_built_with(tcnn: Run, files: Path) -> None:
    error = tcnn("finetune", "trained.pth.tar", "--data", "p").error(2)
    assert error.startswith("trained.pth.tar: test_resnet built with output_stride, which training would not know of;")


def test_what_belongs_elsewhere_is_said() -> None:
    assert source_arguments(["output_stride=8"]) == {"output_stride": 8}
    with pytest.raises(RequestError, match="content_heads is a setting of the conversion: --content-heads"):
        source_arguments(["content_heads=1"])
    with pytest.raises(RequestError, match="num_classes has an option of its own: --num-classes"):
        source_arguments(["num_classes=3"])
    for name in ("anneal_steps", "drop_rate", "drop_path_rate"):
        with pytest.raises(RequestError, match=f"{name} is a training argument, not kept in converted files"):
            source_arguments([f"{name}=1"])
    for name in ("pretrained_cfg", "checkpoint_path", "weights", "model_name"):
        with pytest.raises(RequestError, match=f"{name} is not an argument of the model; its weights are those"):
            model_arguments([f"{name}=x"])
