"""`stride="dilate"` is refused wherever the pixels of the old map would not be what they were, whatever the cause."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import image, meta_model, relative_error, seeded_model
from sampled import sampled
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import tcnn
from tcnn.conversion.strides.noise import Grown, between
from tcnn.errors import UnsupportedLayerError

SIZE = (36, 36)


class Head(nn.Module):
    """A stage with a stride, and a function and a convolution behind it."""

    def __init__(self, function: Callable[[Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.body, self.layers = nn.Conv2d(16, 16, 3, padding=1), nn.Sequential(*layers)
        self.function = function
        self.last = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(F.relu(self.down(F.relu(self.stem(x)))))
        return self.last(self.layers(self.function(x)))  # type: ignore[no-any-return]


def same(x: Tensor) -> Tensor:
    return x


def excited(x: Tensor) -> Tensor:
    """Squeeze-and-excitation in functions, with the largest value in it, too."""
    return x * x.mean((2, 3), keepdim=True).sigmoid() + x.amax((2, 3), keepdim=True)


def attended(x: Tensor) -> Tensor:
    """Attention of all pixels to all, whose number grows."""
    tokens = x.flatten(2).transpose(1, 2)[:, None]
    return F.scaled_dot_product_attention(tokens, tokens, tokens)[:, 0].transpose(1, 2).view_as(x)


def nothing_to_scale(x: Tensor) -> Tensor:
    """A branch that does not count yet, as one whose scale begins at 0, is a fault as well."""
    return x + 0.05 * F.avg_pool2d(x, 3, 1, 1)


class Patches(nn.Module):
    """Pixels at the same place of each 2×2 patch see one another, in attention or by their statistics (MobileViT)."""

    def __init__(self, layer: nn.Module, attend: bool) -> None:
        super().__init__()
        self.layer, self.attend = layer, attend

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.shape[2] // 2, x.shape[3] // 2
        cut = x.unflatten(3, (columns, 2)).unflatten(2, (rows, 2)).permute(0, 1, 3, 5, 2, 4)
        places = cut.reshape(*x.shape[:2], 4, -1)
        if self.attend:
            tokens = places[0].permute(1, 2, 0)
            places = self.layer(tokens + F.scaled_dot_product_attention(tokens, tokens, tokens)).permute(2, 0, 1)[None]
        else:
            places = self.layer(places)
        return places.reshape(cut.shape).permute(0, 1, 4, 2, 5, 3).reshape(x.shape)


class Attention(nn.Module):
    """Attention between all pixels, with layers on its queries and on its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.heads, self.end = nn.LayerNorm(8), nn.Conv2d(2, 2, 1), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).unflatten(1, (2, 8)).mT
        weights = self.heads(self.norm(tokens) @ tokens.mT).softmax(-1)
        return self.end(weights @ tokens).mT.reshape(x.shape)


class LinearAttention(nn.Module):
    """Attention whose weights are products of positive features, divided by their sum (EfficientViT)."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).unflatten(1, (2, 8)).mT
        keys = self.kernel(tokens)
        out = keys @ (keys.mT @ F.pad(tokens, (0, 1), value=1))
        return (out[..., :-1] / (out[..., -1:] + 1e-2)).mT.reshape(x.shape)


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], list[nn.Module], str]] = {
    "nearest": (same, [nn.Upsample(scale_factor=2)], "layers.0: Upsample mixes"),
    "bilinear": (same, [nn.Upsample(scale_factor=2, mode="bilinear")], "layers.0: Upsample mixes"),
    "shuffled": (same, [nn.Conv2d(16, 64, 1), nn.PixelShuffle(2)], "layers.1: PixelShuffle mixes"),
    "transposed": (same, [nn.ConvTranspose2d(16, 16, 2, 2)], "layers.0: no stride-1 form of ConvTranspose2d "),
    "a mean": (lambda x: F.avg_pool2d(x, 3, 1, 1), [], "a function before layers, such as .*, mixes"),
    "a little of it": (nothing_to_scale, [], "a function before layers, such as .*, mixes"),
    "resized": (lambda x: F.interpolate(x, scale_factor=2), [], "a function before layers, "),
    "moved": (lambda x: x.roll(1, 2), [], "a function before layers, "),
    "statistics of patches": (same, [Patches(nn.GroupNorm(1, 16), attend=False)], "before layers.0.layer, .* patches,"),
    "attention of patches": (same, [Patches(nn.Linear(16, 16), attend=True), nn.BatchNorm2d(16)], "before layers.1, "),
    "normalised": (
        same,
        [Patches(nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), attend=True), nn.Conv2d(16, 16, 1)],
        "a function before layers.1, ",
    ),
    "behind attention": (same, [Attention(), nn.Upsample(scale_factor=2)], "layers.1: Upsample mixes"),
    "not padded": (lambda x: F.max_pool2d(x, 3, 1), [], "a function before layers, "),
    "a mean in a layer's place": (same, [nn.Identity(), nn.LPPool2d(2, 1, 1), nn.Upsample(scale_factor=2)], "Upsample"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_mixes_other_pixels_into_the_old_ones_is_refused_in_one_line(case: str) -> None:
    function, layers, reason = REFUSED[case]
    model = Head(function, *layers)
    with pytest.raises(UnsupportedLayerError, match=f"^stride=dilate: [^\n]*{reason}[^\n]*; use stride=keep[^\n]*$"):
        tcnn.convert(model, stride="dilate", input_size=SIZE)
    with pytest.raises(UnsupportedLayerError, match=reason):
        tcnn.without_stride(model.half().to("meta"), stride="dilate", input_size=SIZE)


def test_at_the_end_of_a_forward_pass_too() -> None:
    class Decoded(Head):
        def forward(self, x: Tensor) -> Tensor:
            return F.interpolate(super().forward(x), scale_factor=2)

    with pytest.raises(UnsupportedLayerError, match=r"^stride=dilate: a function at the end, such as "):
        tcnn.convert(Decoded(same), stride="dilate", input_size=SIZE)


@pytest.mark.parametrize(
    "context",
    [
        lambda: torch.device("meta"), lambda: torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode,
        lambda: FakeTensorMode(allow_non_fake_inputs=True),
    ],
    ids=["meta", "autocast", "inference", "fake"],
)  # fmt: skip
def test_what_is_set_around_the_conversion_changes_nothing(context: Callable[[], Any]) -> None:
    with context():
        fine, mixed = Head(excited), Head(lambda x: F.avg_pool2d(x, 3, 1, 1))
        assert tcnn.without_stride(fine, stride="dilate", input_size=SIZE)
        with pytest.raises(UnsupportedLayerError, match="a function before layers"):
            tcnn.without_stride(mixed, stride="dilate", input_size=SIZE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_nor_does_the_default_dtype_or_coarse_arithmetic(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    try:
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision("medium")
        assert tcnn.without_stride(Head(excited), stride="dilate", input_size=SIZE)
        with pytest.raises(UnsupportedLayerError, match="a function before layers"):
            tcnn.without_stride(Head(lambda x: F.avg_pool2d(x, 3, 1, 1)), stride="dilate", input_size=SIZE)
    finally:
        torch.set_default_dtype(before[0])
        torch.set_float32_matmul_precision(before[1])


ALLOWED: dict[str, tuple[Callable[[Tensor], Tensor], list[nn.Module]]] = {
    "nothing": (same, []),
    "excitation": (excited, []),
    "attention": (attended, []),
    "attention with layers in it": (same, [Attention()]),
    "linear attention": (same, [LinearAttention()]),
    "group normalisation": (same, [nn.GroupNorm(4, 16), nn.InstanceNorm2d(16)]),
    "a second stride": (same, [nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.Conv2d(16, 16, 3, padding=1)]),
    "a pool": (same, [nn.MaxPool2d(2, 2), nn.Conv2d(16, 16, 1)]),
    "other channels": (lambda x: x.flip(1) * 2, [nn.ReLU(inplace=True), nn.Dropout(0.5)]),
    "a shortcut": (lambda x: torch.cat([x[:, :8], x[:, :8].sqrt().nan_to_num()], 1), []),
}


@pytest.mark.parametrize("case", ALLOWED)
@pytest.mark.parametrize("size", [(32, 32), (37, 43)], ids=str)
def test_what_sees_each_pixel_alone_or_the_whole_map_is_not(case: str, size: tuple[int, int]) -> None:
    function, layers = ALLOWED[case]
    report = tcnn.convert(Head(function, *layers), stride="dilate", input_size=size).report
    assert report.strides_removed and report.dilated["last"] == (2, 2)


class Decoder(nn.Module):
    """A U-Net's: the stage's map is brought to the size of an earlier one, which has not grown."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.mode, self.last = mode, nn.Conv2d(24, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.stem(x))
        size = skip.shape[2:]
        deep = F.relu(self.down(skip))
        deep = F.adaptive_avg_pool2d(deep, size) if self.mode == "mean" else F.interpolate(deep, size, mode=self.mode)
        return self.last(torch.cat([skip, deep], 1))


@pytest.mark.parametrize("size", [(32, 32), (37, 43)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "mean"])
def test_what_mixes_them_into_a_map_of_the_old_size_is_refused(mode: str, size: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedLayerError, match=r"^stride=dilate: a function before last, such as F.interpolate, "):
        tcnn.without_stride(Decoder(mode), stride="dilate", stage=-1, input_size=size)


def strided(*layers: nn.Module) -> nn.Module:
    """Three strides, each before a convolution, and a head."""
    torch.manual_seed(0)
    stages = [(nn.Conv2d(c, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1)) for c in (3, 8, 8)]
    return nn.Sequential(*(layer for stage in stages for layer in stage), *layers).double()


@pytest.mark.parametrize("size", [(64, 96), (72, 40)], ids=str)
@pytest.mark.parametrize("stage", [1, 2])
def test_kernels_behind_the_stage_are_dilated_as_well(stage: int, size: tuple[int, int]) -> None:
    """Those of later stages, which keep their strides, and of a head."""
    source = strided(nn.Conv2d(8, 5, (1, 3), 1, (0, 1)), nn.MaxPool2d(2, 1))
    converted, report = tcnn.convert(source, stage=stage, stride="dilate", input_size=size)
    assert report.dilated.keys() >= {"8", "9", "10"}
    x = image(size, double=True)
    with torch.no_grad():
        old, new = source(x), converted(x)
    assert relative_error(old, new[..., ::2, ::2][..., : old.shape[-2], : old.shape[-1]]) <= 1e-12


def test_a_pool_of_a_later_stage_that_cannot_be_dilated_is_refused() -> None:
    said = r"^stride=dilate: layer4\.0\.downsample\.0: AvgPool2d cannot be dilated; use stride=keep or remove$"
    with pytest.raises(UnsupportedLayerError, match=said):
        tcnn.convert(seeded_model("test_resnet"), stage=3, stride="dilate")


def test_a_model_that_does_not_run_on_noise_is_judged_by_its_shapes() -> None:
    """One that needs whole numbers, or another precision, cannot be looked at in numbers."""

    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not x.is_meta and x.dtype != torch.float64:
                raise RuntimeError("expected float64")
            return x

    fine, growing = strided(Picky()), strided(Picky(), nn.Upsample(scale_factor=2), nn.Conv2d(8, 8, 3, 1, 1))
    assert tcnn.convert(fine, stride="dilate", input_size=(64, 64)).report.strides_removed
    with pytest.raises(UnsupportedLayerError, match=r"^stride=dilate: 10: Upsample mixes"):
        tcnn.convert(growing, stride="dilate", input_size=(64, 64))


@pytest.mark.parametrize("size", [(8, 8), (7, 8), (7, 7)], ids=str)
def test_means_and_maxima_of_noise_are_those_of_the_old_map(size: tuple[int, int]) -> None:
    """Where every old pixel has all its neighbours; where it has not, the order of those between does not matter."""
    old, how = torch.randn(1, 3, 4, 4, dtype=torch.float64), Grown((2, 3), (2, 2))
    one, other = (between(old, torch.Size((1, 3, *size)), how, order) for order in (1, 2))
    assert torch.equal(one[..., ::2, ::2], old) and torch.equal(other[..., ::2, ::2], old)
    assert not torch.equal(one, other)
    for statistic in (torch.mean, torch.var, torch.amax):
        found = [statistic(each, (2, 3)) for each in (one, other, old)]  # type: ignore[operator]
        assert torch.allclose(found[0], found[1])
        assert torch.allclose(found[0], found[2]) or size != (8, 8) or statistic is torch.var
    turned = between(old.movedim(1, 3), torch.Size((1, *size, 3)), Grown((1, 2), (2, 2)), 1)
    assert torch.equal(turned.movedim(3, 1), one)


FAMILIES = [
    "resnet18", "resnet26d", "resnetv2_50", "resnetv2_50x1_bit", "seresnet50", "ecaresnet26t", "skresnet18",
    "resnest26d", "regnetx_004", "regnety_004", "convnext_atto", "convnextv2_atto", "repvgg_a0", "densenet121",
    "efficientnet_b0", "mobilenetv3_large_100", "ghostnet_100", "ese_vovnet19b_dw", "nf_resnet50", "cspdarknet53",
    "res2net50_26w_4s", "rexnet_100", "gcresnet33ts", "edgenext_xx_small", "fastvit_t8", "hgnet_tiny", "vgg11_bn",
]  # fmt: skip


@pytest.mark.parametrize("name", sampled(FAMILIES, ["regnety_004"]))
def test_families_of_timm_that_dilate_well_are_not_refused(name: str) -> None:
    source = meta_model(name)
    assert tcnn.without_stride(source, stride="dilate") is not source


@pytest.mark.parametrize(
    ("name", "reason"),
    sampled(
        [("ghostnetv2_100", "a function before .*short_conv"), ("tiny_vit_5m_224", "a function before .*drop_path1")],
        [("tiny_vit_5m_224", "a function before .*drop_path1")],
    ),
)
def test_families_with_a_grid_of_their_own_are_refused(name: str, reason: str) -> None:
    """A mean over 2×2 pixels before a gate, windows of attention: neither would be of the same pixels."""
    with pytest.raises(UnsupportedLayerError, match=f"^stride=dilate: {reason}"):
        tcnn.convert(meta_model(name), stride="dilate")
