"""`tcnn.anneal` where no training loop calls the model: tracers, exporters, shapes without values, which are no step;
under transforms of `torch.func`, whose passes are steps as any; and layers that were copied within the model.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import tcnn
from tcnn.conversion.annealing import temperature

COUNT = 6
IMAGES = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def annealing() -> nn.Module:
    """One GPSA layer, behind a convolution."""
    torch.manual_seed(0)
    cnn = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, (1, 3), stride=2, padding=(0, 1)), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).double()  # fmt: skip
    model = tcnn.convert(cnn, target="1", input_size=8).model.train()
    tcnn.anneal(model, COUNT)
    return model


def step(model: nn.Module) -> float:
    model(IMAGES).square().sum().backward()
    return tau(model)


def tau(model: Any) -> float:
    return float(model[1].position_temperature)


def after(steps: int) -> Any:
    return pytest.approx(temperature(steps - 1, 1 / 46, COUNT), rel=1e-9)


def fake(model: nn.Module) -> object:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return model(mode.from_tensor(IMAGES))


PROGRAMS: dict[str, Callable[[nn.Module], object]] = {
    "exported": lambda model: torch.export.export(model, (IMAGES,)),
    "exported strictly": lambda model: torch.export.export(model, (IMAGES,), strict=True),
    "traced by jit": lambda model: torch.jit.trace(model, IMAGES, check_trace=False),  # type: ignore[no-untyped-call]
    "traced by fx": torch.fx.symbolic_trace,
    "traced by make_fx": lambda model: make_fx(model)(IMAGES),
    "traced before dispatch": lambda model: make_fx(model, pre_dispatch=True)(IMAGES),
    "a part of it traced": lambda model: make_fx(nn.Sequential(*model.children()))(IMAGES),
    "fake": fake,
    "a fake part": lambda model: fake(nn.Sequential(*model.children())),
    "without data": lambda model: copy.deepcopy(model).to("meta")(IMAGES.to("meta")),
}  # fmt: skip


@pytest.mark.parametrize("done", [0, 2])
@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.slow if "str" in way else ()) for way in PROGRAMS])
def test_what_computes_nothing_of_a_training_loop_is_no_step(way: str, done: int) -> None:
    """A step was counted, or τ was read where there is none."""
    model = annealing()
    for _ in range(done):
        step(model)
    made = PROGRAMS[way](model)  # and kept: nothing of it is waited for
    assert tau(model) == (after(done) if done else pytest.approx(1 / 46))
    assert step(model) == after(done + 1)
    assert made is not None


def test_an_exported_program_has_the_temperature_of_its_state() -> None:
    """Every call of it set τ to that of a step."""
    model = annealing()
    step(model)
    program = torch.export.export(model, (IMAGES,)).module()
    assert torch.allclose(program(IMAGES), copy.deepcopy(model).eval()(IMAGES), rtol=1e-9)
    with torch.no_grad():
        model[1].set_temperature(0.7)  # type: ignore[index, operator]
    program.load_state_dict(model.state_dict())
    for _ in range(2):
        assert torch.allclose(program(IMAGES), model.eval()(IMAGES), rtol=1e-9)
    assert {float(one) for name, one in program.named_buffers() if "temperature" in name} == {0.7}


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def output(model: nn.Module, state: Any, x: Tensor = IMAGES) -> Tensor:
    return functional_call(model, state, (x,))  # type: ignore[no-any-return]


TRANSFORMS: dict[str, Callable[[nn.Module, dict[str, Tensor]], object]] = {
    "called": lambda model, own: output(model, {k: v.requires_grad_() for k, v in own.items()}).sum().backward(),
    "differentiated": lambda model, own: grad(lambda own: output(model, own).square().sum())(own),
    "image by image": lambda model, own: vmap(
        grad(lambda own, x: output(model, own, x[None]).square().sum()), in_dims=(None, 0)
    )(own, IMAGES),
    "two views": lambda model, own: grad(
        lambda own: (output(model, own) * output(model, own, IMAGES.flip(-1))).sum()
    )(own),
}  # fmt: skip


@pytest.mark.parametrize("way", TRANSFORMS)
def test_a_pass_of_a_function_of_the_parameters_is_a_step(way: str) -> None:
    model = annealing()
    for number in range(COUNT + 1):
        TRANSFORMS[way](model, parameters(model))
        assert tau(model) == after(min(number + 1, COUNT))


def test_it_rises_in_the_state_that_is_given() -> None:
    """That of one model, or of an ensemble."""
    models = [annealing() for _ in range(3)]
    several, taus = stack_module_state(models)  # type: ignore[arg-type]
    alone, own = annealing(), {name: one.clone() for name, one in annealing().named_buffers()}
    for number in range(3):
        vmap(lambda *state: output(models[0], state))(several, taus).square().sum().backward()
        assert taus["1.gate_temperature"].tolist() == [after(number + 1)] * 3
        grad(lambda *state: output(alone, state).square().sum(), argnums=(0, 1))(parameters(alone), own)
        assert float(own["1.gate_temperature"]) == after(number + 1)
    assert tau(models[0]) == tau(alone) == pytest.approx(1 / 46)


@pytest.mark.slow
def test_a_whole_graph_cannot_count() -> None:
    """Until τ has risen, then it can be compiled."""
    model = annealing()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"tcnn\.anneal counts steps outside.*no fullgraph=True"):
        compiled(IMAGES)
    for _ in range(COUNT):
        step(model)
    assert torch.allclose(compiled(IMAGES), model(IMAGES))


class Adapted(nn.Module):
    """As peft keeps a module that is to be trained: beside a copy, which takes its place."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.original_module, self.trained = module, copy.deepcopy(module)

    def forward(self, x: Tensor) -> Tensor:
        return self.trained(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("part", ["1", "1.1", ""], ids=["a layer", "one within", "all"])
@pytest.mark.parametrize("done", [0, 2])
def test_a_layer_that_was_copied_within_the_model_keeps_step_with_it(done: int, part: str) -> None:
    """It counted for itself as well, and was a step ahead."""
    model: Any = deep()
    for _ in range(done):
        model(IMAGES).sum().backward()
    if part:
        parent, _, name = part.rpartition(".")
        setattr(model.get_submodule(parent), name, Adapted(model.get_submodule(part)))
    else:
        model.append(Adapted(nn.Sequential(*(copy.deepcopy(child) for child in model))))
    for number in range(done, COUNT + 1):
        twin = copy.deepcopy(model)
        for one in (model, twin):
            (one(IMAGES) * one(IMAGES.flip(-1))).sum().backward()
            assert taus(one) == [after(min(number + 1, COUNT))] * len(taus(one))


def deep() -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, (1, 3), padding=(0, 1)))
    cnn = nn.Sequential(nn.Conv2d(3, 3, (1, 3), padding=(0, 1)), inner, nn.Conv2d(3, 3, 1)).double()
    model = tcnn.convert(cnn, target=r"0|1\.1", input_size=8).model.train()
    tcnn.anneal(model, COUNT)
    return model


def taus(model: nn.Module) -> list[float]:
    return [float(layer.gate_temperature) for layer in model.modules() if isinstance(layer, tcnn.GPSA2d)]
