"""Batches are functions of (seed, epoch, position): the number of workers and ranks and a resume change no bit."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from data_pictures import ARCHIVE, draw_classes, plain_transform, some_of_cifar10
from sampled import sampled
from timm.data import IMAGENET_DEFAULT_MEAN as MEAN
from timm.data import IMAGENET_DEFAULT_STD as STD
from torch import Tensor

from tcnn.data.image_set import ImageSet, open_dataset, training_transform
from tcnn.data.loader import Batch, EvaluationLoader, TrainingLoader, worker_death
from tcnn.errors import EnvironmentFailure, RequestError

DEIT = training_transform(
    size=(24, 24), mean=MEAN, std=STD, aa="rand-m9-mstd0.5-inc1", color_jitter=0.3, reprob=0.25, vflip=0.1
)
PLAIN = plain_transform(size=(16, 16), crop_pct=1.0, mean=MEAN, std=STD, interpolation="bilinear")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """Sixty images, real ones where there are some."""
    root = tmp_path_factory.mktemp("data")
    found = some_of_cifar10(root, 2, 30) if ARCHIVE.is_file() else draw_classes(root, ["a", "b"], 30)
    return open_dataset(str(found))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return open_dataset(str(draw_classes(tmp_path_factory.mktemp("drawn"), ["a", "b"], 10)))


def run(data: ImageSet, epochs: dict[int, int], **options: int) -> list[Batch]:
    """The batches of some epochs, each from a step on, by one loader."""
    settings = {"batch_size": 12, "micro_batch": 12, "seed": 5, "repeats": 3, **options}
    loader = TrainingLoader(data, DEIT, **settings)
    batches = [batch for epoch, start in epochs.items() for batch in loader.epoch(epoch, start)]
    loader.close()
    return batches


def images(batches: list[Batch]) -> tuple[Tensor, Tensor]:
    return torch.cat([batch.images for batch in batches]), torch.cat([batch.targets for batch in batches])


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    """Bit for bit; micro-batches may be cut elsewhere."""
    for ours, theirs in zip(images(found), images(expected), strict=True):
        assert torch.equal(ours, theirs)


@pytest.fixture(scope="module")
def expected(data: ImageSet) -> list[Batch]:
    return run(data, {0: 0, 1: 0})


def test_shapes(data: ImageSet, expected: list[Batch]) -> None:
    assert len(expected) == 2 * (len(data) // 12)
    for batch in expected:
        assert batch.images.shape == (12, 3, 24, 24)
        assert batch.images.dtype == torch.float32
        assert batch.targets.shape == (12,)
        assert batch.targets.dtype == torch.int64
        assert batch.unreadable == ()
        assert batch.images.isfinite().all()


def test_copies_are_augmented_differently(expected: list[Batch]) -> None:
    everything, _ = images(expected)
    assert len(everything.flatten(1).unique(dim=0)) == len(everything)


def test_epochs_differ(expected: list[Batch]) -> None:
    assert not torch.equal(images(expected[:5])[0], images(expected[5:])[0])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_change_nothing(data: ImageSet, expected: list[Batch], workers: int) -> None:
    """Nor do two of them that begin in the middle, below."""
    assert_same(run(data, {0: 0, 1: 0}, workers=workers), expected)


@pytest.mark.parametrize(
    ("start", "workers"),
    sampled([(start, workers) for start in (1, 4, 5) for workers in (0, 2)], [(1, 0), (4, 0), (5, 0), (4, 2)]),
)
def test_resume_at_any_step(data: ImageSet, expected: list[Batch], start: int, workers: int) -> None:
    """A new loader, as after a kill, that begins in the middle and goes on to the next epoch."""
    assert_same(run(data, {0: start, 1: 0}, workers=workers), expected[start:])


@pytest.mark.parametrize("micro_batch", sampled([1, 5, 100], [5]))
def test_micro_batches_change_nothing(data: ImageSet, expected: list[Batch], micro_batch: int) -> None:
    loader = TrainingLoader(data, DEIT, batch_size=12, micro_batch=micro_batch, seed=5, repeats=3)
    assert loader.micro_batches == {1: 12, 5: 3, 100: 1}[micro_batch]
    batches = [*loader.epoch(0), *loader.epoch(1)]
    assert len(batches) == 2 * loader.steps * loader.micro_batches
    assert [len(batch.targets) for batch in batches[: loader.micro_batches]] == {
        1: [1] * 12,
        5: [5, 5, 2],
        100: [12],
    }[micro_batch]
    assert_same(batches, expected)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ranks_share_every_batch(data: ImageSet, expected: list[Batch], workers: int) -> None:
    """Two and three processes with micro-batches of their own: their shares of a step, in order, are the batch."""
    for world, micro_batch in ((2, 4), (3, 3)):
        parts = [run(data, {0: 2}, world=world, rank=r, micro_batch=micro_batch, workers=workers) for r in range(world)]
        assert len({len(part) for part in parts}) == 1, "every rank takes as many micro-batches"
        steps = len(data) // 12 - 2
        each = len(parts[0]) // steps
        together = [batch for step in range(steps) for part in parts for batch in part[step * each : (step + 1) * each]]
        assert_same(together, expected[2:5])


def test_an_abandoned_epoch_leaves_no_trace(data: ImageSet, expected: list[Batch]) -> None:
    """What the workers have loaded ahead must not turn up in the next epoch."""
    loader = TrainingLoader(data, DEIT, batch_size=12, micro_batch=6, seed=5, repeats=3, workers=2)
    passing = loader.epoch(7)
    next(passing)
    assert_same(list(loader.epoch(0)), expected[:5])
    with pytest.raises(RuntimeError, match="pass ended"):
        next(passing)
    loader.close()
    assert_same(list(loader.epoch(1)), expected[5:])
    loader.close()


def states() -> tuple[object, ...]:
    kind, keys, *rest = numpy.random.get_state()
    return random.getstate(), kind, keys.tolist(), rest, torch.get_rng_state().tolist()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_callers_generators_are_left_alone(drawn: ImageSet, workers: int) -> None:
    loader = TrainingLoader(drawn, DEIT, batch_size=4, micro_batch=2, seed=0, workers=workers)
    before = states()
    for _ in loader.epoch(0):
        assert states() == before
    assert list(EvaluationLoader(drawn, DEIT, batch_size=8, workers=workers))
    assert states() == before
    loader.close()


def test_the_seed_matters(drawn: ImageSet) -> None:
    assert not torch.equal(images(run(drawn, {0: 0}, seed=0))[0], images(run(drawn, {0: 0}, seed=1))[0])


def test_nonsense(drawn: ImageSet) -> None:
    with pytest.raises(RequestError, match="batch of 21 is larger than the data set of 20"):
        TrainingLoader(drawn, DEIT, batch_size=21, micro_batch=1, seed=0)
    with pytest.raises(RequestError, match="batch of 10 cannot be shared equally among 4"):
        TrainingLoader(drawn, DEIT, batch_size=10, micro_batch=1, seed=0, world=4)
    loader = TrainingLoader(drawn, DEIT, batch_size=10, micro_batch=5, seed=0)
    assert list(loader.epoch(0, 2)) == []
    with pytest.raises(RequestError, match="2 steps; cannot start at step 3"):
        loader.epoch(0, 3)


@pytest.mark.parametrize(
    ("world", "workers"),
    sampled([(world, workers) for world in (1, 2, 3) for workers in (0, 2)], [(1, 0), (2, 0), (3, 0)]),
)
def test_evaluation_sees_every_image_once(drawn: ImageSet, world: int, workers: int) -> None:
    parts = []
    for rank in range(world):
        loader = EvaluationLoader(drawn, PLAIN, batch_size=3, workers=workers, rank=rank, world=world)
        batches = list(loader)
        assert len(batches) == len(loader)
        assert [len(batch.targets) for batch in batches[:-1]] == [3] * (len(batches) - 1)
        assert_same(list(loader), batches)
        loader.close()
        parts.append(images(batches))
    found = torch.empty(20, 3, 16, 16), torch.empty(20, dtype=torch.int64)
    for rank, part in enumerate(parts):
        for whole, share in zip(found, part, strict=True):
            whole[rank::world] = share
    assert torch.equal(found[0], torch.stack([PLAIN(drawn.load(i)[0]) for i in range(20)]))
    assert torch.equal(found[1], torch.as_tensor(drawn.targets))


def test_evaluation_of_random_transforms_repeats(drawn: ImageSet) -> None:
    """Noise on a test image is the same whoever loads it."""
    runs = [
        images(list(EvaluationLoader(drawn, DEIT, batch_size=size, workers=workers)))[0]
        for size, workers in ((4, 0), (7, 2))
    ]
    assert torch.equal(*runs)


def test_more_ranks_than_images(drawn: ImageSet) -> None:
    loader = EvaluationLoader(drawn.subset([0]), PLAIN, batch_size=3, rank=1, world=2)
    assert len(loader) == 0
    assert list(loader) == []


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[ImageSet]:
    """Ten images, of which the second, the third and the last are none."""
    root = draw_classes(tmp_path / "damaged", ["a", "b"], 5)
    for name in ("a/1.jpg", "a/2.jpg", "b/4.jpg"):
        (root / name).write_bytes((root / name).read_bytes()[:200])
    yield open_dataset(str(root))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_unreadable_images_are_replaced_in_training(damaged: ImageSet, workers: int) -> None:
    loader = TrainingLoader(damaged, PLAIN, batch_size=10, micro_batch=10, seed=0, workers=workers)
    (batch,) = loader.epoch(0)
    loader.close()
    assert len(batch.images) == 10
    # The second is replaced by the fourth, as the third cannot be read either; the last by the first.
    assert sorted(Path(name).name for name in batch.unreadable) == ["1.jpg", "2.jpg", "2.jpg", "4.jpg"]
    assert batch.targets.sum() == 4
    expected = torch.stack([PLAIN(damaged.load(i)[0]) for i in (0, 3, 3, 3, 4, 5, 6, 7, 8, 0)])
    assert torch.equal(batch.images.flatten(1).sort(0).values, expected.flatten(1).sort(0).values)


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_images_are_left_out_in_evaluation(damaged: ImageSet, workers: int) -> None:
    batches = list(EvaluationLoader(damaged, PLAIN, batch_size=3, workers=workers))
    assert [len(batch.images) for batch in batches] == [1, 3, 3, 0]
    assert [len(batch.targets) for batch in batches] == [1, 3, 3, 0]
    assert batches[-1].images.shape == (0, 3, 16, 16)
    assert [Path(name).name for batch in batches for name in batch.unreadable] == ["1.jpg", "2.jpg", "4.jpg"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_went_away(tmp_path: Path, workers: int) -> None:
    """One line that says so, from a worker too, instead of an endless search for a readable image."""
    root = draw_classes(tmp_path / "gone", ["a", "b"], 3)
    data = open_dataset(str(root))
    for path in root.rglob("*.jpg"):
        path.unlink()
    loader = TrainingLoader(data, PLAIN, batch_size=2, micro_batch=2, seed=0, workers=workers)
    with pytest.raises(EnvironmentFailure, match=r"^6 images in a row cannot be read, .*no such file") as raised:
        list(loader.epoch(0))
    assert "\n" not in str(raised.value)
    loader.close()


def test_a_worker_that_died_is_told_from_other_errors() -> None:
    assert worker_death(RuntimeError("shapes do not fit"), "go on") is None
    error = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.\n")
    told = "a process that loads images died (DataLoader worker (pid 7) is killed by signal: Killed.); go on"
    assert str(worker_death(error, "go on")) == told
    assert "EOFError" in str(worker_death(EOFError(), "go on"))
