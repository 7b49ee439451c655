"""The numbers behind the pictures: one-hot at the taps after conversion, rows that sum to 1, forward's own output."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tcnn
from tcnn.analysis.attention import attention_at, encode
from tcnn.analysis.measures import measure
from tcnn.analysis.recorded import record_gpsa2d
from tcnn.errors import RequestError
from tcnn.explorer.network import describe_layers
from tcnn.layers import GPSA2d
from tcnn.layers.terms import attention, positions

GEOMETRIES = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": 1, "stride": 2},
    {"kernel_size": (2, 5), "padding": (1, 2)},
    {"kernel_size": 4, "padding": "same"},
    {"kernel_size": 3, "padding": 2, "dilation": 2, "stride": (1, 2)},
    {"kernel_size": (1, 3), "stride": 3},
    {"kernel_size": 7, "padding": 3, "padding_mode": "reflect"},
    {"kernel_size": 3, "padding": "dynamic", "stride": 2},
]
SIZES = [(9, 9), (8, 11)]


def layer(trained: bool, **geometry: object) -> GPSA2d:
    """A layer in float64: just converted, or as training might leave it."""
    torch.manual_seed(0)
    made = GPSA2d(5, 6, dtype=torch.float64, **geometry)  # type: ignore[arg-type]
    if trained:
        with torch.no_grad():
            made.set_temperature(1)
            made.gating_param.normal_()
            made.locality_raw.uniform_(0.05, 2)
            made.attention_centers.add_(torch.randn_like(made.attention_centers))
            made.query.mul_(40)
            made.key.mul_(40)
    return made


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_converted_layer_looks_at_one_tap(geometry: dict[str, object], size: tuple[int, int]) -> None:
    made = layer(trained=False, **geometry)
    images = torch.randn(2, 5, *size, dtype=torch.float64)
    offsets = positions.tap_offsets(made.geometry).long().tolist()
    encoded = encode(nn.Sequential(made), images)
    for y, x in ((0.5, 0.5), (0, 0), (1, 1), (0.31, 0.77)):
        (found,) = encoded.at((y, x))
        row, column = found.query
        for head, (down, right) in enumerate(offsets):
            expected = torch.zeros(found.size, dtype=torch.float64)
            expected[row + down, column + right] = 1
            assert (found.combined[:, head] - expected).abs().max() < 1e-15
            assert found.positional is not None
            assert (found.positional[head] - expected).abs().max() < 1e-15


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_rows_sum_to_one_and_make_the_output(geometry: dict[str, object], size: tuple[int, int]) -> None:
    """The maps that are shown, applied to the values, give what the layer's own forward pass gives."""
    made = layer(trained=True, **geometry)
    images = torch.randn(2, 5, *size, dtype=torch.float64)
    encoded = encode(nn.Sequential(made), images)
    kept = encoded.layers["0"]
    maps = kept.maps(torch.arange(kept.query.shape[2]))
    assert maps.positional is not None
    for weights in maps:
        assert weights is not None
        assert (weights.sum(-1) - 1).abs().max() < 1e-12
    value = positions.pad(images, made.geometry).flatten(2).transpose(1, 2) @ made.value.T
    tokens = attention.project(maps.total @ value[:, None], made.proj, made.bias, made.groups)
    y = tokens.unflatten(1, kept.grid.queries).permute(0, 3, 1, 2)
    assert (y - made(images)).abs().max() < 1e-12
    with torch.no_grad():
        assert torch.equal(encoded.output, made.eval()(images))


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_one_query_is_a_row_of_the_whole_map(geometry: dict[str, object]) -> None:
    made = layer(trained=True, **geometry)
    images = torch.randn(1, 5, 8, 11, dtype=torch.float64)
    whole = made.attention(images)
    kept = encode(nn.Sequential(made), images).layers["0"]
    rows, columns = kept.grid.queries
    for i, j in ((0, 0), (rows - 1, columns - 1), (rows // 2, columns // 3)):
        maps = kept.maps(torch.tensor([i * columns + j]))
        assert torch.allclose(maps.content[0, :, 0], whole.content[0, :, i * columns + j], rtol=0, atol=1e-14)
        assert torch.allclose(maps.total[0, :, 0], whole.total[0, :, i * columns + j], rtol=0, atol=1e-14)


def test_a_place_of_the_image_is_the_nearest_query() -> None:
    """Stride 1 and a padding of 1: share y of 8 pixels is pixel floor(8y), one further in the padded map.

    With a stride it is the query whose pixel's middle is nearest, however the pixel at the place itself lies.
    """
    made = layer(trained=False, kernel_size=3, padding=1)
    encoded = encode(nn.Sequential(made), torch.zeros(1, 5, 8, 12, dtype=torch.float64))
    for y, row in ((0.0, 0), (0.124, 0), (0.126, 1), (0.5, 4), (1.0, 7)):
        (found,) = encoded.at((y, 0.5))
        assert found.query == (row + 1, 6 + 1)
    thin = encode(nn.Sequential(layer(False, kernel_size=3, padding=1, stride=2)), torch.zeros(1, 5, 8, 8).double())
    assert [thin.at((y / 8 + 0.01, 0))[0].query[0] - 1 for y in range(8)] == [0, 0, 2, 2, 4, 4, 6, 6]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [(8, 9), (11, 12), (13, 10)], ids=str)
@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (3, 0), (4, "same"), (5, "dynamic"), (1, 0)])
def test_no_query_is_nearer_than_the_nearest(stride: int, size: tuple[int, int], kernel: int, padding: object) -> None:
    """Against the distances of all queries, at places all over the image, the edges of pixels among them."""
    if padding == "same" and stride > 1:
        padding = (1, 2)
    made = layer(False, kernel_size=kernel, padding=padding, stride=stride)
    grid = record_gpsa2d("0", made, torch.zeros(1, 5, *size, dtype=torch.float64)).grid
    left, _, top, _ = grid.padding
    for axis, before in ((0, top), (1, left)):
        rows = [grid.first[axis] + grid.stride[axis] * i for i in range(grid.queries[axis])]
        for share in (*(n / (4 * size[axis]) for n in range(4 * size[axis] + 1)), *torch.rand(40).tolist()):
            place = before + share * size[axis] - 0.5
            query = grid.place(grid.nearest(share, share))[axis]
            assert abs(query - place) <= min(abs(row - place) for row in rows) + 1e-9, (axis, share)


def test_the_image_part_is_the_map_without_its_padding() -> None:
    made = layer(trained=True, kernel_size=3, padding="dynamic", stride=2)
    images = torch.randn(1, 5, 8, 11, dtype=torch.float64)
    (found,) = attention_at(nn.Sequential(made), images)
    assert found.size == (9, 11 + 2)
    assert found.padding == (1, 1, 0, 1)
    assert found.image_part(found.combined).shape[-2:] == (8, 11)


def test_the_model_is_left_as_it_was(lively: Callable[..., nn.Module]) -> None:
    model, _ = tcnn.convert(lively())
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    encode(model, torch.randn(2, 3, 64, 64)).at((0.5, 0.5))
    assert all(module.training for module in model.modules())
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == hooks
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_half_precision_and_every_layer_in_order(lively: Callable[..., nn.Module]) -> None:
    model, report = tcnn.convert(lively(), stage=2)
    found = attention_at(model.bfloat16(), torch.randn(1, 3, 64, 64), (0.2, 0.9))
    assert [each.name for each in found] == [each.name for each in report.layers]
    assert all(each.combined.dtype == torch.float32 for each in found)
    assert all((each.combined.sum((-1, -2)) - 1).abs().max() < 1e-5 for each in found)


class Twice(nn.Module):
    """One layer on a map, and on the half of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.shared = nn.Conv2d(3, 5, 1), nn.Sequential(layer(trained=True, kernel_size=3, padding=1))
        self.back = nn.Conv2d(6, 5, 1)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.back(self.shared(self.stem(x)))
        return self.shared(nn.functional.avg_pool2d(x, 2))


def test_every_pass_of_a_layer_is_told() -> None:
    model, images = Twice().eval(), torch.randn(2, 3, 12, 8, dtype=torch.float64)
    inputs: list[Tensor] = []
    with model.shared[0].register_forward_pre_hook(lambda _, args: inputs.append(args[0])):
        encoded = encode(model, images)
    assert [found.grid.inner for found in encoded.layers.values()] == [(12, 8), (6, 4)]
    assert list(encoded.layers) == [found.name for found in encoded.at((0.5, 0.5))] == ["shared.0", "shared.0 (2)"]
    found = tcnn.inspect(model, images, shown=1)
    for told, x in zip(found.layers, inputs, strict=True):
        alone = measure(record_gpsa2d("", model.shared[0], x))
        assert [head.entropy.total for head in told.heads] == pytest.approx(alone.entropy.total.tolist(), rel=1e-9)
        assert told.kernel_size == (3, 3)
    names = ["shared.0", "shared.0 (2)"]
    assert [one.name for one in found.layers] == [one.layer for one in found.pictures[0].layers] == names
    assert [one["name"] for one in describe_layers(model, images)] == names


@pytest.mark.parametrize("query", [(-0.1, 0.5), (0.5, 1.01), (float("nan"), 0.5)])
def test_a_place_outside_of_the_image(query: tuple[float, float], lively: Callable[..., nn.Module]) -> None:
    model, _ = tcnn.convert(lively())
    with pytest.raises(RequestError, match=r"query: expected shares .* between 0 and 1, found"):
        encode(model, torch.randn(1, 3, 64, 64)).at(query)


def test_models_without_attention_and_images_that_do_not_fit(lively: Callable[..., nn.Module]) -> None:
    with pytest.raises(RequestError, match=r"^ResNet has no attention to look at: expected GPSA layers"):
        encode(lively(), torch.randn(1, 3, 64, 64))
    model, _ = tcnn.convert(lively())
    with pytest.raises(RequestError, match=r"does not run on an image of 7×64×64 \(.*that it takes"):
        encode(model, torch.randn(1, 7, 64, 64))
    images = torch.randn(3, 3, 64, 64)
    images[1, 0, 0, 0] = torch.inf
    with pytest.raises(RequestError, match="finite numbers, found NaN or infinity in 1 of 3, first in number 2"):
        encode(model, images)
