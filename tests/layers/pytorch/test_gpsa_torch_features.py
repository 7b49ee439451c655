"""What users of PyTorch expect of any layer: sizes, memory formats, autocast, copies, the meta device, gradients for
every parameter, no hidden state; and one clear line when the input is wrong."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from operations import Operations
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tcnn.errors import UnsupportedLayerError
from tcnn.layers import GPSA2d

RelativeError = Callable[[Tensor, Tensor], float]


REORDERED = 1e-6
"""Relative L2 in float32 where only the order of operations may differ. Measured: 0."""
HALF_PRECISION = 2e-2
"""Relative L2 of bfloat16 (8 bits of mantissa) against float32. Measured: 3.3e-3."""

SIZES = ((2, 4, 7, 9), (1, 4, 12, 5), (3, 4, 8, 8))


def make_layer(temperature: float = 1.0, **options: object) -> GPSA2d:
    torch.manual_seed(0)
    return GPSA2d(4, 6, **{"kernel_size": 3, "padding": 1, "temperature": temperature, **options})


@torch.no_grad()
def test_one_layer_takes_every_size_and_remembers_none() -> None:
    layer = make_layer(stride=2)
    tensors = dict(layer.state_dict(keep_vars=True))
    values, versions = copy.deepcopy(layer.state_dict()), {name: t._version for name, t in tensors.items()}
    attributes = dict(vars(layer))

    inputs = [torch.randn(size) for size in SIZES]
    first = [layer(x) for x in inputs]
    again = [layer(x) for x in reversed(inputs)][::-1]
    for x, y, repeated in zip(inputs, first, again, strict=True):
        assert y.shape == (x.shape[0], 6, (x.shape[2] + 1) // 2, (x.shape[3] + 1) // 2)
        assert torch.equal(y, repeated)

    assert vars(layer) == attributes
    assert set(layer.state_dict()) == set(values)
    for name, tensor in layer.state_dict(keep_vars=True).items():
        assert tensor is tensors[name]
        assert tensor._version == versions[name], f"forward wrote to {name}"
        assert torch.equal(tensor, values[name])


@torch.no_grad()
def test_images_of_a_batch_do_not_meet(relative_error: RelativeError) -> None:
    layer, x = make_layer(), torch.randn(3, 4, 6, 7)
    alone = torch.cat([layer(image[None]) for image in x])
    assert relative_error(layer(x), alone) < REORDERED


@torch.no_grad()
def test_unbatched_input() -> None:
    layer, x = make_layer(), torch.randn(4, 6, 7)
    assert layer(x).shape == (6, 6, 7)
    assert torch.equal(layer(x), layer(x[None])[0])


@torch.no_grad()
def test_memory_format_is_kept(relative_error: RelativeError) -> None:
    layer, x = make_layer(stride=2), torch.randn(2, 4, 7, 9)
    plain, last = layer(x), layer(x.to(memory_format=torch.channels_last))
    assert plain.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert not last.is_contiguous()
    assert relative_error(last, plain) < REORDERED
    strided = torch.randn(2, 4, 9, 7).transpose(2, 3)  # neither format
    assert relative_error(layer(strided), layer(strided.contiguous())) < REORDERED


@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "bfloat16 weights"])
@torch.no_grad()
def test_softmaxes_stay_in_float32(autocast: bool, relative_error: RelativeError, operations: Operations) -> None:
    layer, x = make_layer(), torch.randn(2, 4, 7, 9)
    expected = layer(x)
    if not autocast:
        layer, x = layer.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        with operations:
            y = layer(x)
        maps = layer.attention(x)
    assert y.dtype == torch.bfloat16
    assert relative_error(y, expected) < HALF_PRECISION
    softmaxes = [dtype for name, _, dtype in operations.outputs if name == "_softmax"]
    assert softmaxes == [torch.float32] * 3  # content, rows, columns
    assert {tensor.dtype for tensor in (*maps, maps.total)} == {torch.float32}
    torch.testing.assert_close(maps.total.sum(-1), torch.ones(2, 9, 63))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@torch.no_grad()
def test_positions_are_counted_in_float32(dtype: torch.dtype) -> None:
    """bfloat16 cannot count beyond 256, nor float16 beyond 2048: neighbours would stand on the same pixel."""
    layer = make_layer(kernel_size=(1, 3), padding=0, stride=(1, 7)).to(dtype)
    x = torch.zeros(1, 4, 1, 2100, dtype=dtype)
    in_half, in_single = layer.attention(x), copy.deepcopy(layer).float().attention(x.float())
    assert torch.equal(in_half.positional, in_single.positional)
    assert torch.equal(in_half.gate, in_single.gate)


@pytest.mark.parametrize("content", ["global", "window:3", "pooled:2"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("temperature", [1.0, 1 / 46], ids=["soft", "hard"])
def test_autocast_gives_the_dtype_that_it_gives_a_convolution(temperature: float, groups: int, content: str) -> None:
    layer, x = make_layer(temperature, groups=groups, content=content), torch.randn(2, 4, 7, 9)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == layer.eval()(x).dtype == nn.Conv2d(4, 6, 3, groups=groups)(x).dtype == torch.bfloat16


def test_autocast_trains() -> None:
    layer, x = make_layer(), torch.randn(2, 4, 7, 9)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x).float().square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("temperature", [1.0, 1 / 46], ids=["attention", "content heads beside a convolution"])
def test_backward_may_be_called_under_autocast(temperature: float, relative_error: RelativeError) -> None:
    layer, x = make_layer(temperature, content_heads=1), torch.randn(2, 4, 7, 9)
    gradients = []
    for autocast in (False, True):
        loss = layer(x).square().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            gradients.append(torch.autograd.grad(loss, (layer.proj, layer.key)))
    for found, expected in zip(gradients[1], gradients[0], strict=True):
        assert relative_error(found, expected) < HALF_PRECISION


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2},
        {"kernel_size": 1, "padding": 0},
        {"padding": "dynamic", "stride": 2},
        {"dtype": torch.float64},
    ],
    ids=str,
)
def test_every_parameter_learns_at_temperature_one(options: dict[str, object]) -> None:
    """DistributedDataParallel waits for ever for a parameter without a gradient."""
    layer = make_layer(**options)
    x = torch.randn(2, 4, 6, 7, dtype=layer.proj.dtype)
    layer(x).square().sum().backward()
    names = {"query", "key", "value", "proj", "bias", "gating_param", "locality_raw", "attention_centers"}
    assert {name for name, _ in layer.named_parameters()} == names
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-12, f"{name} does not learn"


@torch.no_grad()
def test_copies_and_state_dict_round_trip(tmp_path: Path) -> None:
    layer, x = make_layer(temperature=0.3, groups=2, stride=2), torch.randn(2, 4, 7, 9)
    expected = layer(x)
    twin = copy.deepcopy(layer)
    twin.proj.zero_()
    assert torch.equal(layer(x), expected)

    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    torch.manual_seed(99)
    fresh = GPSA2d(4, 6, 3, padding=1, groups=2, stride=2)
    assert not torch.equal(fresh(x), expected)
    fresh.load_state_dict(load_file(tmp_path / "layer.safetensors"), strict=True)
    assert torch.equal(fresh(x), expected)
    assert fresh.position_temperature == layer.position_temperature

    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    twin.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True), strict=True)
    assert torch.equal(twin(x), expected)


@torch.no_grad()
def test_a_state_dict_in_which_gates_and_positions_share_a_temperature() -> None:
    """As until version 0.2; one of the new names beside it counts more."""
    layer, x = make_layer(temperature=0.3), torch.randn(2, 4, 7, 9)
    state = layer.state_dict()
    old = {name: tensor for name, tensor in state.items() if not name.endswith("_temperature")}
    shared = state["gate_temperature"].clone()
    fresh = make_layer()
    fresh.load_state_dict({**old, "temperature": shared}, strict=True)
    assert torch.equal(fresh(x), layer(x))
    fresh.set_temperatures(0.5, 0.7)
    assert (fresh.gate_temperature, fresh.position_temperature, shared) == (0.5, 0.7, state["gate_temperature"])
    fresh.load_state_dict({**old, "temperature": shared, "gate_temperature": shared * 2}, strict=True)
    assert (fresh.gate_temperature, fresh.position_temperature) == (shared * 2, shared)


def in_device_context() -> GPSA2d:
    with torch.device("meta"):
        return GPSA2d(4, 6, 3, padding=1, groups=2)


META: dict[str, Callable[[], GPSA2d]] = {
    "argument": lambda: GPSA2d(4, 6, 3, padding=1, groups=2, device="meta"),
    "context": in_device_context,
    "conversion": lambda: GPSA2d.from_conv2d(nn.Conv2d(4, 6, 3, padding=1, groups=2, device="meta")),
}


@pytest.mark.parametrize("way", META)
@torch.no_grad()
def test_meta_device(way: str) -> None:
    random_state = torch.get_rng_state()
    layer = META[way]()
    assert torch.equal(torch.get_rng_state(), random_state), "nothing is drawn for tensors without values"
    assert {t.device.type for t in layer.state_dict().values()} == {"meta"}
    assert layer(torch.empty(2, 4, 7, 9, device="meta")).shape == (2, 6, 7, 9)

    source, x = GPSA2d(4, 6, 3, padding=1, groups=2, temperature=0.5), torch.randn(2, 4, 7, 9)
    materialised = layer.to_empty(device="cpu")
    materialised.load_state_dict(source.state_dict(), strict=True)
    assert torch.equal(materialised(x), source(x))
    materialised.reset_parameters(temperature=1.0)
    assert all(t.isfinite().all() for t in materialised.state_dict().values())
    assert materialised.position_temperature == 1
    assert torch.equal(materialised.attention_centers, source.attention_centers)


@torch.no_grad()
def test_seed_decides_query_and_key() -> None:
    conv = nn.Conv2d(4, 6, 3)

    def drawn(seed: int, conv: nn.Conv2d = conv) -> GPSA2d:
        torch.seed()  # whatever the global generator holds must not matter, nor be changed
        before = torch.get_rng_state()
        layer = GPSA2d.from_conv2d(conv, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(torch.get_rng_state(), before)
        return layer

    one, same, other = drawn(1), drawn(1), drawn(2)
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name]), name
        assert torch.equal(value, other.state_dict()[name]) == (name not in ("query", "key")), name
    in_double = drawn(1, copy.deepcopy(conv).double())
    assert torch.equal(in_double.query.float(), one.query)


@torch.no_grad()
def test_reset_draws_a_fresh_layer_from_the_generator() -> None:
    layer = make_layer()
    for parameter in layer.parameters():
        parameter.fill_(float("nan"))
    drawn = []
    for _ in range(2):
        layer.reset_parameters(temperature=0.3, generator=torch.Generator().manual_seed(5))
        drawn.append(copy.deepcopy(layer.state_dict()))
    for name, value in drawn[0].items():
        assert value.isfinite().all(), name
        assert torch.equal(value, drawn[1][name]), name
    bound = nn.Conv2d(4, 6, 3).weight[0].numel() ** -0.5  # as `nn.Conv2d` draws its own
    assert 0.8 * bound < layer.proj.abs().max() <= bound
    assert layer.bias.abs().max() <= bound
    assert layer.position_temperature == torch.tensor(0.3)


@pytest.mark.parametrize("shape", [(2, 5, 8, 8), (5, 8, 8), (4, 8), (2, 4, 3, 8, 8), (4,)], ids=str)
def test_wrong_input_is_refused_in_one_line(shape: tuple[int, ...]) -> None:
    layer = make_layer()
    for call in (layer, layer.attention):
        with pytest.raises(UnsupportedLayerError, match=r"^GPSA2d: expected .*\(B, 4, H, W\), got \([^\n]+\)$"):
            call(torch.randn(shape))


def test_its_text_shows_its_arguments() -> None:
    assert repr(GPSA2d(4, 6, (3, 2), 2, (1, 0), groups=2, bias=False)) == (
        "GPSA2d(4, 6, kernel_size=(3, 2), stride=(2, 2), padding=(0, 0, 1, 1), dilation=(1, 1), groups=2, bias=False, "
        "padding_mode='zeros', heads=6, head_dim=8)"
    )
