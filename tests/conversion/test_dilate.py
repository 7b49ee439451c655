"""`stride="dilate"`: on the pixels of the old map the stage computes what it did, to the last bit or so."""

from pathlib import Path

import pytest
import timm
import torch
from nets import image, relative_error, seeded_model, with_random_statistics
from sampled import sampled
from timm.layers import BlurPool2d
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import tcnn
from tcnn.errors import CheckpointError, RequestError, UnsupportedLayerError

EXACT = [
    "test_resnet",
    "test_resnet blurred",
    "resnet18",
    "resnet26d",
    "resnetblur18",
    "resnetv2_50",
    "convnext_atto",
    "repvgg_a0",
]
"""Models whose last stage is made of layers that look at pixels around their own, never at the whole map."""
SIZES = [(64, 96), (96, 64), (80, 112)]
"""The stage then sees 4×6, 6×4 and 5×7 pixels: an odd map keeps every s-th pixel as well."""


def last_map(model: nn.Module, x: Tensor) -> Tensor:
    """What the backbone ends in."""
    with torch.no_grad():
        return model.forward_features(x)  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize(
    ("name", "size"),
    sampled(
        [(name, size) for name in EXACT for size in SIZES],
        [("test_resnet", SIZES[1]), ("test_resnet blurred", SIZES[2])],
    ),
)
def test_the_pixels_of_the_old_map_are_what_they_were(name: str, size: tuple[int, int]) -> None:
    name, blurred = name.removesuffix(" blurred"), name.endswith(" blurred")
    source = seeded_model(name, **({"aa_layer": BlurPool2d} if blurred else {}))
    source = with_random_statistics(source).double().eval()
    converted, report = tcnn.convert(source, stride="dilate")
    x = image(size, double=True)
    old, new = last_map(source, x), last_map(converted, x)
    assert report.strides_removed
    assert bool(report.dilated) == (name != "repvgg_a0"), "its last stage is one block"
    assert new.shape[-1] > old.shape[-1]
    assert relative_error(old, new[..., ::2, ::2][..., : old.shape[-2], : old.shape[-1]]) <= 1e-10


@pytest.mark.slow
def test_between_them_the_stage_sees_its_map_moved_by_a_pixel() -> None:
    source = with_random_statistics(seeded_model("resnet18")).double().eval()
    stage, dilated = source.layer4, tcnn.without_stride(source, stride="dilate").layer4
    x = torch.randn(1, 256, 40, 40, dtype=torch.float64)
    inner = slice(5, 15)  # what the border cannot reach
    with torch.no_grad():
        old, new = stage(x[..., 1:, 1:]), dilated(x)
    assert relative_error(old[..., inner, inner], new[..., 1::2, 1::2][..., inner, inner]) <= 1e-12


@pytest.mark.slow
def test_equals_what_timm_builds_with_an_output_stride() -> None:
    source = with_random_statistics(seeded_model("resnet18")).double().eval()
    theirs = timm.create_model("resnet18", output_stride=16).double().eval()
    theirs.load_state_dict(source.state_dict())
    ours = tcnn.without_stride(source, stride="dilate")
    x = image((64, 96), double=True)
    assert relative_error(last_map(theirs, x), last_map(ours, x)) <= 1e-12


@pytest.mark.parametrize(
    "name", sampled(["test_resnet", "resnet10t", "resnet18", "convnext_atto", "repvgg_a0"], ["test_resnet"])
)
def test_is_verified_saved_loaded_and_folded(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("dilate") / "t.safetensors"
    source = with_random_statistics(seeded_model(name)).eval()
    reference = tcnn.without_stride(source, stride="dilate")
    converted, report = tcnn.convert(source, stride="dilate", content_heads=2)
    assert tcnn.verify(reference, converted, input_size=(64, 96), batch_size=1).passed
    assert not tcnn.verify(source, converted, input_size=(64, 96), batch_size=1, float64=False).passed
    assert all(layer.stride == (1, 1) for layer in report.layers)
    tcnn.save(converted, path)
    loaded = tcnn.load(path)
    x = image((64, 96))
    with torch.no_grad():
        assert torch.equal(loaded(x), converted.eval()(x))
        folded = tcnn.fold(loaded, randomise=True).model
        assert relative_error(reference(x), folded(x)) <= 1e-5


@pytest.mark.parametrize("way", ["dilate", "remove"])
@torch.no_grad()
def test_a_source_without_its_stride_is_no_further_dilated(way: str, tmp_path: Path) -> None:
    """The stage of what was loaded was dilated twice: other outputs, and no word of it."""
    source = with_random_statistics(seeded_model("test_resnet")).eval()
    folded = tcnn.fold(tcnn.convert(source, stride=way).model).model.eval()
    file, x = tcnn.save(folded, tmp_path / "a.safetensors"), image((64, 64))
    for given in (source, tcnn.without_stride(source, stride=way), folded):
        assert torch.equal(tcnn.load(file, source=given)(x), folded(x))
    with pytest.raises(CheckpointError, match=f"stride={way}: expected a layer layer4.* in ByobNet, found none"):
        tcnn.load(file, source=timm.create_model("test_byobnet"))


def test_a_source_with_its_stride_is_said_to_have_it() -> None:
    """Where the output is a map, it has another shape."""
    source = nn.Sequential(*(nn.Conv2d(c, 4, 3, 2, 1) for c in (3, 4)), nn.Conv2d(4, 4, 3, 1, 1))
    model = tcnn.convert(source, stride="dilate", input_size=(32, 32)).model
    failure = tcnn.verify(source, model, input_size=(32, 32), float64=False).failure() or ""
    assert "shapes differ: the outputs, 4×8×8 in the source and 4×16×16 in the converted model" in failure
    assert 'has its stride (1): compare it with tcnn.without_stride(source, stride="dilate")' in failure
    with pytest.raises(RequestError, match=r"^explain: expected outputs of one shape, found 4×8×8 and 4×16×16; "):
        tcnn.explain(source, model, image((32, 32)))


def test_a_configuration_that_dilates_gives_the_dilated_reference() -> None:
    source = with_random_statistics(seeded_model("test_resnet")).double().eval()
    config = tcnn.ConversionConfig(stride="dilate")
    by_config = tcnn.without_stride(source, config)
    x = image((64, 96), double=True)
    with torch.no_grad():
        assert torch.equal(by_config(x), tcnn.without_stride(source, stride="dilate")(x))
        assert relative_error(by_config(x), tcnn.without_stride(source)(x)) > 0.01


POOLS = {
    "VGG's": nn.MaxPool2d(2, 2),
    "SqueezeNet's": nn.MaxPool2d(3, 2, ceil_mode=True),
    "ResNet's": nn.MaxPool2d(3, 2, 1),
    "a mean": nn.AvgPool2d(2, 2),
    "ResNet-D's": nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False),
    "of threes": nn.MaxPool2d(3, 3),
}


@pytest.mark.parametrize("size", [(16, 15), (17, 18), (14, 13)], ids=str)
@pytest.mark.parametrize("pool", POOLS)
def test_a_pool_before_the_convolutions(pool: str, size: tuple[int, int]) -> None:
    """It carries the stride; the end of a map that it does not divide, or divides in excess, is what it was, too."""
    torch.manual_seed(0)
    own = POOLS[pool]
    source = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), own, nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 1, 1)).double()
    converted, report = tcnn.convert(source, stride="dilate", input_size=size)
    x = image(size, double=True)
    step = own.stride if isinstance(own.stride, int) else own.stride[0]
    with torch.no_grad():
        old, new = source(x), converted(x)
    assert report.strides_removed == ("1",) and set(report.dilated.values()) == {(step, step)}
    assert new[..., ::step, ::step].shape == old.shape, "no pixel beyond the old map's end"
    assert relative_error(old, new[..., ::step, ::step]) <= 1e-12


POOL = nn.MaxPool2d(2)


class Shared(nn.Module):
    """One convolution runs on the maps before and behind a stride, as in a pyramid."""

    def __init__(self, *down: nn.Module) -> None:
        super().__init__()
        self.stem, self.shared = nn.Conv2d(3, 8, 3, 4, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.down = nn.ModuleList(down)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        maps = [self.stem(x)]
        for layer in self.down:
            maps.append(layer(maps[-1]))
        return tuple(self.shared(each) for each in maps)


def net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 8, 3, 2, 1), *layers, nn.Conv2d(8, 8, 3, 1, 1))


class Resized(nn.Sequential):
    """Resizes its image itself."""

    def __init__(self) -> None:
        super().__init__(*net(nn.Conv2d(8, 8, 3, 2, 1)))  # type: ignore[misc]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.interpolate(x, (32, 32)))


class Pooled(nn.Module):
    """Its strides are in functions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(nn.functional.max_pool2d(self.a(x), 2))
        return y


REFUSED = {
    "SAME padding": (
        lambda: seeded_model("test_efficientnet", pad_type="same"),
        "TensorFlow's SAME padding would begin elsewhere",
    ),
    "mean": (lambda: net(nn.AvgPool2d(3, 1, 1)), "2: AvgPool2d cannot be dilated"),
    "long mean": (lambda: net(nn.AvgPool2d(3, 2, ceil_mode=True)), "2: no stride-1 form of AvgPool2d is known"),
    "pool with gaps": (
        lambda: net(nn.MaxPool2d(2, 2, dilation=2, ceil_mode=True)),
        "2: no stride-1 form of MaxPool2d is known",
    ),
    "padded pool": (lambda: net(nn.MaxPool2d(3, 1, 1)), "2: a padded pool cannot be dilated"),
    "runs at two scales": (
        lambda: Shared(nn.Conv2d(8, 8, 3, 2, 1)),
        "shared: runs more than once, on maps that do not all grow alike",
    ),
    "its stride at two scales": (
        lambda: Shared(*[nn.Conv2d(8, 8, 3, 2, 1)] * 2),
        "runs more than once, on maps that do not all grow alike",
    ),
    "one pool for every stride": (
        lambda: nn.Sequential(*(layer for c in (3, 8, 8) for layer in (nn.Conv2d(c, 8, 3, 1, 1), POOL))),
        "1: runs more than once, on maps that do not all grow alike",
    ),
    "reflection": (
        lambda: net(nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")),
        "2: padding_mode 'reflect' would repeat other pixels",
    ),
    "a mean of powers": (lambda: net(nn.LPPool2d(2, 2)), "2: no stride-1 form of LPPool2d is known"),
    "a fixed size": (
        lambda: net(nn.AdaptiveAvgPool2d(8), nn.Conv2d(8, 8, 3, 2, 1)),
        "the map at 3 does not grow with the image",
    ),
    "a resized image": (Resized, "the map at [a-z0-9.]* does not grow with the image"),
    "a stride in a function": (Pooled, "no layer of the stage has a stride to remove"),
    "uneven padding": (lambda: net(nn.Conv2d(8, 8, 2, padding="same")), r"2: padding \(.*\) cannot be spread evenly"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_dilated_is_refused_in_one_line(case: str) -> None:
    build, reason = REFUSED[case]
    instead = "keep or remove" if case == "SAME padding" else "keep"  # of these, the only class that it is known for
    with pytest.raises(UnsupportedLayerError, match=f"^stride=dilate: [^\n]*{reason}[^\n]*; use stride={instead}$"):
        tcnn.convert(build(), stride="dilate", input_size=(32, 32))


def test_a_model_that_reads_values_is_dilated_on_its_own_device() -> None:
    class Reading(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.abs().sum().item() >= 0 else -x

    source = net(Reading())
    model, report = tcnn.convert(source, stride="dilate", input_size=(32, 32))
    assert report.strides_removed and not any(value.is_meta for value in model.state_dict().values())


def test_a_stride_of_rows_alone_dilates_rows_alone() -> None:
    source = net(nn.Conv2d(8, 8, 3, stride=(2, 1), padding=1), nn.MaxPool2d(3, 1)).double()
    converted, report = tcnn.convert(source, target="4", stride="dilate", input_size=(64, 32))
    x = image((64, 32), double=True)
    with torch.no_grad():
        old, new = source(x), converted(x)
    assert report.dilated == {"3": (2, 1), "4": (2, 1)}
    assert relative_error(old, new[..., ::2, :][..., : old.shape[-2], :]) <= 1e-12


def test_a_pool_without_padding_is_dilated() -> None:
    source = net(nn.MaxPool2d(3, 1)).double()
    converted, report = tcnn.convert(source, target="3", stride="dilate", input_size=(32, 32))
    x = image((32, 32), double=True)
    with torch.no_grad():
        old, new = source(x), converted(x)
    assert report.dilated == {"2": (2, 2), "3": (2, 2)}
    assert relative_error(old, new[..., ::2, ::2][..., : old.shape[-2], : old.shape[-1]]) <= 1e-12


def test_a_parametrised_convolution_in_the_stage_is_refused_in_one_line() -> None:
    """It stays as it is where strides are removed; to be dilated it would have to be another."""
    source = seeded_model("test_resnet")
    source.layer4[0].conv2 = weight_norm(source.layer4[0].conv2)
    with pytest.raises(UnsupportedLayerError, match=r"^stride=dilate: layer4\.0\.conv2: it is parametrised: bake"):
        tcnn.convert(source, stride="dilate")
    assert [layer.name for layer in tcnn.convert(source, stride="remove").report.layers] == ["layer4.0.conv1"]
