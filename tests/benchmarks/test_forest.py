"""All comparisons together: which are there, on which images, with what the experiments' own tables tell."""

from itertools import pairwise

import forest
import numpy
import page
import pytest
import torch

from tcnn.data.image_set import balanced_places

RESULTS = page.by_name(page.measured())


@pytest.fixture(scope="module")
def found() -> list[forest.Comparison]:
    return page.compared(page.measured())


def test_every_comparison_is_there_that_an_experiment_tells(found: list[forest.Comparison]) -> None:
    """With the means that it tells."""
    told = {
        (entry["label"], gains["seeds"], *(gains[kind]["mean"] for kind in forest.KINDS))
        for names in forest.GROUPS.values()
        for name in names
        if name in RESULTS
        for entry in RESULTS[name]["summary"]
        for other, gains in entry.get("against", {}).items()
        if other == RESULTS[name]["experiment"]["arms"][entry["arm"]]["control"]
        and (name, entry["arm"]) not in forest.LEFT_OUT
    }
    mine = {
        (one.label, one.seeds, *(round(one.values[kind].values.mean(), 5) for kind in forest.KINDS)) for one in found
    }
    assert mine == told
    assert len(told) == len(found) > 15


def test_experiments_on_cifar_are_in_a_group_or_have_other_networks() -> None:
    grouped = {name for names in forest.GROUPS.values() for name in names}
    assert {name for name in RESULTS if name.startswith("cifar10")} <= grouped
    for name, arm in forest.LEFT_OUT:
        assert arm in RESULTS[name]["experiment"]["arms"]


def test_who_has_no_equal_is_left_out() -> None:
    """Controls have the learning rate, the updates and the images of their arm; of the others that is what is said."""
    for names in forest.GROUPS.values():
        for name in names:
            rows = {row["arm"]: row for row in RESULTS.get(name, {}).get("rows", ())}
            for arm, said in RESULTS[name]["experiment"]["arms"].items() if name in RESULTS else ():
                if arm in rows and said["control"] in rows and (name, arm) not in forest.LEFT_OUT:
                    mine, its = rows[arm], rows[said["control"]]
                    for key in ("lr", "epochs", "batch_size", "ema"):
                        assert mine["settings"].get(key) == its["settings"].get(key), (name, arm, key)


def test_smaller_sets_of_images_are_part_of_larger_ones(found: list[forest.Comparison]) -> None:
    counts = {len(one.values["corrupted"].places) for one in found}
    assert counts >= {250, 1000, 2000}
    targets = torch.arange(10).repeat_interleave(500)
    sets = [set(balanced_places(targets, count / 5000, 1).tolist()) for count in sorted(counts)]
    assert all(small <= large for small, large in pairwise(sets))
    for one in found:
        places = one.values["corrupted"].places
        assert numpy.bincount(targets.numpy()[places]).tolist() == [len(places) // 10] * 10


def test_the_mean_is_over_pairs(found: list[forest.Comparison]) -> None:
    count, pairs, told = forest.together(found, forest.POOLED["all"])
    assert (count, pairs) == (len(found), sum(one.seeds for one in found))
    for kind in forest.KINDS:
        mean = sum(one.seeds * one.values[kind].values.mean() for one in found) / pairs
        assert told[kind].mean == pytest.approx(mean, abs=1e-12)
