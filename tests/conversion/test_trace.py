"""Tracing: which layer runs when and on what shapes, found without moving data and without touching the model."""

from collections.abc import Callable

import pytest
import timm
import torch
from nets import PlainNet, ReadsValues, Tied, image, meta_model, same_state, snapshot
from torch import Tensor, nn
from torch.nn import functional as F

import tcnn
from tcnn.errors import RequestError
from tcnn.models import trace as tracing
from tcnn.models.trace import Step, evaluating, input_shape, meta_copy, trace


def test_every_leaf_in_running_order_with_its_shapes() -> None:
    model = PlainNet()
    found = [(step.name, step.input_shape, step.output_shape) for step in trace(model, (32, 48))]
    assert found == [
        ("stem", (1, 3, 32, 48), (1, 8, 32, 48)),
        ("wide", (1, 8, 32, 48), (1, 8, 32, 48)),
        ("down1", (1, 8, 32, 48), (1, 16, 16, 24)),
        ("mid", (1, 16, 16, 24), (1, 16, 16, 24)),
        ("down2", (1, 16, 16, 24), (1, 16, 8, 12)),
        ("norm", (1, 16, 8, 12), (1, 16, 8, 12)),
        ("last", (1, 16, 8, 12), (1, 16, 8, 12)),
        ("depthwise", (1, 16, 8, 12), (1, 16, 8, 12)),
        ("point", (1, 16, 8, 12), (1, 16, 8, 12)),
        ("head", (1, 16), (1, 5)),
    ]


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_efficientnet", "test_vit"])
def test_shapes_are_those_of_a_real_forward_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_forward_in_place", None)  # for models that the meta device refuses
    model = timm.create_model(name).eval()
    size = input_shape(model)[1:] if name == "test_vit" else (96, 64)
    real: list[Step] = []
    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(
                lambda m, args, out, name=name: real.append(Step(name, m, tuple(args[0].shape), tuple(out.shape)))
            )
    with torch.no_grad():
        model(image(size))
    real_run, real[:] = list(real), []
    convolutions = {step.name for step in trace(model, size)} - {step.name for step in real_run}
    assert [step for step in trace(model, size) if step.name not in convolutions] == real_run
    assert {type(model.get_submodule(name)) for name in convolutions} <= {nn.Conv2d}  # with layers of their own


@pytest.mark.parametrize(
    ("made", "fits", "output"),
    [
        (nn.BatchNorm2d, 8, (1, 8, 7, 5)),
        (nn.LayerNorm, 5, (1, 8, 7, 5)),
        (lambda width: nn.LayerNorm((7, width)), 5, (1, 8, 7, 5)),
        (lambda width: nn.Linear(width, 3), 5, (1, 8, 7, 3)),
    ],
)
def test_what_does_not_fit_is_no_step(made: Callable[[int], nn.Module], fits: int, output: tuple[int, ...]) -> None:
    """The arithmetic of a normalisation or linear layer is skipped, its check is not."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), made(fits))
    assert [step.output_shape for step in trace(model, (9, 7))] == [(1, 8, 7, 5), output]
    with pytest.raises(RequestError, match="does not run on an image of 3×9×7"):
        trace(nn.Sequential(nn.Conv2d(3, 8, 3), made(fits + 1)), (9, 7))


class ByName(nn.Module):
    """Gives functions their parameters by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.weight = nn.Conv2d(3, 8, 3), nn.Parameter(torch.ones(4, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(self.conv(x), normalized_shape=(5,))
        return F.relu(input=F.linear(x, weight=self.weight))


def test_parameters_by_name_need_no_data_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_forward_in_place", None)
    assert [step.output_shape for step in trace(ByName(), (9, 7))] == [(1, 8, 7, 5)]


def test_a_copy_shares_no_table() -> None:
    model = PlainNet()
    copied = dict(meta_copy(model).named_modules())
    for name, module in model.named_modules():
        own, other = vars(module), vars(copied[name])
        assert own.keys() == other.keys()
        tables = [key for key, value in own.items() if isinstance(value, dict)]
        assert len(tables) > 8
        assert all(type(own[key]) is type(other[key]) and own[key] is not other[key] for key in tables)
        assert len({id(other[key]) for key in tables}) == len(tables)


def test_steps_belong_to_the_model_itself() -> None:
    model = PlainNet()
    assert all(step.module is model.get_submodule(step.name) for step in trace(model, (32, 32)))


def test_a_layer_that_runs_twice_is_two_steps() -> None:
    assert [step.name for step in trace(Tied(), (16, 16))] == ["stem", "first", "first", "head"]


def test_moves_no_data() -> None:
    """A layer of 4 TB: allocating it once anywhere would end the test."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 30 * 30, 10**8), nn.Linear(10**8, 10**4))
    assert [step.output_shape for step in trace(model, (32, 32))][-1] == (1, 10**4)


@pytest.mark.parametrize("kind", [PlainNet, ReadsValues])
def test_leaves_no_mark(kind: type[nn.Module]) -> None:
    model = kind().train()
    model.norm.eval()
    before = snapshot(model)
    trace(model, (32, 32))
    assert same_state(model, before)
    assert model.training and model.stem.training and not model.norm.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_model_that_needs_data_is_traced_where_it_is(dtype: torch.dtype) -> None:
    steps = trace(ReadsValues().to(dtype), (16, 24))
    assert [(step.name, step.output_shape) for step in steps] == [
        ("stem", (1, 8, 16, 24)),
        ("norm", (1, 8, 16, 24)),
        ("conv", (1, 8, 16, 24)),
    ]


def test_an_output_that_is_no_tensor_has_no_shape() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    class Sum(nn.Module):
        def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
            return pair[0] + pair[1]

    steps = trace(nn.Sequential(Pair(), Sum()), (8, 8))
    assert [(step.input_shape, step.output_shape) for step in steps] == [
        ((1, 3, 8, 8), None),
        (None, (1, 3, 8, 8)),
    ]


def test_a_model_that_does_not_run_is_refused_with_the_size() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 7), nn.BatchNorm2d(4)).train()
    with pytest.raises(
        RequestError, match=r"Sequential does not run on an image of 3×5×6 .*choose another input size"
    ) as e:
        trace(model, (5, 6))
    assert "\n" not in str(e.value)
    assert model.training and model[1].training


class TakesTwo(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right


class Unfinished(nn.Module):
    pass


@pytest.mark.parametrize(("kind", "error"), [(TakesTwo, "TypeError"), (Unfinished, "NotImplementedError")])
def test_a_model_that_runs_on_no_image_is_not_told_to_choose_a_size(kind: type[nn.Module], error: str) -> None:
    with pytest.raises(RequestError, match=f"{kind.__name__}: expected a model that runs on a batch .*{error}") as e:
        trace(kind(), (5, 6))
    assert "choose another" not in str(e.value) and "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("model", "size", "expected"),
    [
        (lambda: meta_model("resnetrs50"), None, (3, 160, 160)),
        (lambda: meta_model("resnetrs50"), (64, 96), (3, 64, 96)),
        (lambda: meta_model("test_resnet", in_chans=1), None, (1, 96, 96)),  # `small_images`
        (lambda: meta_model("vit_tiny_patch16_224", img_size=96), None, (3, 96, 96)),
        (lambda: PlainNet(in_channels=5), None, (5, 224, 224)),
        (lambda: nn.Sequential(nn.ReLU()), None, (3, 224, 224)),
    ],
)
def test_input_shape(model: object, size: tuple[int, int] | None, expected: tuple[int, int, int]) -> None:
    assert input_shape(model(), size) == expected  # type: ignore[operator]


@pytest.mark.parametrize("groups", [1, 3])
def test_input_channels_are_those_of_the_weight(groups: int) -> None:
    """As of a model that was made grey, or for two kinds of images, by the weight of its stem alone."""
    model = PlainNet()
    model.stem.groups, model.stem.weight = groups, nn.Parameter(torch.ones(model.stem.out_channels // 3 * 3, 2, 3, 3))
    assert input_shape(model)[0] == 2 * groups


def test_a_parametrised_stem_is_not_computed_for_its_channels() -> None:
    """In training that would move its singular vectors."""
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(5, 4, 3)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert input_shape(model)[0] == 5
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_of_other_channels_than_it_seems_is_told_how_to_say_so() -> None:
    """Its first layer reads one channel, another three."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 3, stride=2, padding=1))
    said = r"Sequential does not run on an image of 3×8×8 \(.*\); .* images of 1 channel, set model\.in_chans = 1$"
    with pytest.raises(RequestError, match=said):
        tcnn.convert(model, input_size=8)
    model.in_chans = 1
    assert len(tcnn.convert(model, input_size=8).report.layers) == 1


def test_one_that_makes_maps_of_the_image_is_told_so_too() -> None:
    """Its first convolution reads powers of a grey image."""

    class Powers(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.cat([x, x**2, x**3, x**4], 1))  # type: ignore[no-any-return]

    model = Powers(nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1))
    said = r"Powers does not run on an image of 4×16×16 \(.*\); .* other than 4 channels, set model\.in_chans to "
    with pytest.raises(RequestError, match=said):
        tcnn.convert(model, input_size=16)
    model.in_chans = 1  # type: ignore[assignment]
    assert len(tcnn.convert(model, input_size=16).report.layers) == 1


def test_a_network_of_volumes_is_told_what_is_expected() -> None:
    model = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.Conv3d(4, 4, 3))
    with pytest.raises(RequestError, match=r"\); expected a network of images, \(B, C, H, W\), found an nn\.Conv3d"):
        tcnn.convert(model, input_size=16)


def test_the_meta_copy_has_the_structure_and_nothing_else() -> None:
    model = Tied().half()
    model.stem.weight.requires_grad_(False)
    model.register_buffer("mean", torch.ones(3))
    twin = meta_copy(model)
    tensors = dict((*twin.named_parameters(), *twin.named_buffers()))
    assert tensors.keys() == dict((*model.named_parameters(), *model.named_buffers())).keys()
    assert all(tensor.is_meta for tensor in tensors.values())
    assert {tensor.dtype for tensor in twin.parameters()} == {torch.float16}
    assert isinstance(twin.stem.weight, nn.Parameter) and not twin.stem.weight.requires_grad
    assert twin.stem.bias.requires_grad
    assert twin.first is twin.second


def test_evaluating_gives_every_module_its_mode_back() -> None:
    model = PlainNet().train()
    model.norm.eval()
    with pytest.raises(ZeroDivisionError), evaluating(model):
        assert not any(module.training for module in model.modules())
        raise ZeroDivisionError
    assert [name for name, module in model.named_modules() if not module.training] == ["norm"]


LAZY = r"^2: its shape is not known before the first forward pass \(lazy module\); run the model once, as model"


@pytest.mark.parametrize("run", [trace, tcnn.convert, tcnn.without_stride, lambda model: tcnn.verify(model, model)])
def test_a_lazy_model_is_refused_and_stays_lazy(run: Callable[[nn.Module], object]) -> None:
    """Whoever runs it draws its weights: in the source, and out of the caller's random numbers."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.LazyConv2d(4, 3, padding=1))
    state = torch.random.get_rng_state()
    with pytest.raises(RequestError, match=LAZY):
        run(model)
    assert isinstance(model[2], nn.LazyConv2d)
    assert torch.equal(torch.random.get_rng_state(), state)
