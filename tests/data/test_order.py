"""The data order: a fresh permutation every epoch, repeats that stay together, seeds that never meet."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tcnn.data.order import epoch_order, sample_seed, shuffle_seed, step_seed
from tcnn.errors import RequestError


@given(count=st.integers(1, 300), batch_size=st.integers(1, 64), epoch=st.integers(0, 99), seed=st.integers(0, 2**64))
def test_an_epoch_has_every_image_once_but_for_the_last_batch(
    count: int, batch_size: int, epoch: int, seed: int
) -> None:
    if batch_size > count:
        with pytest.raises(RequestError, match=rf"batch of {batch_size} is larger than the data set of {count}"):
            epoch_order(count, epoch, seed, batch_size)
        return
    order = epoch_order(count, epoch, seed, batch_size)
    assert order.dtype == torch.int64
    assert order.shape == (count // batch_size * batch_size,)
    assert order.min() >= 0
    assert order.max() < count
    assert len(order.unique()) == len(order)


def test_every_epoch_and_seed_has_its_own_order() -> None:
    orders = {tuple(epoch_order(50, epoch, seed, 10).tolist()) for epoch in range(10) for seed in range(10)}
    assert len(orders) == 100
    assert tuple(range(50)) not in orders


def test_the_order_is_the_same_tomorrow() -> None:
    """A run that is resumed with a later version must see the order it began with."""
    assert epoch_order(12, epoch=3, seed=42, batch_size=5).tolist() == [9, 7, 8, 10, 0, 11, 6, 3, 2, 1]


def test_the_order_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    epoch_order(50, 0, 0, 10)
    assert torch.equal(torch.get_rng_state(), before)


def test_images_left_out_change_from_epoch_to_epoch() -> None:
    seen = [set(epoch_order(19, epoch, 0, 10).tolist()) for epoch in range(30)]
    assert set.union(*seen) == set(range(19))


@pytest.mark.parametrize(("batch_size", "repeats"), [(12, 3), (10, 3), (1024, 3), (8, 2), (7, 7), (6, 4), (3, 4)])
def test_copies_stay_in_their_batch_and_apart(batch_size: int, repeats: int) -> None:
    count = 5 * batch_size + 1
    order = epoch_order(count, 1, 7, batch_size, repeats)
    batches = order.view(-1, batch_size)
    assert len(batches) == 5
    distinct = -(-batch_size // repeats)
    for batch in batches:
        images, copies = batch.unique(return_counts=True)
        assert len(images) == distinct
        assert copies.max() == -(-batch_size // distinct)
        assert copies.max() - copies.min() <= 2
        if distinct > 1:
            assert (batch[1:] != batch[:-1]).all()
    shown = order.unique()
    assert len(shown) == 5 * distinct, "no image is in two batches"


def test_repeats_keep_the_length_of_an_epoch() -> None:
    assert len(epoch_order(100, 0, 0, 10, repeats=3)) == len(epoch_order(100, 0, 0, 10)) == 100


@pytest.mark.parametrize(("batch_size", "repeats"), [(0, 1), (4, 0), (-1, 1)])
def test_nonsense(batch_size: int, repeats: int) -> None:
    with pytest.raises(RequestError, match="at least 1"):
        epoch_order(10, 0, 0, batch_size, repeats)


def test_seeds_never_meet() -> None:
    """Numbers that are close, swapped, or of another stream: all different, and no bit is always the same."""
    near = [(a, b, c) for a in range(20) for b in range(20) for c in range(50)]
    seeds = [sample_seed(*key) for key in near] + [step_seed(*key) for key in near]
    seeds += [shuffle_seed(a, what, b) for a in range(50) for b in range(50) for what in ("validation", "fraction")]
    assert len(set(seeds)) == len(seeds) == 45_000
    assert all(0 <= seed < 2**64 for seed in seeds)
    every = np.array(seeds, np.uint64)
    for bit in range(64):
        assert (every >> np.uint64(bit) & np.uint64(1)).mean() == pytest.approx(0.5, abs=0.02)


def test_seeds_are_the_same_tomorrow() -> None:
    assert sample_seed(0, 0, 0) == 5204659284037528264
    assert step_seed(0, 0, 0) == 167168066059559390
