"""Who learns in an update: what is held does not move, and begins without a memory."""

import copy
import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from sampled import sampled
from timm.optim import create_optimizer_v2
from tiny_runs import TwoConvs, colours, run, seeded, tiny
from torch import Tensor, nn
from torch.utils import cpp_extension

from tcnn import convert
from tcnn.config import ConversionConfig
from tcnn.models.running import gpsa_layers
from tcnn.training.distributed import Processes
from tcnn.training.runs.resume import Position, points, read_point, save_point
from tcnn.training.updates.learner import Learner
from tcnn.training.updates.step import MixedPrecision

LAYER = "last"
GATE, POSITIONS = f"{LAYER}.gating_param", (f"{LAYER}.locality_raw", f"{LAYER}.attention_centers")


@cache
def converted() -> nn.Module:
    return convert(seeded(TwoConvs), target=LAYER, temperature=0.5, input_size=(32, 32)).model


def learner(model: nn.Module | None = None, steps: int = 3, **options: Any) -> Learner:
    """Annealed over the first three updates unless told otherwise; τ begins where gates have gradients."""
    config = tiny(epochs=4, lr=1e-3, clip_grad=1.0, **options)
    if model is None:
        model = copy.deepcopy(converted())
    precision = MixedPrecision(config, torch.device("cpu"))
    return Learner(model, config, steps=steps, precision=precision, processes=Processes())


def learn(own: Learner, updates: int) -> dict[str, Tensor]:
    """One update, the last of so many; what it has changed."""
    before = {name: p.detach().clone() for name, p in own.model.named_parameters()}
    torch.manual_seed(updates)
    own.set_temperatures(updates - 1)
    own.accumulate([(torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 0]))], None)
    own.update(updates)
    return {name: p.detach() - before[name] for name, p in own.model.named_parameters()}


def memory(own: Learner, name: str) -> dict[str, Any]:
    return own.optimizer.state.get(own.model.get_parameter(name), {})


@pytest.mark.parametrize("opt", ["adamw", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lamb", "lion"))])
@pytest.mark.parametrize(("hold", "held"), [("gates", (GATE,)), ("all", (GATE, *POSITIONS))])
def test_what_is_held_neither_moves_nor_is_remembered(hold: str, held: tuple[str, ...], opt: str) -> None:
    own = learner(hold=hold, opt=opt)
    for update in (1, 2, 3):
        changes = learn(own, update)
        for name in (GATE, *POSITIONS):
            assert bool((changes[name].abs() > 1e-5).any()) == (update > 1 and name not in held), (update, name)
            assert name not in held or not (changes[name].any() or memory(own, name))
        assert update == 1 or changes["head.weight"].any(), "the warm-up begins at next to nothing"
    changes = learn(own, 4)
    assert all(changes[name].any() for name in (GATE, *POSITIONS))


def test_the_first_step_of_a_gate_that_was_held_is_a_first_step() -> None:
    """AdamW's first step is the learning rate in every element, but for its ε beside tiny gradients."""
    own = learner(hold="gates")
    for update in (1, 2, 3):
        learn(own, update)
    rate = next(g["lr"] for g in own.optimizer.param_groups if any(p is gate(own) for p in g["params"]))
    change = learn(own, 4)[GATE]
    assert ((change.abs() > 0.8 * rate) & (change.abs() < 1.001 * rate)).all()
    assert float(memory(own, GATE)["step"]) == 1


def gate(own: Learner) -> nn.Parameter:
    return own.model.get_parameter(GATE)


@pytest.mark.parametrize("opt", sampled(["adamw", "adagrad", "nadamw"], ["adamw", "adagrad"]))
def test_the_memory_of_all_three_begins_when_annealing_ends(opt: str) -> None:
    """Those that learned before are forgotten too; Adagrad has a memory from the start."""
    own = learner(hold="gates", opt=opt)
    learn(own, 1), learn(own, 2)
    fresh = {name: dict(memory(learner(hold="gates", opt=opt), name)) for name in (GATE, *POSITIONS, "head.weight")}
    assert any(value.any() for value in memory(own, POSITIONS[0]).values() if isinstance(value, Tensor))
    learn(own, 3)
    for name in (GATE, *POSITIONS):
        found = memory(own, name)
        assert found.keys() == fresh[name].keys()
        assert all(torch.equal(torch.as_tensor(found[key]), torch.as_tensor(fresh[name][key])) for key in found)
    assert memory(own, "head.weight")
    learn(own, 4)


def test_nothing_is_forgotten_unless_something_was_held() -> None:
    own = learner()
    for update in (1, 2, 3):
        learn(own, update)
    assert float(memory(own, GATE)["step"]) == 3


def test_held_for_good() -> None:
    own = learner(anneal="hold")
    before = own.temperatures
    for update in (1, 2, 3, 4, 5):
        changes = learn(own, update)
        assert not any(changes[name].any() for name in (GATE, *POSITIONS))
    assert changes[f"{LAYER}.proj"].any()
    assert own.temperatures == before == (0.5, 0.5)


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("attention_lr", {"query", "key"}),
        ("value_lr", {"value"}),
        ("output_lr", {"proj"}),
        ("position_lr", {"locality_raw", "attention_centers"}),
        ("gating_lr", {"gating_param"}),
    ],
)
def test_parts_of_a_layer_learn_at_a_rate_of_their_own(setting: str, names: set[str]) -> None:
    model = copy.deepcopy(converted())
    model.get_submodule("stem").requires_grad_(False)  # so that the layer's parameters come first
    own = learner(model, **{"gating_lr": 1e-3, "position_lr": 1e-3, setting: 0.02})
    for update in range(1, 4):
        learn(own, update)  # the warm-up
    rates = {id(p): group["lr"] for group in own.optimizer.param_groups for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in own.optimizer.param_groups for p in group["params"]}
    common = rates[id(own.model.head.weight)]
    assert own.lr == common, "what metrics.jsonl and summary.csv have"
    for layer in gpsa_layers(own.model).values():
        for name in ("query", "key", "value", "proj", "locality_raw", "attention_centers", "gating_param"):
            parameter = layer.get_parameter(name)
            assert rates[id(parameter)] == (pytest.approx(20 * common, rel=0.01) if name in names else common), name
            decays_too = name in {"query", "key", "proj"}
            assert decays[id(parameter)] == (own.config.weight_decay if decays_too else 0), name


@pytest.mark.parametrize("opt", ["adamw", "sgd"])
def test_the_output_of_content_heads_learns_at_a_share_of_the_rate(opt: str) -> None:
    """As an optimizer that has their columns in a matrix of their own, at that rate, and the same gradients."""
    conversion = {"content_heads": 2, "target": LAYER, "query_key": "mimetic"}
    model = convert(seeded(TwoConvs), **conversion, input_size=(32, 32)).model
    own = learner(model, opt=opt, content_output_scale=0.25, weight_decay=0.5, conversion=conversion)
    layer = gpsa_layers(own.model)[LAYER]
    with torch.no_grad():
        layer.proj[:, -2 * layer.in_channels :].normal_()  # of zeros there would be no weight decay to see
    parts = [part.detach().clone().requires_grad_() for part in layer.proj.tensor_split([-2 * layer.in_channels], 1)]
    reference = create_optimizer_v2(
        [{"params": [part], "lr": 0.0, "weight_decay": 0.5} for part in parts],
        opt=opt, lr=1.0, weight_decay=0.5, momentum=0.9,
    )  # fmt: skip
    shares = (1.0, 0.25)
    group = next(group for group in own.optimizer.param_groups if any(p is layer.proj for p in group["params"]))
    for update in range(1, 5):
        torch.manual_seed(update)
        own.set_temperatures(update - 1)
        own.accumulate([(torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 0]))], None)
        nn.utils.clip_grad_norm_(own.model.parameters(), 1.0)
        gradients = layer.get_parameter("proj").grad
        assert gradients is not None
        for part, grad, share, of in zip(
            parts, gradients.tensor_split([-2 * layer.in_channels], 1), shares, reference.param_groups, strict=True
        ):
            part.grad, of["lr"] = grad.clone(), share * group["lr"]
        own.update(update)
        reference.step()
    torch.testing.assert_close(layer.proj.detach(), torch.cat(parts, 1).detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_resumed_run_tells_the_temperatures_of_its_last_update(done: int, tmp_path: Path) -> None:
    """A validation that was cut off is told with them; layers have them in float32, 0.70000005 for 0.7."""
    own = learner(gate_temperature=0.7, position_temperature=0.4)
    for update in range(1, done + 1):
        learn(own, update)
    point = save_point(tmp_path, Position(updates=done, step=done, steps=3), own.model, own.optimizer, None, {}, keep=1)
    resumed = learner(gate_temperature=0.7, position_temperature=0.4)
    resumed.restore(read_point(point))
    assert resumed.temperatures == own.temperatures
    assert done < 3 or resumed.temperatures == (0.7, 0.4)


def test_what_is_matched_comes_back(tmp_path: Path) -> None:
    """The convolutions of the start, not those that the layers have become."""
    own = learner(matching=1.0)
    assert own.matching is not None
    learn(own, 1)
    kept = {name: tensor.clone() for name, tensor in own.matching.state.items()}
    path = save_point(
        tmp_path, Position(updates=1, step=1, steps=3), own.model, own.optimizer, None, {}, 1, own.matching.state
    )
    model = copy.deepcopy(own.model)
    with torch.no_grad():
        model.get_submodule(LAYER).proj.mul_(2)
    again = learner(model, matching=1.0)
    again.restore(read_point(path))
    assert again.matching is not None and again.matching.state.keys() == kept.keys() != set()
    assert all(torch.equal(again.matching.state[name], tensor) for name, tensor in kept.items())


def test_a_late_conversion_has_its_settings() -> None:
    own = learner(seeded(TwoConvs), convert_at=1)
    learn(own, 1)
    own.convert(ConversionConfig(target=LAYER, content_heads=2, input_size=(32, 32)), updates=1, converted_at=1)
    assert [(name, layer.content_heads) for name, layer in gpsa_layers(own.model).items()] == [(LAYER, 2)]


def test_the_average_has_the_temperatures_of_the_model() -> None:
    own = learner(ema=0.5, gate_temperature=0.7)
    for update in (1, 2, 3):
        learn(own, update)
        assert own.ema is not None
        for one, other in zip(gpsa_layers(own.model).values(), gpsa_layers(own.ema).values(), strict=True):
            assert one.gate_temperature.equal(other.gate_temperature)
            assert one.position_temperature.equal(other.position_temperature)
    assert other.gate_temperature.item() == pytest.approx(0.7)


def test_annealed_on_the_way(tmp_path: Path) -> None:
    """A whole run: λ stands still for the first epoch, in the average as well."""
    data = colours(tmp_path / "data")
    run(seeded(TwoConvs), data, tmp_path / "run", hold="all", checkpoint_steps=1, keep=99, ema=0.5, anneal_path="drift")
    seen = {p.position.updates: p.tensors for p in map(read_point, points(tmp_path / "run" / "resume"))}
    for name in (GATE, *POSITIONS):
        for kind in ("model", "ema"):
            values = [seen[update][f"{kind}.{name}"] for update in range(1, 7)]
            assert all(value.equal(values[0]) for value in values[:3])
        assert not values[5].equal(values[0])


@pytest.mark.slow
def test_compiling_says_nothing_of_a_toolkit_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's compiler for the CPU looks for CUDA, too; other lines of the same logger are heard."""
    learner(compile=True)
    monkeypatch.setenv("CUDA_HOME", "/usr")
    heard: list[logging.LogRecord] = []
    handler, logger = logging.Handler(), logging.getLogger(cpp_extension.__name__)
    monkeypatch.setattr(handler, "emit", heard.append)
    logger.addHandler(handler)
    try:
        cpp_extension._find_cuda_home()
        logger.warning("another")
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in heard] == ["another"]
