"""`tcnn convert` and files: from RUN, a CNN that was trained as it is, and becomes a T-CNN afterwards; and what is
written, which is verified once more before it says done: what the disk made of it counts.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data_pictures import draw_classes
from safetensors.torch import save_file
from tiny_runs import tiny
from torch import nn

import tcnn as library
from tcnn.checkpoints import checkpoint
from tcnn.evaluation.held_out import trainings_of

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> Path:
    """A run that trained a CNN of timm's and held a part of its images out."""
    root = tmp_path_factory.mktemp("trained")
    draw_classes(root / "p", ["a", "b", "c"], 8)
    config = tiny(convert=False, epochs=1, size=48, batch_size=8, val_split=0.25)
    with torch.random.fork_rng(devices=[]):
        library.finetune(lively(num_classes=3), str(root / "p"), None, config, root / "cnn")
    return root / "cnn"


@pytest.fixture
def cnn(tmp_path: Path, trained: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(trained, tmp_path / "cnn")


@pytest.fixture
def converted(tcnn: Run, cnn: Path, kept: Callable[..., Path]) -> Path:
    """`t.safetensors`, made from it."""

    def convert() -> None:
        assert tcnn("convert", "cnn", "t.safetensors").code == 0

    return kept(Path("t.safetensors"), convert)


def test_it_is_the_same_function_and_knows_what_it_learned_from(tcnn: Run, cnn: Path) -> None:
    done = tcnn("convert", "cnn", "t.safetensors", "--content-heads", 2, "--json").json
    assert done["model"] == "cnn" and done["conversion"]["layers"]
    source, converted = library.load(cnn / "best.safetensors").eval(), library.load("t.safetensors").eval()
    x = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        torch.testing.assert_close(converted(x), source(x), rtol=1e-5, atol=1e-5)
    told = tcnn("info", "t.safetensors", "--json").json
    assert (told["kind"], told["label_names"], told["weights"]) == ("T-CNN", ["a", "b", "c"], "file")
    shown = tcnn("evaluate", "t.safetensors").out  # on what the CNN was trained and validated on, and no other part
    assert "6 images" in " ".join(shown.split()) and "that training had held out" in shown
    verified = tcnn("verify", "t.safetensors", "--against", "cnn")
    assert verified.code == 0 and "noise 2×3×48×48" in verified.out  # the run's size, not timm's
    planned = tcnn("convert", "cnn", "--content-heads", 2, "--dry-run", "--json").json["conversion"]
    assert planned == done["conversion"]


def test_what_it_learned_from_outlives_a_fold(tcnn: Run, converted: Path) -> None:
    for command, name, out in (
        ("fold", "t.safetensors", "f.safetensors"),
        ("convert", "f.safetensors", "u.safetensors"),
    ):
        assert tcnn(command, name, out).code == 0
    assert trainings_of("u.safetensors") == trainings_of("t.safetensors") != ()


@pytest.mark.slow
@pytest.mark.parametrize("source", [("--weights", "cnn/best.safetensors"), ("--against", "cnn/best.safetensors")])
def test_it_is_verified_against_a_file_of_the_run(tcnn: Run, converted: Path, source: tuple[str, str]) -> None:
    verified = tcnn("verify", "t.safetensors", *source)
    assert verified.code == 0 and "noise 2×3×48×48" in verified.out


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("--against", "t.safetensors"), "--against t.safetensors: expected a CNN, found a T-CNN; name the CNN that"),
        (("--against", "gone.safetensors"), "gone.safetensors: expected a tcnn checkpoint, found nothing"),
        (("--against", "cnn", "--weights", "cnn/best.safetensors"), "--weights: cnn brings weights of its own"),
        ((), "t.safetensors: made from a CNN that was fine-tuned; name its run or file with --against MODEL"),
    ],
)
def test_what_it_cannot_be_verified_against(tcnn: Run, converted: Path, given: tuple[str, ...], error: str) -> None:
    assert tcnn("verify", "t.safetensors", *given).error(2).startswith(error)


def test_another_cnn_than_its_own_differs(tcnn: Run, cnn: Path, converted: Path) -> None:
    model = library.load(cnn / "best.safetensors")
    with torch.no_grad():
        for bias in (m.bias for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            bias.add_(0.1)
    library.save(model, cnn.parent / "other.safetensors")
    assert tcnn("verify", "t.safetensors", "--against", "other.safetensors").code == 3


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("t.safetensors",), "t.safetensors: is a T-CNN already, there is nothing to convert"),
        (("cnn", "--weights", "cnn/last.safetensors"), "--weights: cnn brings weights of its own; leave it out"),
        (("cnn", "--no-pretrained"), "--no-pretrained: cnn brings weights of its own; leave it out"),
        (("cnn", "--num-classes", 2), "--num-classes: cnn has classes of its own, which it was trained for"),
        (("cnn", "--model-kwargs", "in_chans=1"), "--model-kwargs: cnn records what its model was built with"),
        ((".",), ".: expected a tcnn checkpoint, found no model.safetensors; cnn has one"),
        (("gone.safetensors",), "gone.safetensors: no such file"),
    ],
)
def test_bad_input(tcnn: Run, converted: Path, given: tuple[Any, ...], error: str) -> None:
    assert tcnn("convert", given[0], "o.safetensors", *given[1:]).error(2).startswith(error)


def spoil(monkeypatch: pytest.MonkeyPatch, with_digest: bool) -> None:
    def save(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        tensors["layer4.0.conv1.proj"][5, 7] += 1
        if with_digest:
            metadata = {**metadata, "digest": checkpoint.digest(tensors, metadata)}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)

    monkeypatch.setattr(checkpoint, "save_file", save)


def test_it_is_compared_with_the_source_again(
    tcnn: Run, monkeypatch: pytest.MonkeyPatch, listing: Callable[[], list[str]]
) -> None:
    spoil(monkeypatch, with_digest=True)
    error = tcnn("convert", "test_resnet", "out.safetensors", "--no-pretrained").error(3)
    assert error.startswith("out.safetensors: equivalence error")
    assert "worst layer layer4.0.conv1" in error
    assert listing() == []


def test_it_is_refused_when_it_was_altered(
    tcnn: Run, monkeypatch: pytest.MonkeyPatch, listing: Callable[[], list[str]]
) -> None:
    spoil(monkeypatch, with_digest=False)
    error = tcnn("convert", "test_resnet", "out.safetensors", "--no-pretrained").error(2)
    assert "altered since it was written" in error
    assert listing() == []
