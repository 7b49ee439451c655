"""Plans of fine-tuning: what they say against the run itself, and against other ways to count."""

import math
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch
from sampled import crossed
from tiny_runs import TwoConvs, colours, run, tiny
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import tcnn
from tcnn.config import FinetuneConfig
from tcnn.layers.backends import convolution
from tcnn.planning import machine
from tcnn.planning import plan as planned
from tcnn.planning.memory import step_bytes
from tcnn.planning.plan import Target, epoch_seconds, plan
from tcnn.planning.trial import Pace, Phase, Trial
from tcnn.training.distributed import Processes
from tcnn.training.preparing.inputs import open_data_sets, training_loader
from tcnn.training.preparing.prepare import prepare
from tcnn.training.recipe.optim import create_optimizer, gpsa_layers
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

    def test_a_teacher_and_a_model_are_left_as_they_are(self) -> None:
        model, teacher = TwoConvs().train(), TwoConvs().eval()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with_one = step_bytes(model, lambda m: create_optimizer(m, tiny()), (2, 3, 16, 16), teacher=teacher)
        without = step_bytes(model, lambda m: create_optimizer(m, tiny()), (2, 3, 16, 16))
        assert with_one - without >= sum(p.nbytes for p in teacher.parameters())
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())


class TestPlan:
    """The plan of a run that is then made."""

    def test_it_says_what_the_run_then_is(self, photos: Path, tmp_path: Path) -> None:
        out = tmp_path / "run"
        said: list[str] = []
        made = plan(TwoConvs(), str(photos), config=tiny(epochs=3), out=out, seconds=0.2, say=said.append)
        assert not out.exists()
        assert said[:2] == ["building the model", "computing memory"]
        result = run(TwoConvs(), photos, out, epochs=3)
        assert (made.train_images, made.val_images) == (result.train_images, result.val_images)
        assert (made.updates, made.result.layers) == (result.updates, result.layers)
        assert made.classes == result.classes
        best, points = (out / "best.safetensors").stat().st_size, list((out / "resume").iterdir())
        assert made.disk.checkpoint == pytest.approx(best, abs=12_000)  # the file says much of itself
        assert made.disk.resume_point == pytest.approx(points[0].stat().st_size, abs=12_000)
        assert len(made.epoch_seconds) == 3
        assert made.seconds == pytest.approx(math.fsum(made.epoch_seconds))
        assert [phase.end for phase in made.phases][-1] == result.updates
        assert all(before.end == after.begin for before, after in pairwise(made.phases))
        assert made.memory.fits
        assert made.memory.measured is not None
        assert made.memory.measured >= made.memory.computed
        assert not made.problems

    def test_before_and_after_are_counted(self, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(planned, "step_bytes", lambda model, made, shape, *others: shape[0] << 20)  # see above
        made = plan("test_resnet", str(photos), config=tiny(size=32), seconds=0)
        cnn = plan("test_resnet", str(photos), config=tiny(size=32, convert=False), seconds=0)
        assert cnn.source is None
        assert made.source == cnn.result
        assert made.result.parameters > cnn.result.parameters
        assert made.result.flops is not None
        assert cnn.result.flops is not None
        assert made.result.flops > cnn.result.flops
        assert (made.phases, made.epoch_seconds, made.seconds, made.memory.measured) == ((), (), None, None)
        assert "classifier replaced: 1000 → 3 classes" in made.notes

    def test_what_does_not_fit_is_not_tried(
        self, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = tiny(size=96, anneal="hold", batch_size=4)
        needed = plan(TwoConvs(), str(photos), config=config, seconds=0).memory
        room = (needed.computed + needed.waiting) * 5 // 6144 * 1024
        monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
        (tmp_path / "meminfo").write_text(f"MemAvailable:  {room // 1024} kB\n")
        short = plan(TwoConvs(), str(photos), config=config, seconds=1)
        assert not short.memory.fits
        assert short.memory.configured == 4
        assert 1 <= short.memory.micro_batch < 4
        assert short.memory.computed + short.memory.waiting <= room
        assert short.epoch_seconds == ()
        assert short.problems == (
            f"memory: 4 images at once do not fit into the {room / 1e9:.3g} GB free on cpu; give --set "
            f"micro_batch={short.memory.micro_batch}",
        )
        (tmp_path / "meminfo").write_text("MemAvailable:  4 kB\n")
        none = plan(TwoConvs(), str(photos), config=config, seconds=1)
        assert none.memory.micro_batch == 0
        (problem,) = none.problems
        assert "nor does one; choose a smaller --size" in problem

    def test_a_disk_that_is_too_small_is_named(self, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "free_disk_bytes", lambda path: 10)
        (problem,) = plan(TwoConvs(), str(photos), config=tiny(), seconds=0).problems
        assert problem.startswith("disk: the run takes 0.00 GB")

    def test_less_than_no_time_is_refused(self, photos: Path) -> None:
        with pytest.raises(tcnn.TcnnError, match="seconds: expected 0 or more, found -1"):
            plan(TwoConvs(), str(photos), config=tiny(), seconds=-1)

    @pytest.mark.slow
    def test_the_cnn_beside_it_is_planned_for_as_well(self, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        alone = plan(TwoConvs(), str(photos), config=tiny(), seconds=0)
        both = plan(TwoConvs(), str(photos), config=tiny(), seconds=0, baseline=True)
        cnn = plan(TwoConvs(), str(photos), config=tiny(convert=False), seconds=0)
        assert alone.baseline is None
        assert both.baseline is not None
        assert (both.baseline.result, both.baseline.updates) == (cnn.result, cnn.updates)
        assert both.baseline.memory.computed == cnn.memory.computed
        assert both.disk_bytes == alone.disk.total + cnn.disk.total
        monkeypatch.setattr(machine, "free_disk_bytes", lambda path: alone.disk.total + 1)
        assert plan(TwoConvs(), str(photos), config=tiny(), seconds=0).problems == ()
        (problem,) = plan(TwoConvs(), str(photos), config=tiny(), seconds=0, baseline=True).problems
        assert problem.startswith("disk: the run takes")
        with pytest.raises(tcnn.TcnnError, match="baseline: convert is false"):
            plan(TwoConvs(), str(photos), config=tiny(convert=False), seconds=0, baseline=True)

    def test_another_machine_is_planned_for_by_computation_alone(self, photos: Path) -> None:
        gpu = Target(torch.device("cuda"), 8 << 30)
        made = plan(TwoConvs(), str(photos), config=tiny(), seconds=0, target=gpu)
        assert (made.device, made.memory.free, made.problems) == ("cuda", 8 << 30, ())
        with pytest.raises(tcnn.TcnnError, match="a plan for another one needs seconds=0"):
            plan("test_resnet", str(photos), config=tiny(), target=gpu)

    @pytest.mark.slow
    def test_another_machine_that_is_too_small(self, photos: Path) -> None:
        gpu, pair = Target(torch.device("cuda"), 8 << 30), tiny(batch_size=2)
        little = plan(TwoConvs(), str(photos), config=pair, seconds=0, target=gpu._replace(free=1 << 18))
        assert "do not fit into the 0.000262 GB free on cuda" in little.problems[0]
        # One image of 2×2 leaves one pixel, of which batch normalisation cannot learn.
        normed = nn.Sequential(TwoConvs().stem, nn.BatchNorm2d(8), nn.Conv2d(8, 3, 3, padding=1), nn.Flatten())
        tight = gpu._replace(free=1 << 10)
        one = plan(normed, str(photos), config=tiny(size=2, batch_size=2), seconds=0, target=tight)
        assert "nor does one" in one.problems[0] and one.memory.micro_batch == 0

    @pytest.mark.slow
    def test_what_a_smaller_part_is_refused_for_is_not_taken_for_a_lack_of_memory(self, photos: Path) -> None:
        """Only batch normalisation's refusal of a single value means that no smaller part can be learned from."""

        class Pairs(TwoConvs):
            def forward(self, x: Tensor) -> Tensor:
                if self.training and len(x) == 1:
                    raise ValueError("images come in pairs")
                return super().forward(x)

        gpu = Target(torch.device("cuda"), 1 << 20)
        with pytest.raises(ValueError, match="images come in pairs"):
            plan(Pairs(), str(photos), config=tiny(size=64, batch_size=2), seconds=0, target=gpu)
