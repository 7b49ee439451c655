"""Layers prepared for inference: the same function, told apart from those that can be trained."""

import copy
import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from layer_forms import FORMS, REORDERED, image, layer
from operations import Operations
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim.swa_utils import AveragedModel

import tcnn
from tcnn.errors import RequestError
from tcnn.layers import GPSA2d
from tcnn.layers.backends.selection import BACKENDS, use_backend
from tcnn.layers.fused import FusedGPSA2d

RelativeError = Callable[[Tensor, Tensor], float]


def test_a_fused_model_says_so_and_refuses_training() -> None:
    model = nn.Sequential(layer(0.7), nn.BatchNorm2d(6).double(), nn.ReLU())
    x = image()
    found = tcnn.fuse(model)
    assert "for inference only" in repr(found)
    assert not any(name.startswith("0.") for name, _ in found.named_parameters())
    assert torch.allclose(found(x), model.eval()(x), rtol=1e-12, atol=1e-12)
    with pytest.raises(RequestError, match=r"^FusedGPSA2d: fused for inference; train the model that was fused$"):
        found.train()
    with pytest.raises(
        RequestError, match=r"^0: was fused, for inference only; fuse the model that it was fused from$"
    ):
        tcnn.fuse(found)
    with pytest.raises(RequestError, match="expected a model with GPSA layers, found none"):
        tcnn.fuse(nn.Conv2d(3, 3, 3))
    with torch.no_grad():
        model[0].proj.zero_()
    assert found(x).abs().sum() > 1, "a copy: the model may train on"


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"groups": 2}, {"content_heads": 1}], ids=str)
def test_a_fused_layer_by_every_backend(options: dict[str, object], relative_error: RelativeError) -> None:
    """By the formula as it is written, too, where queries and keys are one matrix."""
    torch.manual_seed(0)
    trained = GPSA2d(4, 6, 3, padding=1, temperature=0.7, dtype=torch.float64, **options).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for matrix in (trained.query, trained.key, trained.value):
            matrix.normal_()
    found = tcnn.fuse(trained)
    for backend in BACKENDS:
        with use_backend(backend):
            assert relative_error(found(image()), trained(image())) < REORDERED, backend


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2}, {"groups": 2}, {"padding_mode": "reflect"}, {"content": "window:9"}, {"content": "pooled:3"}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_fused_layers_of_every_geometry(
    options: dict[str, object], dtype: torch.dtype, relative_error: RelativeError
) -> None:
    """Float32 takes the processor's own order of the matrices, whatever their size."""
    torch.manual_seed(0)
    for temperature in (1 / 46, 0.7):
        made = GPSA2d(4, 6, 3, padding=1, temperature=temperature, **options).to(dtype)  # type: ignore[arg-type]
        with torch.no_grad():
            made.value.add_(0.3 * torch.randn_like(made.value))
        found = FusedGPSA2d(made)
        tolerance = 1e-6 if dtype == torch.float32 else REORDERED
        for x in (image(), image(9, 5), image(6, 6, batch=1), image()):
            with torch.no_grad():
                assert relative_error(found(x.to(dtype)), made(x.to(dtype))) < tolerance


@torch.no_grad()
def test_the_positional_attention_of_a_size_is_computed_once(operations: Operations) -> None:
    made = FusedGPSA2d(GPSA2d(4, 6, 3, padding=1, temperature=0.7))
    x = image(7, 6, batch=2).float()
    counts = []
    for _ in range(2):
        operations.outputs.clear()
        with operations:
            made(x)
        maps = 9 * 42  # heads times queries, of each of which there is a row
        counts.append(sum(shape.numel() in (maps * 42, maps * 48) for _, shape, _ in operations.outputs))
    assert counts[0] > 0 and counts[1] == 0


@pytest.mark.parametrize("form", ["fused", "fused window"])
def test_gradients_of_the_input_after_inference_mode(form: str, relative_error: RelativeError) -> None:
    """What is kept in inference mode is no inference tensor, which autograd would refuse."""
    module, x = FORMS[form](), image().requires_grad_()
    with torch.inference_mode():
        module(image())
    module(x).square().sum().backward()
    found = x.grad
    again = image().requires_grad_()
    FORMS[form]()(again).square().sum().backward()
    assert found is not None and again.grad is not None
    assert relative_error(found, again.grad) < REORDERED


@torch.no_grad()
@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.slow), {"stride": 2}], ids=str)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_programs_hold_ordinary_matrices(options: dict[str, int], relative_error: RelativeError) -> None:
    """No file can hold a packed one, nor can a program that `torch.jit.trace` makes."""
    made = FusedGPSA2d(GPSA2d(4, 6, 3, padding=1, temperature=0.7, **options))  # type: ignore[arg-type]
    x, scripted, exported = image().float(), io.BytesIO(), io.BytesIO()
    traced = torch.jit.trace(made, x)
    program = torch.export.export(made, (x,))
    torch.jit.save(traced, scripted)
    torch.export.save(program, exported)
    for file in (scripted, exported):
        file.seek(0)
    found = traced, torch.jit.load(scripted), program.module(), torch.export.load(exported).module(), make_fx(made)(x)
    for one in (*found, copy.deepcopy(made)):
        assert relative_error(one(x.flip(0)), made(x.flip(0))) < 1e-6


@torch.no_grad()
def test_a_model_that_is_fused_already_is_exported(relative_error: RelativeError, tmp_path: Path) -> None:
    """Like one that is not, which `tcnn.export` fuses itself."""
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), GPSA2d(4, 6, 3, padding=1, temperature=0.7)), torch.randn(2, 3, 6, 5)
    tcnn.export(tcnn.fuse(model), tmp_path / "a.pt2", size=(6, 5), batch=2, dynamic=())
    assert relative_error(torch.export.load(tmp_path / "a.pt2").module()(x), model.eval()(x)) < 1e-5


def ensemble(dtype: torch.dtype) -> list[nn.Module]:
    """Fused layers of other positions, matrices and gates, all of which have cached what they need."""
    members: list[nn.Module] = []
    for seed in range(3):
        torch.manual_seed(seed)
        made = GPSA2d(4, 6, 3, padding=1, temperature=0.3 + 0.2 * seed).to(dtype)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        members.append(tcnn.fuse(made))
        members[-1](image().to(dtype))
    return members


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_fused_models_are_ensembled_by_functions(dtype: torch.dtype, relative_error: RelativeError) -> None:
    members, x = ensemble(dtype), image().to(dtype)
    expected = [member(x) for member in members]
    parameters, buffers = stack_module_state(members)
    together = vmap(lambda p, b: functional_call(members[0], (p, b), (x,)))(parameters, buffers)
    substituted = functional_call(members[0], members[1].state_dict(), (x,))
    for found, wanted in zip(
        (*together, substituted, members[0](x)), (*expected, expected[1], expected[0]), strict=True
    ):
        assert relative_error(found, wanted) < 1e-6


def averaged(one: nn.Module, other: nn.Module) -> None:
    mean = AveragedModel(one, use_buffers=True)
    mean.update_parameters(other)
    one.load_state_dict(mean.module.state_dict())


def substituted_for_good(one: nn.Module, other: nn.Module) -> None:
    for name, buffer in other.named_buffers():
        setattr(one, name, buffer.clone())


CHANGES: dict[str, Callable[[nn.Module, nn.Module], object]] = {
    "loaded": lambda one, other: one.load_state_dict(other.state_dict()),
    "assigned": lambda one, other: one.load_state_dict(copy.deepcopy(other.state_dict()), assign=True),
    "written": lambda one, other: [mine.copy_(its) for mine, its in zip(one.buffers(), other.buffers(), strict=True)],
    "one of them": lambda one, other: one.gate_temperature.mul_(2),  # type: ignore[union-attr, operator]
    "averaged": averaged,
    "set": substituted_for_good,
    "uncounted": lambda one, other: (
        [mine.data.copy_(its) for mine, its in zip(one.buffers(), other.buffers(), strict=True)], one.eval()
    ),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_cached_is_of_the_tensors_as_they_are(change: str, relative_error: RelativeError) -> None:
    one, other, _ = ensemble(torch.float32)
    before = one(image().float())
    CHANGES[change](one, other)
    fresh = copy.deepcopy(one)  # which copies nothing that was derived
    assert relative_error(one(image().float()), fresh(image().float())) < 1e-6
    assert relative_error(one(image().float()), before) > 1e-3


def test_gradients_of_tensors_that_are_substituted(relative_error: RelativeError) -> None:
    """What is cached has no gradients."""
    one, _, _ = ensemble(torch.float64)
    tau = one.position_temperature.clone().requires_grad_()  # type: ignore[union-attr, operator]
    values = [functional_call(one, {"position_temperature": t}, (image(),)).sum() for t in (tau + 1e-6, tau - 1e-6)]
    found = torch.autograd.grad(functional_call(one, {"position_temperature": tau}, (image(),)).sum(), tau)[0]
    assert relative_error(found, (values[0] - values[1]).detach() / 2e-6) < 1e-6


@torch.no_grad()
def test_another_thread_may_forget_the_same_map_size_meanwhile() -> None:
    """What a thread does between another's choice of the oldest size and its removal is done here in that place."""
    layer, threads = FusedGPSA2d(GPSA2d(4, 4, 3, padding=1, temperature=1.0)), [9]

    class Cache(dict[object, object]):
        def pop(self, *given: object) -> object:
            if threads:
                layer(torch.zeros(1, 4, threads.pop(), 3))
            return super().pop(*given)  # type: ignore[call-overload]

    layer(torch.zeros(1, 4, 3, 3))
    layer._derived = dataclasses.replace(layer._derived, positional=Cache())  # type: ignore[arg-type]
    for height in range(3, 9):
        layer(torch.zeros(1, 4, height, 3))


@pytest.mark.parametrize(
    "options", [{}, {"content_heads": 2}, {"content": "window:3"}, {"content": "global,unpadded"}], ids=str
)
def test_gradients_of_gradients_of_the_input(options: dict[str, object], relative_error: RelativeError) -> None:
    """Its values are the pixels themselves, which queries and keys come from, too: no path may count twice."""
    trained, x = layer(0.7, **options), image().requires_grad_()
    with torch.no_grad():
        for matrix in (trained.query, trained.key):
            matrix.normal_()

    def derivatives(module: nn.Module) -> list[Tensor]:
        once = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)[0]
        return [once, *torch.autograd.grad(once.square().sum(), x)]

    with use_backend("reference"):
        expected = derivatives(trained)
    for found, wanted in zip(derivatives(tcnn.fuse(trained)), expected, strict=True):
        assert relative_error(found, wanted) < 1e-12
