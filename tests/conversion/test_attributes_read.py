"""Networks whose forward pass reads their convolutions' attributes, as a branch of the same geometry beside one does,
and their weights, as central difference convolutions do (Yu et al. 2020), also when layers are fused.
"""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from nets import image, relative_error
from timm.layers import Conv2dSame
from torch import Tensor, nn
from torch.nn import functional as F

import tcnn
from tcnn.errors import RequestError, UnsupportedLayerError
from tcnn.folding.fold import fused
from tcnn.layers import GPSA2d
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.fused import FusedGPSA2d

SIZE = (16, 12)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


class Asking(nn.Module):
    """Adds to the output of `conv` what `beside` makes of its input and of the convolution's attributes."""

    def __init__(self, beside: Callable[[nn.Module, Tensor], Tensor], conv: nn.Conv2d | None = None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.conv = conv or nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 4)
        self.beside = beside

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.fc((self.conv(x) + self.beside(self.conv, x)).mean((2, 3)))


def pooled(conv: nn.Module, x: Tensor) -> Tensor:
    return F.avg_pool2d(x, conv.kernel_size, conv.stride, conv.padding)


def convolved(conv: nn.Module, x: Tensor) -> Tensor:
    """Fails if any of them is not as PyTorch takes it."""
    assert conv.padding_mode == "zeros" and not conv.transposed and conv.output_padding == (0, 0)
    kernel = torch.ones(8, 8 // conv.groups, *conv.kernel_size, dtype=x.dtype, device=x.device)
    return F.conv2d(x, kernel, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups)


@pytest.mark.parametrize(
    ("beside", "conv"),
    [
        (pooled, nn.Conv2d(8, 8, (3, 5), (2, 1), (1, 2))),
        (convolved, nn.Conv2d(8, 8, 3, padding="same", dilation=2, groups=2)),
        (convolved, nn.Conv2d(8, 8, (2, 3), padding="same")),
        (convolved, nn.Conv2d(8, 8, 3, padding="valid")),
    ],
    ids=["pool", "same", "same on one side", "valid"],
)
def test_is_converted_saved_folded_and_fused(
    beside: Callable[[nn.Module, Tensor], Tensor], conv: nn.Conv2d, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    source, x = Asking(beside, conv).double().eval(), image(SIZE).double()
    model = tcnn.convert(source, target="conv", input_size=SIZE).model
    expected = source(x)
    assert relative_error(expected, model(x)) < 1e-12
    assert relative_error(expected, tcnn.fuse(model)(x)) < 1e-12
    tcnn.save(model, tmp_path / "model.safetensors")
    loaded = tcnn.load(tmp_path / "model.safetensors", source=source)
    assert loaded.conv.padding == model.conv.padding
    assert torch.equal(loaded(x), model(x))
    with torch.no_grad():
        model.conv.gating_param[0] = 0.01  # one head attends, so not all of the layer is folded
    folded = tcnn.fold(model, source=source).model
    assert isinstance(folded.conv, FoldedGPSA2d)
    assert torch.equal(tcnn.fuse(folded).conv.weight, folded.conv.weight)
    for one in (folded, tcnn.fuse(folded), tcnn.fuse(model)):
        assert relative_error(model(x), one(x)) < 1e-12


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
@pytest.mark.parametrize("padding", [0, 2, (2, 1), "same", "valid"])
@pytest.mark.parametrize("kernel", [3, (5, 2)])
def test_padding_is_the_convolutions(
    kernel: int | tuple[int, int], padding: int | tuple[int, int] | str, mode: str
) -> None:
    conv = nn.Conv2d(2, 2, kernel, padding=padding, padding_mode=mode)
    layer = GPSA2d.from_conv2d(conv)
    for one in (layer, FusedGPSA2d(layer)):
        assert one.padding_mode == mode
        if isinstance(padding, str):  # told in numbers, if two are enough
            x = torch.randn(1, 2, 7, 8)
            found, expected = (F.conv2d(x, conv.weight, padding=value) for value in (one.padding, padding))
            assert torch.equal(found, expected)
        else:
            assert one.padding == conv.padding


def test_padding_of_the_input_and_padding_that_no_convolution_has() -> None:
    same = Conv2dSame(2, 2, 3, stride=2)
    assert GPSA2d.from_conv2d(same).padding == same.padding == (0, 0)
    conv = nn.Conv2d(2, 2, 3, padding="same", padding_mode="reflect")
    conv._reversed_padding_repeated_twice = [1, 0, 1, 1]
    with pytest.raises(UnsupportedLayerError, match=r"an nn.Conv2d has no padding like .*= \(1, 0, 1, 1\)"):
        _ = GPSA2d.from_conv2d(conv).padding


def test_what_a_layer_has_not_is_named_with_the_layer() -> None:
    source = Asking(lambda conv, x: conv._conv_forward(x, conv.weight, None))
    source(image(SIZE))
    with pytest.raises(RequestError) as caught:
        tcnn.convert(source, target="conv", input_size=SIZE)
    assert str(caught.value) == (
        "Asking: its forward pass reads '_conv_forward' of the convolution 'conv', which GPSA2d in its place has not; "
        "give a target without that layer"
    )


def central_difference(conv: nn.Module, x: Tensor) -> Tensor:
    """What its theory subtracts from a convolution: the same pixel under the sum of the filter's taps."""
    return -0.7 * F.conv2d(x, conv.weight.sum((2, 3), keepdim=True), stride=conv.stride, groups=conv.groups)


def moved(model: nn.Module) -> nn.Module:
    """As after training: no matrix is what it was."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for matrix in (model.conv.value, model.conv.proj, model.conv.query):
            matrix.add_(0.2 * torch.randn(matrix.shape, generator=generator))
    return model


OPTIONS = [{}, {"temperature": 0.3}, {"content_heads": 2}, {"temperature": 0.3, "content_heads": 2}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("trained", [False, True])
@torch.no_grad()
def test_weights_are_those_of_the_unfused_layer(groups: int, options: dict[str, object], trained: bool) -> None:
    torch.manual_seed(0)
    source = Asking(central_difference, nn.Conv2d(8, 8, 3, padding=1, groups=groups)).double().eval()
    model, x = tcnn.convert(source, target="conv", input_size=SIZE, **options).model.eval(), image(SIZE).double()
    if not trained and "temperature" not in options:
        assert relative_error(source(x), model(x)) < 1e-12
    model = moved(model) if trained else model
    made = tcnn.fuse(model)
    assert torch.equal(made.conv.weight, model.conv.weight)
    assert relative_error(model(x), made(x)) < 1e-12
    kept = "filter" in dict(made.conv.named_buffers())
    assert kept == (trained and groups == 1), "only where it is nowhere else"
    other = tcnn.fuse(model)
    for buffer in other.buffers():
        buffer.zero_()
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(x), made(x))
    assert torch.equal(copy.deepcopy(made).float().conv.weight, model.conv.weight.float())


@torch.no_grad()
def test_a_fused_state_of_an_older_version_has_no_weight_to_read() -> None:
    model, x = tcnn.convert(Asking(central_difference), target="conv", input_size=SIZE).model.eval(), image(SIZE)
    made = tcnn.fuse(moved(model))
    old = {name: value for name, value in made.state_dict().items() if name != "conv.filter"}
    made.load_state_dict(old)
    expected = F.conv2d(x[:, :1].expand(-1, 8, -1, -1), made.conv.kernel, made.conv.bias, padding=1)
    assert relative_error(expected, made.conv(x[:, :1].expand(-1, 8, -1, -1))) < 1e-6, "itself it is as it was"
    with pytest.raises(UnsupportedLayerError, match="reads its weight, which layers fused by older versions"):
        made(x)


@torch.no_grad()
def test_a_program_has_the_weight_if_it_is_read(tmp_path: Path) -> None:
    sizes = []
    for beside in (central_difference, pooled):
        model = moved(tcnn.convert(Asking(beside), target="conv", input_size=SIZE).model.eval())
        tcnn.export(model, tmp_path / f"{beside.__name__}.pt2", size=SIZE, batch=1, dynamic=())
        program, x = torch.export.load(tmp_path / f"{beside.__name__}.pt2"), image(SIZE)[:1]
        assert relative_error(model(x), program.module()(x)) < 1e-5
        sizes.append(sum(name.endswith("filter") for name in program.state_dict))
    assert sizes == [1, 0]


def gained(conv: nn.Module, x: Tensor) -> Tensor:
    return (conv.gain - 1) * conv(x)


@torch.no_grad()
@pytest.mark.parametrize("gain", [2.5, torch.tensor(2.5)], ids=["number", "tensor"])
def test_what_was_set_on_a_convolution_is_on_everything_in_its_place(gain: float | Tensor) -> None:
    """Also if it is another number than the source's by then."""
    torch.manual_seed(0)
    source, x = Asking(gained).double().eval(), image(SIZE).double()
    source.conv.gain = gain
    model = tcnn.convert(source, target="conv", input_size=SIZE).model
    assert tcnn.verify(source, model).passed
    model.conv.gain = gain + 1
    expected, soft = model(x), copy.deepcopy(model)
    soft.conv.gating_param[4] = 0.01  # one head attends
    attending = soft(x)
    part, whole = tcnn.fold(soft, source=source).model, tcnn.fold(model, source=source).model
    assert [type(one.conv) for one in (part, whole)] == [FoldedGPSA2d, nn.Conv2d]
    for one, wanted in ((part, attending), (whole, expected), (tcnn.fuse(model), expected)):
        assert relative_error(one(x), wanted) < 1e-12
        assert one.conv.gain == gain + 1
    for one, wanted in ((part, attending), (model, expected)):
        assert relative_error(tcnn.fuse(one)(x), wanted) < 1e-12
        with fused(one):
            assert isinstance(one.conv, FusedGPSA2d) and relative_error(one(x), wanted) < 1e-12


@torch.no_grad()
def test_what_a_fused_layer_has_itself_leaves_the_layer_unfused() -> None:
    model, x = tcnn.convert(Asking(pooled), target="conv", input_size=SIZE).model.eval(), image(SIZE)
    model.conv.kernel = 3
    expected = model(x)
    with fused(model):
        assert isinstance(model.conv, GPSA2d) and torch.equal(model(x), expected)
    with pytest.raises(
        UnsupportedLayerError, match=r"^conv: its attribute 'kernel' is one that FusedGPSA2d has itself"
    ):
        tcnn.fuse(model)


def test_what_only_a_folded_layer_has_not_is_named_with_the_layer() -> None:
    source = Asking(lambda conv, x: x * (isinstance(conv, nn.Conv2d) or conv.fused_attn))  # type: ignore[arg-type]
    model = tcnn.convert(source, target="conv", input_size=SIZE).model
    with torch.no_grad():
        model.conv.gating_param[4] = 0.01
    with pytest.raises(RequestError, match="reads 'fused_attn' of the convolution 'conv', which FoldedGPSA2d in its"):
        tcnn.fold(model, source=source)
