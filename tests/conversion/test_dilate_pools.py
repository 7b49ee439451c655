"""Pools and shortcuts that lose their stride beside convolutions: maps have one size, and the old pixels are exact."""

from pathlib import Path

import pytest
import torch
from nets import image, relative_error
from torch import Tensor, nn

import tcnn
from tcnn.conversion.report import ConversionReport
from tcnn.conversion.strides.layers import WholeWindows
from tcnn.errors import UnsupportedLayerError


class Branches(nn.Module):
    """A block of two branches, added or side by side, between two convolutions."""

    def __init__(self, one: nn.Module, other: nn.Module, concatenated: bool = False) -> None:
        super().__init__()
        self.stem, self.one, self.other = nn.Conv2d(3, 4, 3, 1, 1), one, other
        self.last = nn.Conv2d(8 if concatenated else 4, 4, 3, 1, 1)
        self.concatenated = concatenated

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        parts = self.one(x), self.other(x)
        both = torch.cat(parts, 1) if self.concatenated else parts[0] + parts[1]
        return self.last(both.relu())


def padded(stride: int = 2) -> nn.Module:
    return nn.Conv2d(4, 4, 3, stride, 1)


def patches(stride: int = 2) -> nn.Module:
    """A convolution whose windows stand side by side."""
    return nn.Conv2d(4, 4, stride, stride)


POOLS = {
    "a maximum": nn.MaxPool2d(2),
    "a mean": nn.AvgPool2d(2),
    "a mean in excess": nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False),
    "of threes": nn.MaxPool2d(3),
    "of one axis": nn.MaxPool2d((2, 1)),
}
BESIDE = {"of threes": padded(3), "of one axis": nn.Conv2d(4, 4, 3, (2, 1), 1)}


@torch.no_grad()
def check(source: nn.Module, size: tuple[int, int], step: tuple[int, int], larger: tuple[int, int]) -> None:
    """The converted model has maps of this size, whose every s-th pixels are the source's, and is its own reference."""
    source.double().eval()
    model, report = tcnn.convert(source, stride="dilate", input_size=size)
    x = image(size, double=True)
    old, new = source(x), model(x)
    assert new.shape[-2:] == larger and set(report.dilated.values()) == {step}
    every = new[..., :: step[0], :: step[1]]
    assert every.shape == old.shape, "no pixel beyond the old map's end"
    assert relative_error(old, every) <= 1e-12
    assert relative_error(tcnn.without_stride(source, stride="dilate", input_size=size)(x), new) <= 1e-12


@pytest.mark.parametrize("concatenated", [False, True], ids=["added", "side by side"])
@pytest.mark.parametrize("size", [(18, 24), (12, 30)], ids=str)
@pytest.mark.parametrize("pool", POOLS)
def test_a_pool_beside_a_padded_convolution(pool: str, size: tuple[int, int], concatenated: bool) -> None:
    torch.manual_seed(0)
    step = {"of threes": (3, 3), "of one axis": (2, 1)}.get(pool, (2, 2))
    check(Branches(BESIDE.get(pool, padded()), POOLS[pool], concatenated), size, step, size)


@pytest.mark.parametrize("size", [(16, 20), (17, 21), (16, 21)], ids=str)
@pytest.mark.parametrize("pool", ["a maximum", "a mean"])
def test_a_pool_beside_an_unpadded_convolution(pool: str, size: tuple[int, int]) -> None:
    """Both maps are a pixel smaller."""
    torch.manual_seed(0)
    check(Branches(patches(), POOLS[pool]), size, (2, 2), (size[0] - 1, size[1] - 1))


@pytest.mark.parametrize("size", [(16, 20), (17, 21), (16, 21)], ids=str)
def test_a_pool_by_itself_is_as_one_beside_an_unpadded_convolution(size: tuple[int, int]) -> None:
    """As in files of earlier releases, which do not say so: what was trained on one map is not run on another."""
    torch.manual_seed(0)
    source = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, 1, 1))
    check(source, size, (2, 2), (size[0] - 1, size[1] - 1))
    _, report = tcnn.convert(source, stride="dilate", input_size=size)
    kept = report.model_dump(mode="json")
    assert not kept.pop("whole_windows") and ConversionReport.model_validate(kept) == report


class Shortcut(nn.Module):
    """A block whose shortcut has a 1×1 convolution, which runs before the 3×3 one or after it."""

    def __init__(self, channels: int, first: bool) -> None:
        super().__init__()
        self.main, self.short = nn.Conv2d(channels, 4, 3, 2, 1), nn.Conv2d(channels, 4, 1, 2)
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        parts = [layer(x) for layer in ((self.short, self.main) if self.first else (self.main, self.short))]
        return (parts[0] + parts[1]).relu()


@torch.no_grad()
@pytest.mark.parametrize("first", [False, True], ids=["after", "before"])
@pytest.mark.parametrize(("stage", "removed"), [(-1, "2"), (-2, "1")])
def test_a_shortcut_is_in_the_stage_of_its_block_wherever_it_runs(stage: int, removed: str, first: bool) -> None:
    torch.manual_seed(0)
    source = nn.Sequential(Shortcut(3, first), Shortcut(4, first), Shortcut(4, first)).double()
    model, report = tcnn.convert(source, stride="dilate", stage=stage, input_size=32)
    assert set(report.strides_removed) == {f"{removed}.main", f"{removed}.short"}
    assert [layer.name for layer in report.layers] == [f"{removed}.main"]
    x = image((32, 32), double=True)
    assert relative_error(source(x), model(x)[..., ::2, ::2]) <= 1e-12


@torch.no_grad()
@pytest.mark.parametrize(("stage", "removed"), [(-1, "2"), (-2, "1")])
def test_a_1x1_convolution_with_a_stride_begins_a_stage(stage: int, removed: str) -> None:
    torch.manual_seed(0)
    narrow, last = nn.Conv2d(4, 4, 1, 2), nn.Conv2d(4, 4, 3, 1, 1)
    source = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), padded(), narrow, nn.ReLU(), last).double()
    model, report = tcnn.convert(source, stride="dilate", stage=stage, input_size=32)
    assert report.strides_removed == (removed,) and report.dilated["4"] == (2, 2)
    x = image((32, 32), double=True)
    assert relative_error(source(x), model(x)[..., ::2, ::2]) <= 1e-12


def test_branches_that_do_not_fit_are_named_with_their_shapes() -> None:
    source = nn.Sequential(Branches(nn.Conv2d(4, 4, 3, 2, 1), nn.Conv2d(4, 4, 2, 2)), nn.Conv2d(4, 4, 3, 1, 1))
    with pytest.raises(UnsupportedLayerError) as caught:
        tcnn.convert(source, stride="dilate", input_size=32)
    told = str(caught.value)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in source.modules())
    assert told.startswith("stride=dilate: 0: Branches does not run on maps without that stride (") and "\n" not in told
    assert "32" in told and "31" in told and told.endswith("; use stride=keep")


def test_whole_windows_repeat_the_last_pixel_and_leave_the_rest_out() -> None:
    x = torch.arange(35.0).view(1, 1, 5, 7)
    made = WholeWindows((2, 3))(x)
    assert made.shape == (1, 1, 5, 8)
    assert made[0, 0, :, 0].tolist() == [0, 7, 14, 21, 21] and made[0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 5, 5]


@torch.no_grad()
def test_is_saved_loaded_and_folded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = Branches(padded(), nn.MaxPool2d(2)).eval()
    model, _ = tcnn.convert(source, stride="dilate", input_size=16)
    assert tcnn.verify(tcnn.without_stride(source, stride="dilate", input_size=16), model).passed
    tcnn.save(model, tmp_path / "m.safetensors")
    loaded = tcnn.load(tmp_path / "m.safetensors", source=source)
    x = image((20, 26))
    assert torch.equal(loaded(x), model(x))
    assert relative_error(model(x), tcnn.fold(model, source=source).model(x)) <= 1e-5


@pytest.mark.slow
def test_is_exported_at_every_size(tmp_path: Path) -> None:
    model, _ = tcnn.convert(Branches(padded(), nn.MaxPool2d(2)).eval(), stride="dilate", input_size=16)
    report = tcnn.export(model, tmp_path / "m.pt2", size=(16, 16))
    assert report.error <= 1e-5 and all(axis.dynamic for axis in report.axes)
