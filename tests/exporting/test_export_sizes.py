"""Sizes that an exported model takes: axes that hang together, sides that are multiples, models that take one size."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from data_pictures import picture
from sampled import crossed, sampled
from timm.data import create_transform
from torch import Tensor, nn

import tcnn
from tcnn.config.base import ErrorStats
from tcnn.errors import EmptyMapError, EnvironmentFailure, RequestError, VerificationError
from tcnn.evaluation.evaluate import transform_for
from tcnn.exporting import check as export_check
from tcnn.exporting.export import PREPARING, describe
from tcnn.exporting.interface import AXES, ExportCheck
from tcnn.exporting.program import trace
from tcnn.networks.attentive import AttentiveNet


class Square(nn.Module):
    """Takes squares only, and multiplies their sides."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return ((x @ x).mean((2, 3)) * self.weight)[:, :2]


def test_axes_that_hang_together_are_fixed(tmp_path: Path) -> None:
    report = tcnn.export(Square(), tmp_path / "a.pt2", size=(8, 8))
    assert [axis.dynamic for axis in report.axes] == [True, False, False]
    assert report.notes == ("height and width fixed: the model ties or fixes batch and height and width",)
    assert [check.shape for check in report.checks] == [(2, 3, 8, 8), (1, 3, 8, 8), (3, 3, 8, 8)]


def test_sides_that_follow_no_one_number_are_named() -> None:
    """A side that was odd and one that was too small: each was tried as near as the model takes it."""
    wanted = [(1, 3, 33, 41), (2, 3, 17, 40)]
    error = ErrorStats(max_abs=0.0, relative=0.0, max_relative=0.0, cosine=1.0)
    checks = [ExportCheck(shape=shape, error=error, top1_agreement=1.0) for shape in ((1, 3, 33, 41), (2, 3, 32, 64))]
    assert export_check.multiples(wanted, checks) == (
        "the model does not take every height and width; the file was checked at 33×41, 32×64"
    )
    assert export_check.multiples(wanted[:1], checks[:1]) is None


def patches() -> nn.Module:
    """Patches that become channels."""
    return nn.Sequential(nn.Conv2d(3, 2, 1), nn.PixelUnshuffle(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize(
    "made",
    [patches, pytest.param(lambda: AttentiveNet(embed_dim=8, mlp_dim=8, depth=1, heads=2), marks=pytest.mark.slow)],
    ids=["patches", "with attention"],
)
def test_sides_that_are_multiples(made: Callable[[], nn.Module], tmp_path: Path) -> None:
    """The model runs on no odd side, and neither does the file."""
    model = made()
    report = tcnn.export(model, tmp_path / "m.pt2", size=(16, 20))
    assert [check.shape[2:] for check in report.checks] == [(16, 20), (14, 26), (18, 14)]
    assert [axis.dynamic for axis in report.axes] == [True, True, True]
    assert report.notes == ("height and width must be multiples of 2, as the model takes no others",)


class Tall(nn.Conv2d):
    """Takes one height, and any width."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[2] == 24
        return super().forward(x).mean((2, 3))


def test_an_axis_that_the_model_fixes_is_named() -> None:
    with pytest.raises(RequestError, match=r"^the model ties or fixes height$"):
        trace(Tall(3, 2, 1).eval(), torch.zeros(2, 3, 24, 20), AXES)


class Picky(nn.Conv2d):
    """Traced by one size, it runs on no other."""

    error: Exception = RuntimeError("20 is the best width")

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and x.shape[-1] != 20:
            raise self.error
        return super().forward(x)


def picky(error: Exception) -> Picky:
    model = Picky(3, 2, 3)
    model.error = error
    return model


REFUSALS = (
    RuntimeError("20 is the best width"), AssertionError("Input height (13) doesn't match model (16)."),
    ValueError("Expected more than 1 spatial element"), IndexError("index 26 is out of bounds"), EmptyMapError("small"),
)  # fmt: skip


@pytest.mark.parametrize(
    "error", sampled(REFUSALS, (REFUSALS[0], REFUSALS[-1])), ids=lambda error: type(error).__name__
)
def test_a_model_that_runs_on_no_other_size(error: Exception, tmp_path: Path) -> None:
    report = tcnn.export(picky(error), tmp_path / "m.pt2", size=(16, 20))
    assert [axis.dynamic for axis in report.axes] == [True, False, False]
    assert report.notes == ("height and width are fixed: the model takes no other size than 16×20",)
    assert {check.shape[2:] for check in report.checks} == {(16, 20)}


def test_a_size_that_nothing_near_it_replaces_is_named() -> None:
    """Of a file that was exported with free sizes; `export` itself fixes those of such a model before."""
    said = r"Picky does not run on an image of 3×13×25 nor of sides that are multiples of 32 \(20 is the best width\)"
    with pytest.raises(VerificationError, match=said):
        export_check.compare(picky(REFUSALS[0]), lambda x: x, [(1, 3, 13, 25)])


@pytest.mark.parametrize(
    "error",
    [
        KeyError("bias"),
        pytest.param(TypeError("no number"), marks=pytest.mark.slow),
        NotImplementedError("aten::x"),
        pytest.param(RecursionError("deep"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_model_that_fails_for_another_reason_than_the_size(error: Exception, tmp_path: Path) -> None:
    told = r"Picky: expected a model that runs on a batch .* on 3×13×25 ends in {} \(.*\), which no other size"
    with pytest.raises(RequestError, match=told.format(type(error).__name__)) as raised:
        tcnn.export(picky(error), tmp_path / "m.pt2", size=(16, 20))
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
              torch.OutOfMemoryError("CUDA out of memory.")], ids=lambda error: type(error).__name__
)  # fmt: skip
def test_a_model_for_which_there_is_no_memory(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="out of memory: Picky on an image of 3×13×25; choose a smaller size"):
        tcnn.export(picky(error), tmp_path / "m.pt2", size=(16, 20))
    assert not list(tmp_path.iterdir())


class Branching(nn.Conv2d):
    """Takes every width, one of them in another way, of which the trace of another knows that it is not that."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x).mean((2, 3))
        return 2 * y if x.shape[3] == 25 else y


def test_axes_of_which_the_program_takes_not_all_sizes_are_fixed(tmp_path: Path) -> None:
    model = Branching(3, 2, 3)
    report = tcnn.export(model, tmp_path / "m.pt2", size=(16, 20))
    assert [axis.dynamic for axis in report.axes] == [True, False, False]
    (note,) = report.notes
    assert note.startswith("height and width fixed: the exported file does not run on 1×3×13×25 (Guard failed:")
    assert "--fixed" not in note
    x = torch.randn(5, 3, 16, 20)
    torch.testing.assert_close(torch.export.load(tmp_path / "m.pt2").module()(x), model(x))


class Collecting(nn.Sequential):
    """A forward pass that takes whatever it is given, as decorators and wrappers have it."""

    def forward(self, *args: Tensor, **named: object) -> Tensor:
        return super().forward(args[0])


@pytest.mark.parametrize(("kind", "dynamic"), crossed(["pt2", "onnx"], [(), ("batch", "height", "width")], 2))
def test_a_forward_pass_that_collects_its_arguments(kind: str, dynamic: Any, tmp_path: Path) -> None:
    """The tracer was told of one argument where it sees a tuple of them, whatever was to be free."""
    model = Collecting(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    report = tcnn.export(model, tmp_path / f"m.{kind}", size=(8, 6), dynamic=dynamic)
    assert [axis.dynamic for axis in report.axes] == [bool(dynamic)] * 3
    assert report.notes == ()


@pytest.mark.parametrize(("classes", "kept"), sampled([(2, True), (3, False)], [(3, False)]))
def test_classes_are_counted_by_the_output(classes: int, kept: bool, tmp_path: Path) -> None:
    """A classifier that was replaced by hand leaves timm's `num_classes` as it was."""
    model: Any = timm.create_model("test_resnet", num_classes=5).eval()
    model.fc = nn.Linear(model.num_features, classes)
    model.pretrained_cfg = {**model.pretrained_cfg, "label_names": ["cat", "dog"]}
    tcnn.export(model, tmp_path / "m.pt2", size=32, dynamic=())
    extra = {"metadata.json": ""}
    torch.export.load(tmp_path / "m.pt2", extra_files=extra)
    told = json.loads(extra["metadata.json"])
    assert json.loads(told["num_classes"]) == classes
    assert ("label_names" in told) is kept


@pytest.mark.parametrize("options", [{"in_chans": 1}, {"pretrained_cfg_overlay": {"crop_mode": "squash"}}], ids=str)
def test_images_are_prepared_by_the_metadata_as_they_are_by_the_model(options: dict[str, Any]) -> None:
    model = timm.create_model("test_resnet", **options)
    told = describe(model, (64, 64))
    settings = {key: told[key] if key in ("interpolation", "crop_mode") else json.loads(told[key]) for key in PREPARING}
    mode = "L" if options.get("in_chans") == 1 else "RGB"
    image = picture(width=60, height=20).convert(mode)
    expected = transform_for(model, 64)(image)
    theirs = create_transform((len(settings["mean"]), 64, 64), **settings)(image)
    assert theirs.shape == expected.shape
    assert torch.equal(theirs, expected)
