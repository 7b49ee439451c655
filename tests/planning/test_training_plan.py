"""Plans of fine-tuning: what they say against the run itself, and against other ways to count."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import TwoConvs, colours, run, tiny
from torch import Tensor, nn

import tcnn
from tcnn.planning import memory
from tcnn.planning import plan as planned
from tcnn.planning.plan import Target, plan


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("photos"))


class Wide(TwoConvs):
    """With so many channels that what its files say of themselves is little."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = nn.Conv2d(3, 64, 3, stride=4, padding=1), nn.Conv2d(64, 128, 3, stride=2, padding=1)
        self.head = nn.Linear(128, 3)


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
        steps, phases = made.updates // made.epochs, made.phases
        updates = sum((phase.end - phase.begin) * phase.seconds_per_update for phase in phases)
        ends = [next(phase for phase in phases if end <= phase.end) for end in range(steps, made.updates + 1, steps)]
        assert made.seconds == pytest.approx(updates + sum(phase.seconds_per_validation for phase in ends))
        assert all(phase.images_per_second * phase.seconds_per_update == pytest.approx(8) for phase in phases)
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
        monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
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

    def test_memory_is_that_of_the_temperature_at_which_the_run_ends(self, photos: Path) -> None:
        """Converted an epoch before it ends, a T-CNN that is annealed slowly is a convolution to the last update."""
        computed = {
            name: plan(TwoConvs(), str(photos), config=tiny(size=96, epochs=40, **options), seconds=0).memory.computed
            for name, options in {
                "late": {"convert_at": 39, "anneal_epochs": 30},
                "held": {"convert_at": 39, "anneal": "hold"},
                "early": {"convert_at": 1, "anneal_epochs": 30},
            }.items()
        }
        assert computed["late"] == computed["held"] < computed["early"]

    def test_how_many_images_fit_is_foreseen(self, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each further computation takes as long as building the model: one more is enough where passes cost alike."""
        model, tried = TwoConvs(), list[int]()
        own = sum(parameter.nbytes for parameter in model.parameters())

        def taken(model: object, make: object, shape: tuple[int, ...], *others: object) -> int:
            tried.append(shape[0])
            return (4 + shape[0]) * own  # a pass of an image takes as much as the parameters

        monkeypatch.setattr(planned, "step_bytes", taken)
        little = Target(torch.device("cuda"), 11 * own)  # 16 images take 20, four of them 8 and 3 for those that wait
        config = tiny(convert=False, size=8, batch_size=16, amp="float32")
        made = plan(model, str(photos), config=config, seconds=0, target=little)
        assert (made.memory.micro_batch, tried) == (4, [16, 4])

    @pytest.mark.parametrize(
        "options",
        [{"freeze": "trunk"}, {"freeze_gpsa": True}, {"gating": False}, {"freeze": "spatial", "convert": False}],
        ids=["trunk", "gpsa", "gates", "spatial"],
    )
    def test_what_is_frozen_is_planned_for(self, photos: Path, options: dict[str, Any]) -> None:
        model = TwoConvs()
        if "convert" in options:
            model.last = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        made = plan(model, str(photos), config=tiny(**options), seconds=0)
        assert made.memory.computed > 0
        assert 0 < made.result.trained_parameters < made.result.parameters

    @pytest.mark.parametrize(
        "options",
        [
            {"opt": "adamw", "convert": False},
            {"opt": "adafactor"},
            {"opt": "adamw", "convert_at": 1},
            {"opt": "lion", "filters": "random"},
            {"opt": "lookahead_adamw"},
        ],
        ids=lambda options: "-".join(map(str, options.values())),
    )
    def test_the_disk_is_what_the_run_then_takes(
        self, photos: Path, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """But for what the files say of themselves; while the last of them is written there is one more."""
        monkeypatch.setattr(planned, "step_bytes", lambda model, made, shape, *others: shape[0] << 20)  # not of a disk
        options = {"epochs": 3, "checkpoint_minutes": 1e-4, **options}
        disk = plan(Wide(), str(photos), config=tiny(**options), seconds=0).disk
        run(Wide(), photos, tmp_path / "run", **options)
        sizes = [file.stat().st_size for file in (tmp_path / "run").rglob("*.safetensors")]
        assert disk.checkpoint > 250_000
        assert disk.total == pytest.approx(sum(sizes) + max(sizes), abs=80_000)

    def test_a_disk_that_is_too_small_is_named(self, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(planned, "free_disk_bytes", lambda path: 10)
        (problem,) = plan(TwoConvs(), str(photos), config=tiny(), seconds=0).problems
        assert problem.startswith("disk: the run takes 0.00 GB")

    def test_less_than_no_time_is_refused(self, photos: Path) -> None:
        with pytest.raises(tcnn.TcnnError, match="seconds: expected 0 or more, at most 86400, found -1"):
            plan(TwoConvs(), str(photos), config=tiny(), seconds=-1)

    def test_a_place_that_is_none_is_named(self, photos: Path) -> None:
        with pytest.raises(tcnn.TcnnError, match=r"^out: expected a path, found 'a\\x00b'"):
            plan(TwoConvs(), str(photos), config=tiny(), seconds=0, out="a\0b")

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
        monkeypatch.setattr(planned, "free_disk_bytes", lambda path: alone.disk.total + 1)
        assert plan(TwoConvs(), str(photos), config=tiny(), seconds=0).problems == ()
        (problem,) = plan(TwoConvs(), str(photos), config=tiny(), seconds=0, baseline=True).problems
        assert problem.startswith("disk: the run takes")
        with pytest.raises(tcnn.TcnnError, match="baseline: convert is false"):
            plan(TwoConvs(), str(photos), config=tiny(convert=False), seconds=0, baseline=True)

    def test_another_machine_is_planned_for_by_computation_alone(self, photos: Path) -> None:
        gpu = Target(torch.device("cuda"), 8 << 30)
        made = plan(TwoConvs(), str(photos), config=tiny(), seconds=0, target=gpu)
        assert (made.device, made.memory.free, made.problems) == ("cuda", 8 << 30, ())
        assert planned.MAPS_NOTE in made.notes
        with pytest.raises(tcnn.TcnnError, match="a plan for another one needs seconds=0"):
            plan("test_resnet", str(photos), config=tiny(), target=gpu)

    def test_what_it_cannot_foresee_is_said_only_where_maps_may_be_kept(self, photos: Path) -> None:
        gpu = Target(torch.device("cuda"), 8 << 30)
        for target, options in ((gpu, {"amp": "float32"}), (gpu, {"convert": False}), (None, {})):
            assert (
                planned.MAPS_NOTE
                not in plan(TwoConvs(), str(photos), config=tiny(**options), seconds=0, target=target).notes
            )

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
