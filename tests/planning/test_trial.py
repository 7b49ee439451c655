"""What a trial of a run tells a plan: which updates take alike, and the memory of a step against what is allocated;
free and largest memory, by the files that Linux has for it.
"""

from collections.abc import Callable
from itertools import accumulate
from mmap import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sampled import crossed
from tiny_runs import TwoConvs, colours, tiny
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import tcnn
from tcnn.config import FinetuneConfig
from tcnn.layers.backends import convolution
from tcnn.models.running import gpsa_layers
from tcnn.planning import memory
from tcnn.planning import trial as trials
from tcnn.planning.memory import optimizer_bytes, step_bytes
from tcnn.planning.trial import Pace, Phase, Trial, epoch_seconds
from tcnn.training.distributed import Processes
from tcnn.training.preparing.inputs import open_data_sets, training_loader
from tcnn.training.preparing.prepare import prepare
from tcnn.training.recipe.optim import create_optimizer
from tcnn.training.runs.resume import named_states
from tcnn.training.updates.learner import Learner
from tcnn.training.updates.step import MixedPrecision


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("photos"))


def trial_of(photos: Path, config: FinetuneConfig) -> Trial:
    """A trial of a tiny run."""
    data, validation, config = open_data_sets(str(photos), None, config)
    start = prepare(TwoConvs(), config, data.class_names)
    loader = training_loader(start, data, config, Processes(), torch.device("cpu"))
    learner = Learner(
        start.model, config, steps=loader.steps, precision=MixedPrecision(config, torch.device("cpu")),
        processes=Processes(), trunk=start.trunk,
    )  # fmt: skip
    return Trial(learner, loader, validation, config, start.size)


class TestPhases:
    """Which updates take alike, by layers that are set as the run sets them."""

    def test_a_held_run_is_a_convolution_to_its_end(self, photos: Path) -> None:
        assert list(trial_of(photos, tiny(anneal="hold")).phases()) == [Phase("convolution", 0, 6)]

    def test_an_annealed_run_leaves_the_hard_limit_at_one_update(self, photos: Path) -> None:
        config = tiny(epochs=40, anneal_epochs=30)
        trial = trial_of(photos, config)
        found = list(trial.phases())
        learner, hard = trial.learner, []
        for update in range(120):
            learner.set_temperatures(update)
            hard.append(all(convolution.is_hard(x.tensors, x.geometry) for x in gpsa_layers(learner.model).values()))
        leaves = hard.index(False)
        assert 0 < leaves < 90
        assert not any(hard[leaves:])
        assert found == [Phase("convolution", 0, leaves), Phase("attention", leaves, 120)]

    def test_a_cnn_is_converted_at_its_epoch_and_matched_while_annealed(self, photos: Path) -> None:
        trial = trial_of(photos, tiny(epochs=40, convert_at=1, anneal_epochs=30, matching=1.0))
        names, layers, matched = [], [], []
        bounds = [0]
        for phase in trial.phases():
            names.append(phase.name)
            layers.append(len(gpsa_layers(trial.learner.model)))
            matched.append(trial.learner.matching is not None)
            assert phase.begin == bounds[-1]
            bounds.append(phase.end)
        assert names == ["CNN", "convolution", "attention, matched", "attention"]
        assert layers == [0, 1, 1, 1]
        assert matched == [False, True, True, False]
        assert bounds[1] == 3
        assert bounds[3] == 93
        assert bounds[4] == 120

    def test_a_cnn_stays_one(self, photos: Path) -> None:
        assert list(trial_of(photos, tiny(convert=False)).phases()) == [Phase("CNN", 0, 6)]


class Clock:
    """Time goes by only as it is spent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(trials, "time", SimpleNamespace(monotonic=lambda: self.now))

    def takes(self, seconds: Callable[..., float], then: Callable[..., object] = lambda *given, **options: None) -> Any:
        """`then`, in so many seconds by what it is given."""

        def call(*given: Any, **options: Any) -> object:
            self.now += seconds(*given)
            return then(*given, **options)

        return call


@pytest.mark.parametrize("mixup", [0.0, 0.8])
def test_what_is_measured_is_what_it_takes(photos: Path, monkeypatch: pytest.MonkeyPatch, mixup: float) -> None:
    """A micro-batch takes a second, an update a quarter, statistics half a second for each of their batches, and a
    validation two seconds and half a second for each of its six images, of which only five are looked at."""
    config = tiny(batch_size=8, micro_batch=2, anneal_epochs=1, bn_reestimate=3, mixup=mixup)
    made, clock, seen = trial_of(photos, config), Clock(monkeypatch), list[tuple[int, ...]]()
    monkeypatch.setattr(made.learner, "accumulate", clock.takes(
        lambda batches, chunk: 1.0, lambda batches, chunk: seen.append(tuple(batches[0][1].shape))
    ))  # fmt: skip
    monkeypatch.setattr(made.learner, "update", clock.takes(lambda updates: 0.25))
    monkeypatch.setattr(trials, "reestimate_batch_norm", clock.takes(lambda model, images, trunk: 0.5 * len(images)))
    monkeypatch.setattr(trials, "evaluate", clock.takes(lambda model, images: 2 + 0.5 * len(images)))
    pace = made.time(Phase("attention", 3, 6), 8.0)
    assert pace == pytest.approx(Pace(micro_batch=1.0, update=0.25, reestimation=0.5 * 3 * 4, validation=5.0))
    assert seen == [(2, 3) if mixup else (2,)] * 5, "one to warm up, then half of the eight seconds"


def test_an_epoch_adds_up_the_phases_that_it_lies_in() -> None:
    first, second = Pace(0.5, 0.1, 0.0, 7.0), Pace(2.0, 0.3, 4.0, 11.0)
    found = list(epoch_seconds([(Phase("a", 0, 5), first), (Phase("b", 5, 12), second)], 4, 3, 3))
    assert found == pytest.approx([4 * 1.6 + 7, 1 * 1.6 + 3 * 6.3 + 15, 4 * 6.3 + 15])


def allocated(model: nn.Module, config: FinetuneConfig, images: Tensor) -> int:
    """The most bytes that PyTorch's allocator hands out during a second step, and what was there before it."""
    optimizer = create_optimizer(model, config)
    for _ in range(2):
        held = (*model.parameters(), *model.buffers(), images, *(
            value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
        ))  # fmt: skip
        before = sum(tensor.nbytes for tensor in held)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            model(images).square().mean().backward()
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    results = profiler.profiler.kineto_results  # type: ignore[union-attr]
    changes = [event.nbytes() for event in results.events() if event.name() == "[memory]"]
    return before + max(accumulate(changes))


class TestMemory:
    """Bytes of a step, from shapes alone, against those that are allocated."""

    @pytest.mark.parametrize(("shape", "tau"), crossed([(6, (14, 11)), (4, (20, 18))], [1 / 46, 1.0], 2))
    def test_a_step_takes_what_pytorch_allocates(self, shape: tuple[int, tuple[int, int]], tau: float) -> None:
        batch, side = shape
        source = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.Flatten()
        )
        model = tcnn.convert(source, target="2", temperature=tau, input_size=side).model.train()
        images = torch.randn(batch, 3, *side)
        found = step_bytes(model, lambda made: create_optimizer(made, tiny()), tuple(images.shape))
        assert found == pytest.approx(allocated(model, tiny(), images), rel=0.01)

    def test_the_hard_limit_keeps_no_attention(self) -> None:
        def found(tau: float) -> int:
            source = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten())
            model = tcnn.convert(source, target="0", temperature=tau, input_size=(24, 24)).model.train()
            return step_bytes(model, lambda made: create_optimizer(made, tiny()), (4, 3, 24, 24))

        maps = 4 * 4 * 9 * 24**4  # bytes of the attention weights of four images, nine heads
        assert found(1.0) - found(1 / 46) > maps

    @pytest.mark.parametrize("frozen", ["0", "2", "2.gating_param"])
    def test_a_frozen_part_has_no_gradient_and_no_state(self, frozen: str) -> None:
        source = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.Flatten())
        model = tcnn.convert(source, target="2", temperature=1.0, input_size=(14, 11)).model.train()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not f"{name}.".startswith(f"{frozen}."))
        found = step_bytes(model, lambda made: create_optimizer(made, tiny()), (6, 3, 14, 11))
        assert found == pytest.approx(allocated(model, tiny(), torch.randn(6, 3, 14, 11)), rel=0.01)

    def test_slow_weights_that_come_later_are_counted(self) -> None:
        plain, ahead = (
            step_bytes(TwoConvs().train(), lambda made, opt=opt: create_optimizer(made, tiny(opt=opt)), (2, 3, 16, 16))
            for opt in ("adamw", "lookahead_adamw")
        )
        assert ahead - plain >= sum(parameter.nbytes for parameter in TwoConvs().parameters())

    @pytest.mark.parametrize("opt", ["muon", "adamp"])
    def test_an_optimizer_whose_steps_depend_on_values(self, opt: str) -> None:
        model = TwoConvs().train()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        found = step_bytes(model, lambda made: create_optimizer(made, tiny(opt=opt)), (2, 3, 64, 64))
        state = optimizer_bytes(model, lambda made: create_optimizer(made, tiny(opt=opt)))
        optimizer = create_optimizer(model, tiny(opt=opt))
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        optimizer.step()
        assert state == sum(value.nbytes for value in named_states(model, optimizer)[0].values())
        assert found > state + 2 * sum(parameter.nbytes for parameter in model.parameters())

    def test_a_teacher_may_be_frozen(self) -> None:
        model, free, frozen = TwoConvs().train(), TwoConvs().eval(), TwoConvs().eval().requires_grad_(False)
        taken = [
            step_bytes(model, lambda m: create_optimizer(m, tiny()), (2, 3, 16, 16), teacher=teacher)
            for teacher in (free, frozen)
        ]
        assert taken[0] == taken[1]

    def test_a_teacher_and_a_model_are_left_as_they_are(self) -> None:
        model, teacher = TwoConvs().train(), TwoConvs().eval()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with_one = step_bytes(model, lambda m: create_optimizer(m, tiny()), (2, 3, 16, 16), teacher=teacher)
        without = step_bytes(model, lambda m: create_optimizer(m, tiny()), (2, 3, 16, 16))
        assert with_one - without >= sum(p.nbytes for p in teacher.parameters())
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())


def fields(file: Path, **values: int) -> Path:
    """A file as those of /proc are, in kB."""
    file.write_text("".join(f"{name}:  {value // 1024} kB\n" for name, value in values.items()))
    return file


def test_the_least_of_machine_and_containers_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMINFO", fields(tmp_path / "meminfo", MemAvailable=8 << 30))
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "GROUP", tmp_path / "cgroup")
    own = tmp_path / "groups" / "team" / "job"
    own.mkdir(parents=True)
    (tmp_path / "cgroup").write_text("0::/team/job\n")
    assert memory.free_bytes(torch.device("cpu")) == 8 << 30
    for group, limit, taken, cache in ((own, "max", 0, 0), (own.parent, str(4 << 30), 3 << 30, 1 << 29)):
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{taken}\n")
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")
    assert memory.free_bytes(torch.device("cpu")) == (1 << 30) + (1 << 29)


def test_where_nothing_is_known_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    monkeypatch.setattr(memory, "GROUP", tmp_path / "none")
    assert memory.free_bytes(torch.device("cpu")) is None


def test_the_peak_begins_anew() -> None:
    cpu = torch.device("cpu")
    memory.reset_peak(cpu)
    with mmap(-1, 64 << 20) as held:  # the system's own, which no allocator keeps
        held.write(bytes(1) * len(held))
        with_it = memory.peak_bytes(cpu)
    memory.reset_peak(cpu)
    without = memory.peak_bytes(cpu)
    assert with_it is not None
    assert without is not None
    assert with_it - without > 48 << 20
