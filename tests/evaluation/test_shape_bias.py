"""Shape or texture, on a tiny folder of cue-conflict images: what is counted, which classes are of what, the figure."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import tcnn as package
from tcnn.errors import RequestError
from tcnn.evaluation.imagenet_variants import synsets
from tcnn.evaluation.shape_bias import CATEGORIES, conflicts, members, shape_bias


class ByBrightness(nn.Module):
    """Says class b for an image of brightness b: what it will say of an image is known."""

    def __init__(self, names: tuple[str, ...] | None, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.num_classes = classes
        self.pretrained_cfg = {
            "input_size": (3, 8, 8), "mean": (0, 0, 0), "std": (1, 1, 1), "crop_pct": 1.0, "label_names": names,
        }  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        says = (x.mean((1, 2, 3)) * 255).round().long()
        return 50 * nn.functional.one_hot(self.answer(says), self.num_classes).float() + self.weight

    def answer(self, says: Tensor) -> Tensor:
        return says


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two cats and a bear as elephants, dogs or clocks, one of them in its own texture; brightness is the answer."""
    said = {
        "cat/cat1-elephant2": "cat", "cat/cat2-elephant1": "elephant", "cat/cat3-dog1": "cat",
        "bear/bear1-clock1": "truck", "bear/bear2-bear1": "bear",
    }  # fmt: skip
    for name, answer in said.items():
        file = tmp_path / "cues" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), CATEGORIES.index(answer), np.uint8)).save(file)
    return tmp_path / "cues"


class Diverged(ByBrightness):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.nan


def test_an_output_that_is_no_number_decides_for_nothing(folder: Path) -> None:
    found = shape_bias(Diverged(CATEGORIES, 16), "m", folder)
    assert found.decisions.model_dump() == {"shape": 0, "texture": 0, "neither": 4}
    assert found.bias is None and found.unreadable == []


def test_a_name_that_is_no_text(folder: Path) -> None:
    (folder / "cat" / "cat4-dog2.png").write_bytes(b"no picture")
    caf = folder.parent / os.fsdecode(b"caf\xe9")
    folder.rename(caf)
    found = shape_bias(ByBrightness(CATEGORIES, 16), "m", caf)
    assert [Path(name).parts[-3] for name in found.unreadable] == ["caf\\xe9"]
    found.model_dump_json()


def test_decisions_are_counted(folder: Path) -> None:
    found = shape_bias(ByBrightness(CATEGORIES, 16), "m", folder)
    assert found.images == 4, "an image of a bear's texture in a bear's shape tells nothing"
    assert found.decisions.model_dump() == {"shape": 2, "texture": 1, "neither": 1}
    assert found.bias == pytest.approx(2 / 3)
    assert found.low is not None and found.high is not None
    assert found.low < 2 / 3 < found.high
    assert found.categories["cat"].bias == pytest.approx(2 / 3)
    assert found.categories["bear"].bias is None


def test_classes_of_imagenet_are_put_together(folder: Path) -> None:
    outputs = members(synsets())

    class OfImageNet(ByBrightness):
        def answer(self, says: Tensor) -> Tensor:
            return torch.tensor([outputs[CATEGORIES[int(one)]][-1] for one in says])

    assert shape_bias(OfImageNet(None, 1000), "m", folder).decisions.model_dump() == {
        "shape": 2, "texture": 1, "neither": 1,
    }  # fmt: skip
    with pytest.raises(RequestError, match="m: expected ImageNet's 1,000 classes for --shape-bias, or"):
        shape_bias(ByBrightness(None, 10), "m", folder)


def test_every_class_belongs_to_at_most_one_category() -> None:
    """Counts by WordNet: 118 breeds of dogs and 59 kinds of birds are known numbers of ImageNet."""
    found = members(synsets())
    everything = [index for places in found.values() for index in places]
    assert len(everything) == len(set(everything))
    assert len(CATEGORIES) == 16
    assert [len(found[name]) for name in ("dog", "bird", "cat", "bear", "elephant")] == [118, 59, 7, 4, 2]
    assert (found["airplane"], found["keyboard"], found["bear"]) == ((404,), (508, 878), (294, 295, 296, 297))


@pytest.mark.parametrize("name", ["cat/cat1.png", "cat/dog1-cat1.png", "cat/cat1-lion1.png"])
def test_other_layouts_are_refused(name: str, folder: Path) -> None:
    (folder / name).touch()
    with pytest.raises(RequestError, match=r"expected SHAPE/SHAPE1-TEXTURE2\.png"):
        conflicts(folder)


def test_on_the_command_line(
    folder: Path, lively: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from tcnn.cli.main import main

    monkeypatch.chdir(folder.parent)
    model = package.convert(lively(num_classes=16)).model
    cfg = {**model.pretrained_cfg, "label_names": list(CATEGORIES)}
    model.pretrained_cfg = model.default_cfg = cfg
    package.save(model, "t.safetensors")
    shown = {}
    for options in (("--figure", "bias.svg"), ("--json",), ("--data", "x")):
        with pytest.raises(SystemExit) as ended:
            main(["evaluate", "t.safetensors", "--shape-bias", "cues", "--size", "48", "--device", "cpu", *options])
        shown[options[0]] = (ended.value.code, *capsys.readouterr())
    code, out, _ = shown["--figure"]
    assert code == 0
    assert "cues: 4 images" in out and "shape bias" in out and "wrote bias.svg" in out
    assert "share of shape decisions" in Path("bias.svg").read_text(encoding="utf-8")
    assert '"decisions"' in shown["--json"][1]
    assert shown["--data"][2].startswith("error: --data: --shape-bias names images of its own")
