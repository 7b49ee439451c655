"""`tcnn info`: what a file, a run or a name is, read from heads of files; groups of options; silence."""

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import tcnn as package
from tcnn.analysis.reading.model_info import of_config

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> Path:
    """A run's directory with its best checkpoint."""
    root = tmp_path_factory.mktemp("made")
    source = lively(num_classes=3)
    model, _ = package.convert(source, temperature=0.25)
    cfg = {**model.pretrained_cfg, "label_names": ["größe", "b", "c"], "num_classes": 3}
    model.pretrained_cfg = model.default_cfg = cfg
    (root / "run").mkdir()
    training = {"data": "p", "weights": "pretrained", "metrics": {"epoch": 1, "val": {"top1": 0.5, "images": 8}}}
    package.save(model, root / "run/best.safetensors", package.verify(source, model), {"training": training})
    return root


@pytest.fixture
def file(tmp_path: Path, made: Path) -> Path:
    """Of a copy of it, the checkpoint."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True) / "run/best.safetensors"


def test_a_run_is_told(tcnn: Run, file: Path) -> None:
    told = tcnn("info", "run", "--json").json
    expected = {
        "kind": "T-CNN", "source": "test_resnet.r160_in1k", "weights": "pretrained", "stage": "layer4", "layers": 2,
        "stride": "keep", "position": "isotropic", "classes": 3, "label_names": ["größe", "b", "c"],
        "license": "apache-2.0",
        "file": "run/best.safetensors", "bytes": file.stat().st_size,
    }  # fmt: skip
    assert {key: told[key] for key in expected} == expected
    assert told["parameters"] > told["parameters_before"]
    assert told["temperature"] == pytest.approx([0.25, 0.25])
    assert told["verification"]["passed"]
    assert told["verification"]["errors"]["float32"] < 1e-5
    assert told["training"] == {
        "data": "p",
        "epoch": 2,
        "top1": 0.5,
        "top5": None,
        "images": 8,
        "top1_interval": [0.215216, 0.784784],
    }
    shown = tcnn("info", "run").out
    for words in ("T-CNN of test_resnet.r160_in1k", "2 layers of stage layer4", "0.25", "größe", "equal when it was ",
                  "on p, epoch 2", "top-1 50.0% (21.5–78.5) of 8 images"):  # fmt: skip
        assert words in shown


def test_names_in_a_file_do_not_steer_the_terminal(tcnn: Run, file: Path) -> None:
    """What is no control of it is shown as it is, in any script."""
    model = package.load(file)
    names = ["\x1b]0;owned\x07cat", "\u202egpj.exe", "می‌خواهم"]
    model.pretrained_cfg = model.default_cfg = {**model.pretrained_cfg, "label_names": names}
    package.save(model, "s.safetensors", None)
    assert tcnn("info", "s.safetensors", "--json").json["label_names"] == names
    shown = tcnn("info", "s.safetensors").out
    assert not set("\x1b\x07\u202e") & set(shown) and "owned" in shown and "می‌خواهم" in shown


def test_random_weights_have_no_licence_and_those_of_a_file_none_that_is_known(tcnn: Run, file: Path) -> None:
    model = package.load(file)
    for weights in ("file", "random"):
        package.save(model, "r.safetensors", None, {"weights": weights}, force=True)
        assert tcnn("info", "r.safetensors", "--json").json["license"] is None
    tuned = {"weights": "file", "source": {"name": "m", "weights": "file", "training": {"weights": "pretrained"}}}
    package.save(model, "t.safetensors", None, tuned)
    assert tcnn("info", "t.safetensors", "--json").json["license"] == "apache-2.0", "of a run that began with timm's"
    assert "licence" not in tcnn("info", "r.safetensors").out and "licence" in tcnn("info", "run").out


def test_what_its_cnn_learned_from_is_told(tcnn: Run, file: Path) -> None:
    training = {"data": "p", "metrics": {"epoch": 1, "val": {"top1": 0.5, "images": 8}}}
    package.save(package.load(file), "t.safetensors", None, {"source": {"name": "run", "training": training}})
    told = tcnn("info", "t.safetensors", "--json").json
    assert told["training"] is None
    assert told["source_training"] == tcnn("info", "run", "--json").json["training"]
    assert (
        "its CNN     fine-tuned on p, epoch 2, top-1 50.0% (21.5–78.5) of 8 images, "
        in tcnn("info", "t.safetensors").out
    )


def test_an_accuracy_from_before_a_fold_is_said_to_be(tcnn: Run, file: Path) -> None:
    """A file without half of its heads had the accuracy of the one with all of them."""
    assert tcnn("info", "run", "--json").json["fold"] is None
    assert tcnn("fold", "run", "pruned.safetensors", "--prune", "--far", 1.2).code == 0
    assert tcnn("info", "pruned.safetensors", "--json").json["fold"] == "pruned"
    told = " ".join(tcnn("info", "pruned.safetensors").out.split())
    assert "folded heads were removed by where they look" in told
    assert "measured while it was trained and before it was pruned" in told


def test_the_kind_of_positions_is_told(tcnn: Run, lively: Callable[..., nn.Module]) -> None:
    package.save(package.convert(lively(), position="quadratic").model, "q.safetensors")
    assert "2 layers of stage layer4, stride keep, positions quadratic" in tcnn("info", "q.safetensors").out


def test_classes_and_channels_are_the_models_own(tcnn: Run) -> None:
    source = timm.create_model("test_resnet", num_classes=7, in_chans=1)
    package.save(package.convert(source).model, "t.safetensors")
    told = tcnn("info", "t.safetensors", "--json").json
    assert (told["classes"], told["input_size"][0]) == (7, 1)


def test_a_truncated_file_is_said_to_be(tcnn: Run, lively: Callable[..., nn.Module]) -> None:
    package.save(package.convert(lively()).model, "t.safetensors")
    whole = Path("t.safetensors").read_bytes()
    for kept in (len(whole) - 1, len(whole) // 2, 6):
        Path("t.safetensors").write_bytes(whole[:kept])
        assert "t.safetensors: not a whole safetensors file" in tcnn("info", "t.safetensors").error(2)


def test_names_are_told_from_the_catalogue(tcnn: Run) -> None:
    cnn, ours = tcnn("info", "timm/resnet18.a1_in1k", "--json").json, tcnn("info", "t_resnet18", "--json").json
    assert (cnn["kind"], ours["kind"]) == ("timm model", "T-CNN")
    assert cnn["parameters"] == ours["parameters_before"] < ours["parameters"]
    assert "timm model" in tcnn("info", "test_vit").out


def test_a_directory_of_timms_is_told(tcnn: Run, local_source: str) -> None:
    told = tcnn("info", local_source, "--json").json
    assert (told["kind"], told["source"], told["weights"], told["classes"]) == ("timm model", "test_resnet", "file", 10)
    assert told["file"].endswith("source/model.safetensors")


@pytest.mark.parametrize("name", [pytest.param("test_resnet", marks=pytest.mark.slow), "t_test_resnet"])
def test_a_file_of_timms_train_py_is_told(tcnn: Run, lively: Callable[..., nn.Module], name: str) -> None:
    arguments = argparse.Namespace(num_classes=4, img_size=48, data_dir="photos", model_kwargs={"drop_rate": 0.1})
    told = {"arch": name, "state_dict": lively(name, num_classes=4).state_dict(), "epoch": 6, "args": arguments}
    torch.save(told | {"metric": 62.5}, "model_best.pth.tar")
    found = tcnn("info", "model_best.pth.tar", "--json").json
    assert (found["kind"], found["classes"]) == ("T-CNN" if name.startswith("t_") else "timm model", 4)
    assert found["input_size"] == [3, 48, 48]
    assert found["training"] == {
        "data": "photos",
        "epoch": 7,
        "top1": 0.625,
        "top5": None,
        "images": None,
        "top1_interval": None,
    }
    assert found["layers"] == 2
    assert (found["temperature"] is None) == (name == "test_resnet")
    shown = tcnn("info", "model_best.pth.tar").out
    assert "on photos, epoch 7" in shown
    assert "top-1 62.5%, measured while it was trained" in shown
    assert "converted  " in shown if name.startswith("t_") else "can convert" in shown


def test_a_repository_in_the_cache_is_told(
    tcnn: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "hub/models--me--mine"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs/main").write_text("1" * 40)
    shutil.copytree(file.parent, kept / "snapshots" / ("1" * 40))
    (kept / "snapshots" / ("1" * 40) / file.name).rename(kept / "snapshots" / ("1" * 40) / "model.safetensors")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    found, local = (tcnn("info", name, "--json").json for name in ("hf-hub:me/mine", str(file)))
    assert found["name"] == "hf-hub:me/mine"
    alike = ("kind", "source", "stage", "layers", "parameters", "classes", "verification")
    assert {name: found[name] for name in alike} == {name: local[name] for name in alike}


def test_a_repository_that_cannot_be_reached(tcnn: Run, no_network: None) -> None:
    assert "could not be downloaded" in tcnn("info", "hf-hub:me/mine").error(4)


def test_what_is_none_of_ours_is_said(tcnn: Run, tmp_path: Path) -> None:
    torch.save({}, "w.pth")
    (tmp_path / "empty").mkdir()
    assert "no weights in it" in tcnn("info", "w.pth").error(2)
    torch.save({"a": torch.zeros(1)}, "v.pth")
    assert "weights that do not name their model; name it: MODEL --weights v.pth" in tcnn("info", "v.pth").error(2)
    assert "expected a checkpoint or a run, found none in it" in tcnn("info", "empty").error(2)
    assert "expected a checkpoint or a run, found nothing" in tcnn("info", "x.safetensors").error(2)
    assert "no timm model of this name" in tcnn("info", "resnet5O").error(2)


@pytest.mark.parametrize(("command", "groups"), [
    ("convert", ["Model", "Conversion", "Device and speed", "Output"]),
    ("finetune", ["Model", "Images", "Training", "Device and speed", "Output"]),
    ("evaluate", ["Model", "Images", "Device and speed", "Output"]),
])  # fmt: skip
def test_help_has_groups(tcnn: Run, command: str, groups: list[str]) -> None:
    shown = tcnn(command, "--help").out
    for group in groups:
        assert f"─ {group} ─" in shown


def test_quiet_says_results_alone(tcnn: Run, lively: Callable[..., nn.Module]) -> None:
    torch.save(lively(num_classes=3).state_dict(), "w.pth")
    done = tcnn("verify", "t_test_resnet", "--quiet", "--weights", "gone.pth")
    assert done.code != 0
    assert done.err.startswith("error: ")
    assert tcnn("-q", "models", "resnet18").out == tcnn("models", "resnet18").out


def test_a_cnn_for_images_of_another_size_has_its_parameters() -> None:
    """Its FLOPs are those of another size, and not known; a network that was built otherwise counts otherwise."""
    config = {"architecture": "resnet18", "num_classes": 1000, "pretrained_cfg": {"input_size": [3, 96, 96]}}
    plain, built = of_config("x", config), of_config("x", config | {"model_args": {"depth": 2}})
    assert (plain.input_size, plain.flops, plain.parameters) == ((3, 96, 96), None, 11689512)
    assert (built.flops, built.parameters) == (None, None)


@pytest.mark.parametrize("section", ["conversion", "pretrained_cfg", "training"])
@pytest.mark.parametrize("content", ['"[1,{"', "[1]", "[1,{", "3"])
def test_damaged_metadata_are_told_in_one_line(tcnn: Run, file: Path, section: str, content: str) -> None:
    with safe_open(file, framework="pt") as handle:
        told, tensors = handle.metadata(), {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    save_file(tensors, file, told | {section: content})
    done = tcnn("info", str(file))
    assert done.code == 2
    assert f"expected a JSON object as `{section}` in its header, found " in done.err
    assert "take another copy" in done.err
