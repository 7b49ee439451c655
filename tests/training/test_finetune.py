"""Tiny whole runs: they learn, every comparison of the paper is one setting, and nothing unforeseen ends one."""

import math
import statistics
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import Normed, TwoConvs, colours, run, seeded

import tcnn
from tcnn.checkpoints.checkpoint import read
from tcnn.errors import DivergedError
from tcnn.training.runs import callbacks
from tcnn.training.runs.callbacks import Progress
from tcnn.training.runs.resume import latest_point, points, read_point
from tcnn.training.runs.rundir import RunDirectory
from tcnn.training.updates import loop


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("colours"))


def rows(out: Path) -> list[dict[str, Any]]:
    return RunDirectory(out).rows("epoch")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"convert_at": 3}, id="late"),
        pytest.param({}, id="t-cnn", marks=pytest.mark.slow),
        pytest.param({"convert": False}, id="cnn", marks=pytest.mark.slow),
    ],
)
def test_it_learns(data: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """Three plain colours; a model that guesses has a loss of log 3 and a third of them right."""
    result = run(seeded(Normed), data, tmp_path / "run", epochs=6, lr=0.03, smoothing=0.0, ema=0.5, **options)
    losses = [row["train_loss"] for row in rows(tmp_path / "run")]
    assert losses[-1] < 0.5 * math.log(3) < losses[0]
    assert result.best_top1 > 0.9
    assert (result.epochs, result.updates, result.train_images, result.val_images) == (6, 18, 24, 6)
    gates = [name for name in load_file(result.last) if name.endswith("gating_param")]
    assert result.layers == len(gates) == (0 if "convert" in options else 1)
    layers = [len(row["gates"]) for row in rows(tmp_path / "run")]
    assert layers == {"convert": [0] * 6, "convert_at": [0, 0, 0, 1, 1, 1]}.get(next(iter(options), ""), [1] * 6)


def test_progress_never_goes_back_and_ends_at_100(data: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    run(seeded(TwoConvs), data, tmp_path / "run", report=seen.append)
    percents = [now.percent for now in seen]
    assert percents == sorted(percents)
    assert percents[-1] == 100
    steps = [now for now in seen if now.phase == "training"]
    assert [(now.epoch, now.step) for now in steps] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    assert {(now.epochs, now.steps) for now in seen if not now.phase.startswith("verifying")} == {(2, 3)}
    for now in steps:
        assert now.loss is not None
        assert math.isfinite(now.loss)
        assert now.images_per_second
        assert now.eta_seconds is not None
        assert now.eta_seconds >= 0
        assert now.temperature is not None
    for row in rows(tmp_path / "run"):  # batches of one size: an epoch's loss is the mean of its steps'
        losses = [now.loss for now in steps if now.epoch == row["epoch"] + 1]
        assert row["train_loss"] == pytest.approx(statistics.fmean(losses), rel=1e-6)
    validations = [now for now in seen if now.phase == "validating"]
    assert len(validations) >= 2
    assert validations[-1].eta_seconds == 0
    assert seen[-1].top1 is not None


def test_rates_and_times_left_by_a_clock_of_its_own(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on by a quarter of a second whenever a step or a validation begins or ends."""
    ticks = count()
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 4))
    seen: list[Progress] = []
    run(seeded(TwoConvs), data, tmp_path / "run", report=seen.append)
    steps = [now for now in seen if now.phase == "training"]
    assert [now.images_per_second for now in steps] == [32.0] * 6  # 8 images in a quarter of a second
    assert [row["images_per_second"] for row in rows(tmp_path / "run")] == [32.0] * 2
    # A step takes 0.25 s; how long a validation takes is known after the first.
    assert [now.eta_seconds for now in steps] == [1.2, 1.0, 0.8, 0.8, 0.5, 0.2]


def test_an_error_of_the_model_is_its_own(data: Path, tmp_path: Path) -> None:
    class Failing(TwoConvs):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and torch.is_grad_enabled():
                raise RuntimeError("a layer of somebody's")
            return super().forward(x)

    with pytest.raises(RuntimeError, match=r"^a layer of somebody's$"):
        run(seeded(Failing), data, tmp_path / "run", convert=False)


def test_annealing_and_its_absence(data: Path, tmp_path: Path) -> None:
    taus: dict[str, list[float]] = {}
    for anneal in ("warmup", "none"):
        seen: list[Progress] = []
        run(seeded(TwoConvs), data, tmp_path / anneal, anneal=anneal, report=seen.append)
        taus[anneal] = [now.temperature or 0 for now in seen if now.phase == "training"]
    assert taus["none"] == [1.0] * 6
    expected = [46 ** (-2 / 3), 46 ** (-1 / 3), 1, 1, 1, 1]
    assert taus["warmup"] == pytest.approx(expected, rel=1e-6)
    assert float(load_file(tmp_path / "warmup" / "last.safetensors")["last.position_temperature"]) == 1


def states(out: Path) -> dict[int, dict[str, torch.Tensor]]:
    """What the resume points hold, by updates done; of several the oldest."""
    found = [read_point(path) for path in points(out / "resume")]
    return {point.position.updates: point.tensors for point in found}


def test_the_moving_average_is_what_is_saved(data: Path, tmp_path: Path) -> None:
    """ē = w until annealing is over; then ēₙ = dₙ·ēₙ₋₁ + (1 − dₙ)·wₙ with dₙ = min(d, 1 − n^(−2/3)), timm's warm-up."""
    run(seeded(TwoConvs), data, tmp_path / "run", lr=0.01, ema=0.4, epochs=3, checkpoint_steps=1, keep=99)
    seen = states(tmp_path / "run")
    assert sorted(seen) == [1, 2, 3, 4, 5, 6, 7, 8, 9], "three of them annealing"
    names = [name for name, tensor in seen[1].items() if name.startswith("ema.") and tensor.is_floating_point()]
    for update in range(1, 5):
        for name in names:
            assert torch.equal(seen[update][name], seen[update][name.replace("ema.", "model.", 1)]), (update, name)
    expected = {name: seen[4][name].double() for name in names}
    for update in range(5, 10):
        decay = min(0.4, 1 - (update - 3) ** (-2 / 3))
        assert decay == (0.4 if update > 5 else pytest.approx(0.37, abs=0.001))
        for name in names:
            weight = seen[update][name.replace("ema.", "model.", 1)].double()
            expected[name] = decay * expected[name] + (1 - decay) * weight
    average = load_file(tmp_path / "run" / "last.safetensors")
    for name in names:
        torch.testing.assert_close(seen[9][name].double(), expected[name], rtol=1e-5, atol=1e-6)
        assert torch.equal(average[name.removeprefix("ema.")], seen[9][name]), name
    assert not torch.equal(seen[9]["ema.head.weight"], seen[9]["model.head.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("late", [1, pytest.param(None, marks=pytest.mark.slow)])
def test_an_average_never_spoils_an_annealed_model(data: Path, tmp_path: Path, late: int | None) -> None:
    """Weights of another τ are no part of it: while τ moves, what is measured and saved is the model itself."""
    options: dict[str, Any] = {"epochs": 4, "anneal_epochs": 2, "lr": 0.01, "convert_at": late}
    for name, ema in (("plain", None), ("averaged", 0.9999)):
        run("test_resnet", data, tmp_path / name, ema=ema, **options)
    plain, averaged = (rows(tmp_path / name) for name in ("plain", "averaged"))
    over = 2 + (late or 0)
    assert [row["val"] for row in averaged[:over]] == [row["val"] for row in plain[:over]]
    assert averaged[-1]["val"] != plain[-1]["val"]


@pytest.mark.parametrize(
    ("options", "tops", "best"),
    [
        ({"anneal_epochs": 2}, [0.9, 0.3, 0.5, 0.4], [1, 2, 3, 3]),
        pytest.param({"convert": False}, [0.9, 0.3, 0.5, 0.4], [1, 1, 1, 1], marks=pytest.mark.slow),
        pytest.param({"anneal_epochs": 5}, [0.9, 0.3, 0.5, 0.4], [1, 2, 3, 4], marks=pytest.mark.slow),
        pytest.param({"anneal_epochs": 1, "convert_at": 1}, [0.9, 0.5, 0.8, 0.8], [1, 2, 3, 3], marks=pytest.mark.slow),
        pytest.param({"anneal_epochs": 2}, [0.9, 0.7, 0.5, 0.7], [1, 2, 2, 2], marks=pytest.mark.slow),
        pytest.param({"anneal": "none", "convert_at": 2}, [0.9, 0.8, 0.5, 0.6], [1, 2, 3, 4], marks=pytest.mark.slow),
        pytest.param({"anneal": "none"}, [0.4, 0.3, 0.5, 0.4], [1, 1, 3, 3], marks=pytest.mark.slow),
    ],
)
def test_the_best_epoch_is_one_after_annealing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], tops: list[float],
    best: list[int],
) -> None:  # fmt: skip
    """Before, the nearly unconverted model would win; a run that ends there has its last epoch as its best."""
    out, found = tmp_path / "run", []
    measure = loop.evaluate

    def saved() -> int:
        return 1 + (read(out / "best.safetensors").section("training") or {})["metrics"]["epoch"]

    def told(*arguments: Any, **more: Any) -> Any:
        found.extend([saved()] if len(found) < len(rows(out)) else [])
        return measure(*arguments, **more).model_copy(update={"top1": tops[len(rows(out))]})

    monkeypatch.setattr(loop, "evaluate", told)
    result = run(seeded(TwoConvs), data, out, epochs=4, **options)
    assert [*found, saved()] == best
    assert (result.best_epoch + 1, result.best_top1) == (best[-1], tops[best[-1] - 1])


@pytest.mark.parametrize("kind", ["soft", pytest.param("hard", marks=pytest.mark.slow)])
def test_distillation_from_the_source(data: Path, tmp_path: Path, kind: str) -> None:
    """With the whole weight on the teacher the labels do not matter."""
    source = seeded(TwoConvs)
    source.head.weight.data *= 50  # so sure that it is no plain mean of all classes
    source.pretrained_cfg, source.num_classes, source.in_chans = {"mean": (0.5,) * 3, "std": (0.5,) * 3}, 3, 3
    losses = []
    shuffled = tmp_path / "shuffled"
    for place, other in (("blue", "green"), ("green", "red"), ("red", "blue")):
        (shuffled / place).parent.mkdir(exist_ok=True)
        (shuffled / place).symlink_to(data / other)
    for images in (data, shuffled):
        out = tmp_path / f"run{len(losses)}"
        result = run(source, images, out, teacher="source", distillation=kind, distillation_weight=1.0, epochs=1,
                     batch_size=24, scale=(1, 1), ratio=(1, 1), hflip=0, seed=1)  # fmt: skip
        assert [note for note in result.notes if not note.startswith("anneal_epochs")] == []
        losses.append(rows(out)[0]["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.2), "each draws its own share of the images"
    plain = run(source, data, tmp_path / "plain", epochs=1, batch_size=24)
    assert rows(Path(plain.out))[0]["train_loss"] != pytest.approx(losses[0], rel=0.5)


@pytest.mark.slow
def test_a_loss_that_is_not_finite(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"not finite in epoch 1, step \d of 3 \(update \d\)") as caught:
        run("test_resnet", data, tmp_path / "run", lr=1e30, checkpoint_steps=1)
    assert caught.value.exit_code == 5
    point, _ = latest_point(tmp_path / "run" / "resume")
    assert point is not None
    assert f"the newest resume point is {point.path}" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(DivergedError, match=r"the newest resume point is .*step-000000001-"):
        run("test_resnet", data, tmp_path / "other", lr=1e30)


def test_a_validation_that_is_not_finite_is_said_and_stays_json(data: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run(seeded(TwoConvs), data, tmp_path / "run", epochs=1, batch_size=24, warmup_epochs=0, lr=1e30, say=said.append)
    assert "the validation loss is not finite after epoch 1" in said
    assert rows(tmp_path / "run")[0]["val"]["loss"] is None
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_mixup_and_the_whole_recipe(data: Path, tmp_path: Path) -> None:
    """All augmentation of the paper on, in parts of two images."""
    config = tcnn.finetune_config(options={
        "epochs": 1, "warmup_epochs": 1, "batch_size": 6, "micro_batch": 2, "size": 32, "workers": 0, "val_split": 0.2,
    })  # fmt: skip
    result = tcnn.finetune(seeded(lambda: Normed(0.25)), str(data), config=config, out=tmp_path / "run")
    assert result.updates == 4
    assert math.isfinite(rows(tmp_path / "run")[0]["train_loss"])


@pytest.mark.slow
def test_random_filters_after_a_late_conversion_resume_alike(data: Path, tmp_path: Path) -> None:
    """What is drawn at the conversion depends on the seed, not on when the process was started."""
    options: dict[str, Any] = {"convert_at": 1, "filters": "random", "keep": 9, "gating": False}
    run("test_resnet", data, tmp_path / "run", **options)
    expected = tcnn.load(tmp_path / "run" / "last.safetensors").state_dict()
    for path in sorted((tmp_path / "run" / "resume").iterdir())[2:]:  # before the conversion
        path.unlink()
    torch.manual_seed(12345)
    run("test_resnet", data, tmp_path / "run", resume=True, **options)
    found = tcnn.load(tmp_path / "run" / "last.safetensors").state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.slow  # what such a run begins with is in test_prepare.py
def test_a_t_cnn_is_trained_further(data: Path, tmp_path: Path) -> None:
    first = run("test_resnet", data, tmp_path / "first", epochs=1)
    second = run(first.last, data, tmp_path / "second", epochs=1)
    assert second.layers == 2
    assert second.notes == []
    assert second.model == first.last
