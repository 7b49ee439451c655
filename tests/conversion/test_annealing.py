"""`anneal_steps`: a model that raises its own τ, in a training loop that knows nothing of it."""

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from sampled import sampled
from timm.models import save_for_hf
from timm.utils import ModelEmaV2, ModelEmaV3
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import tcnn
from tcnn.conversion.annealing import position, temperature
from tcnn.errors import RequestError

START = 1 / 46


def model_with(steps: int, **options: object) -> nn.Module:
    return timm.create_model("t_test_resnet", num_classes=4, anneal_steps=steps, **options).train()


def tau(model: nn.Module) -> float:
    (value,) = {float(m.position_temperature) for m in model.modules() if isinstance(m, tcnn.GPSA2d)}
    return value


def step(model: nn.Module) -> float:
    """A training step; the τ that it was done with."""
    model(torch.randn(2, 3, 32, 32)).square().mean().backward()
    return tau(model)


def steps(model: nn.Module, count: int) -> list[float]:
    return [step(model) for _ in range(count)]


def formula(update: int, count: int, start: float = START) -> float:
    return start ** max(0.0, 1 - (update + 1) / count)


def test_temperature_rises_evenly_in_its_logarithm_and_stays_at_one() -> None:
    assert steps(model_with(5), 7) == pytest.approx([formula(n, 5) for n in range(7)], rel=1e-6)


def test_it_starts_from_the_temperature_of_conversion() -> None:
    assert steps(model_with(3, temperature=0.2), 3) == pytest.approx([formula(n, 3, 0.2) for n in range(3)], rel=1e-6)


def test_only_training_steps_count() -> None:
    model = model_with(4)
    with torch.no_grad():
        model(torch.randn(2, 3, 32, 32))
    model.eval()(torch.randn(2, 3, 32, 32))
    assert tau(model) == pytest.approx(START)
    assert step(model.train()) == pytest.approx(formula(0, 4))


def test_a_state_has_no_more_entries_and_training_resumes_from_it() -> None:
    model = model_with(4)
    steps(model, 1)
    state = copy.deepcopy(model.state_dict())
    assert state.keys() == timm.create_model("t_test_resnet", num_classes=4).state_dict().keys()
    expected = steps(model, 4)
    other = model_with(4)
    steps(other, 2)  # what it counted itself is forgotten
    other.load_state_dict(state)
    assert steps(other, 4) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 7, 1000, 20_000])
def test_how_far_it_has_come_can_be_read_off_tau(count: int, dtype: torch.dtype) -> None:
    for done in {1, count // 3, count // 2, count - 1, count} - {0}:
        stored = float(torch.tensor(temperature(done - 1, START, count), dtype=dtype))
        slack = 0.001 * count if dtype == torch.bfloat16 else 0
        assert abs(position(stored, START, count) - done) <= slack, done
    assert position(float(torch.tensor(START, dtype=dtype)), START, count) <= 0.001 * count


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_coarse_types_do_not_stall_it(dtype: torch.dtype) -> None:
    """A step of τ that is smaller than the type's unit in the last place still counts."""
    model = model_with(2000).to(dtype)
    hook = next(iter(model._forward_pre_hooks.values()))
    for _ in range(2000):
        hook(model, ())
    assert tau(model) == 1


def test_copies_go_their_own_ways() -> None:
    model = model_with(10)
    steps(model, 3)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        steps(twin, 2)
        assert tau(twin) == pytest.approx(formula(4, 10), rel=1e-6)
    assert tau(model) == pytest.approx(formula(2, 10), rel=1e-6)


AVERAGES: dict[str, Callable[[nn.Module], Any]] = {
    "averaged": lambda model: ModelEmaV3(model, decay=0.5),
    "averaged by V2": lambda model: ModelEmaV2(model, decay=0.5),
    "averaged by torch": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True),
    "the model's by torch": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5)),
    "the model's": lambda model: ModelEmaV3(model, decay=0.5, update_after_step=4),
}  # fmt: skip
"""Moving averages of a model, by what their τ is."""


@pytest.mark.parametrize("kind", sampled(AVERAGES, ["averaged", "averaged by torch", "the model's"]))
def test_the_temperature_of_a_moving_average(kind: str) -> None:
    model = model_with(4)
    average = AVERAGES[kind](model)
    expected = START
    for number in range(1, 31):
        step(model)
        expected = tau(model) if "model" in kind or (number == 1 and "torch" in kind) else (expected + tau(model)) / 2
        if isinstance(average, AveragedModel):
            average.update_parameters(model)
        elif kind == "the model's":
            average.update(model, step=number)
        else:
            average.update(model)
        assert tau(average.module) == pytest.approx(expected, rel=1e-5)
    assert tau(average.module) == pytest.approx(1)


def test_distributed_training_counts_alike(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        model = model_with(4)
        wrapped = nn.parallel.DistributedDataParallel(model)
        for update in range(4):
            wrapped(torch.randn(2, 3, 32, 32)).square().mean().backward()
            assert tau(model) == pytest.approx(formula(update, 4), rel=1e-6)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrapper", [pytest.param(lambda model: model, id="alone", marks=pytest.mark.slow), nn.Sequential]
)
def test_a_compiler_does_not_compile_for_every_step(wrapper: Callable[[nn.Module], nn.Module]) -> None:
    model = model_with(20)
    calls = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        calls.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(wrapper(model), backend=backend)
    found = []
    for _ in range(12):
        compiled(torch.randn(2, 3, 32, 32)).square().mean().backward()
        found.append(tau(model))
    assert found == pytest.approx([formula(n, 20) for n in range(12)], rel=1e-6)
    assert len(calls) < 4


@pytest.mark.slow  # compiled in training, and exported by tests/exporting/test_export.py
@pytest.mark.parametrize("strict", [False, True])
@torch.no_grad()
def test_export_and_whole_graphs_do_not_see_it(strict: bool) -> None:
    model = model_with(3).eval()
    x = torch.randn(1, 3, 32, 32)
    assert torch.allclose(torch.export.export(model, (x,), strict=strict).module()(x), model(x), atol=1e-4)
    torch._dynamo.reset()
    assert torch.allclose(torch.compile(model, backend="eager", fullgraph=True)(x), model(x), atol=1e-4)


@pytest.mark.parametrize("value", [0, -3, 2.5, True, "many"])
def test_a_wrong_number_of_steps_is_refused(value: object) -> None:
    with pytest.raises(RequestError, match="anneal: expected a number of training steps"):
        timm.create_model("t_test_resnet", anneal_steps=value)


def test_nothing_to_anneal_is_said() -> None:
    with pytest.raises(RequestError, match="anneal: expected an end above the 1 at which the model starts, got 1"):
        timm.create_model("t_test_resnet", anneal_steps=10, temperature=1.0)
    with pytest.raises(RequestError, match="anneal_end: has no effect without anneal_steps"):
        timm.create_model("t_test_resnet", anneal_end=0.5)
    for end in (0, -1.0, float("nan"), float("inf"), "1"):
        with pytest.raises(RequestError, match="anneal: expected an end above 0, got"):
            timm.create_model("t_test_resnet", anneal_steps=10, anneal_end=end)


class TestOfAnyModel:
    """`tcnn.anneal`, for a model that timm did not make."""

    def converted(self, **options: Any) -> nn.Module:
        net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(4, 4, 3, padding=1))
        return tcnn.convert(net, input_size=(32, 32), **options).model.train()

    def test_it_raises_its_own_temperature(self) -> None:
        model = self.converted()
        tcnn.anneal(model, 4)
        assert steps(model, 6) == pytest.approx([formula(n, 4) for n in range(6)], rel=1e-6)

    @pytest.mark.parametrize("end", [0.25, 1.0, 2])
    def test_it_ends_where_it_is_told_and_goes_on_there(self, end: float) -> None:
        model = self.converted()
        tcnn.anneal(model, 5, end=end)
        expected = [math.exp(math.log(1 / 46) + min(1, (n + 1) / 5) * math.log(46 * end)) for n in range(7)]
        assert steps(model, 3) == pytest.approx(expected[:3], rel=1e-6)
        again = self.converted()
        tcnn.anneal(again, 5, end=end)
        again.load_state_dict(model.state_dict())
        assert steps(again, 4) == pytest.approx(expected[3:], rel=1e-6)
        later = self.converted()
        later.load_state_dict(model.state_dict())  # before the call, as Lightning does
        tcnn.anneal(later, 5, end=end)
        assert steps(later, 4) == pytest.approx(expected[3:], rel=1e-6)

    def test_a_second_call_takes_the_place_of_the_first(self) -> None:
        model = self.converted()
        tcnn.anneal(model, 100)
        tcnn.anneal(model, 4)
        assert steps(model, 2) == pytest.approx([formula(n, 4) for n in range(2)], rel=1e-6)

    def test_a_second_call_reads_a_state_that_was_written_back_in_place(self) -> None:
        """As docs/trainers.md has it of those who restore the best weights without `load_state_dict`."""
        model = self.converted()
        tcnn.anneal(model, 8)
        steps(model, 3)
        best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        expected = steps(model, 2)
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                tensor.copy_(best[name])
        tcnn.anneal(model, 8)
        assert steps(model, 2) == pytest.approx(expected, rel=1e-6)

    def test_that_of_a_wrapped_model_is_the_models(self) -> None:
        model = self.converted()
        tcnn.anneal(nn.DataParallel(model), 4)
        assert steps(model, 1) == pytest.approx([formula(0, 4)], rel=1e-6)

    def test_a_model_that_was_not_converted_is_told(self) -> None:
        with pytest.raises(RequestError, match=r"^anneal: Conv2d was not converted by tcnn; call tcnn.convert first$"):
            tcnn.anneal(nn.Conv2d(3, 4, 3), 10)

    def test_groups_have_the_papers_rates_or_others(self) -> None:
        model = self.converted()
        gates = {id(m.gating_param) for m in model.modules() if isinstance(m, tcnn.GPSA2d)}
        for options, rates in (({}, (1e-4, 0.1)), ({"lr": 2e-3, "gating_lr": 0.5}, (2e-3, 0.5))):
            groups = tcnn.parameter_groups(model, **options)
            found = {id(p): group["lr"] for group in groups for p in group["params"]}
            assert {found[key] for key in found.keys() - gates} == {rates[0]}
            assert {found[key] for key in gates} == {rates[1]}


def test_files_hold_the_model_without_the_loop(tmp_path: Path, assert_same_state: Callable[..., None]) -> None:
    model = model_with(4)
    steps(model, 2)
    loaded = tcnn.load(tcnn.save(model, tmp_path / "t.safetensors")).train()
    assert_same_state(loaded, model)
    assert step(loaded) == pytest.approx(formula(1, 4), rel=1e-6)
    save_for_hf(model, tmp_path / "hub", safe_serialization=True)
    again = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).train()
    assert step(again) == pytest.approx(formula(2, 4), rel=1e-6), "timm's own layout keeps the argument"


def test_timms_train_script_reaches_it() -> None:
    """`--model-kwargs anneal_steps=3` is parsed by timm into the keyword that the tests here give."""
    import argparse

    from timm.utils import ParseKwargs

    parser = argparse.ArgumentParser()
    parser.add_argument("--model-kwargs", nargs="*", default={}, action=ParseKwargs)
    arguments = parser.parse_args(["--model-kwargs", "anneal_steps=3", "stride=remove"])
    model = timm.create_model("t_test_resnet", **arguments.model_kwargs).train()
    assert steps(model, 3)[-1] == 1
