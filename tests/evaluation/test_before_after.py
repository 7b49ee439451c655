"""Intervals that hold for few images, models held against each other image by image; and accuracy before and after
pruning, where the model's outputs and the data set's classes are matched by their names.
"""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from data_pictures import draw_classes
from tiny_runs import colours
from torch import nn

from tcnn.errors import RequestError
from tcnn.evaluation import scores
from tcnn.evaluation.comparing.before_after import BeforeAfter, Measured, Row, counted, differences
from tcnn.evaluation.comparing.paired import measure_on
from tcnn.evaluation.imagenet_variants import synsets
from tcnn.evaluation.outcomes import Outcomes

NAMES = ("cat", "dog", "owl")


def answers(predicted: list[int], targets: list[int], indices: list[int] | None = None) -> Outcomes:
    confidence = np.linspace(0.5, 0.9, len(predicted))
    return Outcomes(np.array(indices or range(len(predicted))), np.array(targets), np.array(predicted), confidence)


def pairs(both: int, gained: int, lost: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    before = [True] * both + [False] * gained + [True] * lost + [False] * neither
    after = [True] * both + [True] * gained + [False] * lost + [False] * neither
    return np.array(before), np.array(after)


def covered(n: int, gain: float, loss: float) -> float:
    """How often the interval has the truth in it: over all tables of n images, half of the others right both times."""
    rest = (1 - gain - loss) / 2
    total = 0.0
    for gained, lost in itertools.product(range(n + 1), repeat=2):
        for both in range(n - gained - lost + 1):
            neither = n - gained - lost - both
            found = scores.paired(*pairs(both, gained, lost, neither))
            if found.low <= gain - loss <= found.high:
                ways = math.factorial(n) // math.prod(map(math.factorial, (gained, lost, both, neither)))
                total += ways * gain**gained * loss**lost * rest ** (both + neither)
    return total


@pytest.mark.parametrize(("gain", "loss"), [(0.3, 0.1), (0.05, 0.05), (0.5, 0.0)])
def test_paired_intervals_cover_the_truth(gain: float, loss: float) -> None:
    assert covered(12, gain, loss) >= 0.93


def test_paired_intervals_of_extremes() -> None:
    same = scores.paired(*pairs(6, 0, 0, 0))
    assert same.mean == 0
    assert same.low < -0.2, "six images prove nothing"
    assert same.high == pytest.approx(-same.low)
    one, other = scores.paired(*pairs(70, 12, 3, 15)), scores.paired(*pairs(70, 3, 12, 15))
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low))
    assert one.low > 0.0 < one.mean == pytest.approx(0.09)
    # Many images: as the normal distribution has it.
    many = scores.paired(*pairs(7000, 1200, 300, 1500))
    deviation = math.sqrt((0.15 - 0.09**2) / 10_000)
    assert (many.low, many.high) == pytest.approx((0.09 - 1.96 * deviation, 0.09 + 1.96 * deviation), abs=5e-4)
    with pytest.raises(ValueError, match="at least one"):
        scores.paired(np.array([], bool), np.array([], bool))


def test_wilsons_interval_holds_its_limits() -> None:
    """Its ends are the shares at which the observed one is 1.96 standard deviations away."""
    for right, count in ((0, 10), (7, 10), (300, 400), (50, 50)):
        found = scores.share(right, count)
        for end in (found.low, found.high):
            if 1e-9 < end < 1 - 1e-9:
                away = scores.QUANTILE * (end * (1 - end) / count) ** 0.5
                assert abs(found.mean - end) == pytest.approx(away, rel=1e-9)
    assert scores.share(0, 10).low == 0.0
    assert scores.share(10, 10).high == 1.0


def test_models_side_by_side() -> None:
    targets = [0, 0, 1, 1, 2, 2]
    made = {
        "cnn": answers([0, 1, 1, 1, 0, 2], targets),
        "tuned_cnn": answers([0, 0, 1, 2, 0, 2], targets),
        "t_cnn": answers([0, 0, 1, 1, 1], targets[:5], [0, 1, 2, 3, 4]),  # the last one could not be read
    }
    rows = []
    for role, found in made.items():
        accuracy, per_class = counted(found, NAMES)
        rows.append(Measured(Row(role=role, accuracy=accuracy, per_class=per_class), found))
    rows.append(Measured(Row(role="converted", missing="gone"), None))
    assert [row.row.accuracy and row.row.accuracy.right for row in rows] == [4, 4, 4, None]
    assert rows[2].row.per_class["owl"].images == 1
    found = differences(rows, NAMES, [f"{number}.png" for number in range(6)])
    assert [(one.of, one.over) for one in found] == [("t_cnn", "tuned_cnn"), ("t_cnn", "cnn"), ("tuned_cnn", "cnn")]
    gain, *_, old = found
    assert (gain.newly_right, gain.newly_wrong, gain.otherwise_wrong) == (1, 0, 1)
    (image,) = gain.right_images
    assert (image.file, image.target, image.before, image.after) == ("3.png", "dog", "owl", "dog")
    assert gain.top1.mean == 0.2
    assert (old.newly_right, old.newly_wrong) == (1, 1)
    assert [one.file for one in old.wrong_images] == ["3.png"]
    assert set(gain.per_class) == set(NAMES)
    short = BeforeAfter(images=6, rows=[row.row for row in rows], differences=found).headline()
    assert not short.differences[0].right_images
    assert not short.rows[0].per_class
    assert found[0].right_images, "what is written to the file is left as it was"


def test_corrupted_images_are_compared_in_pairs() -> None:
    targets = [0, 1, 2, 0, 1, 2]
    clean = answers(targets, targets)
    harder = {"tuned_cnn": answers([0, 1, 1, 1, 1, 0], targets), "t_cnn": answers([0, 1, 2, 0, 1, 0], targets)}
    rows = [
        Measured(Row(role=role, accuracy=counted(clean, NAMES)[0], corrupted=counted(found, NAMES)[0]), clean, found)
        for role, found in harder.items()
    ]
    (gain,) = differences(rows, NAMES, "abcdef")
    assert gain.corrupted is not None and gain.corrupted.mean == pytest.approx(2 / 6, abs=1e-6)
    assert gain.top1.mean == 0
    (without,) = differences([rows[0]._replace(corrupted=None), rows[1]], NAMES, "abcdef")
    assert without.corrupted is None


def test_nothing_is_held_against_a_model_that_guesses() -> None:
    found = answers([0, 1, 2], [0, 1, 2])
    rows = [Measured(Row(role="cnn", new_classifier=True), found), Measured(Row(role="t_cnn"), found)]
    assert differences(rows, NAMES, "abc") == []


@pytest.fixture
def model(lively: Callable[..., nn.Module]) -> nn.Module:
    """Says red to everything, its first class, which is the last of a folder's."""
    made = lively(num_classes=3)
    with torch.no_grad():
        made.fc.weight.zero_()  # type: ignore[operator, union-attr]
        made.fc.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))  # type: ignore[operator, union-attr]
    made.pretrained_cfg = {**made.pretrained_cfg, "label_names": ["red", "green", "blue"]}  # type: ignore[dict-item]
    return made


def unequal(root: Path, *classes: str) -> str:
    """Five red images, three green ones, two of every other colour."""
    for name in classes:
        colours(root, {"red": 5, "green": 3}.get(name, 2), (name,))
    return str(root)


def test_classes_are_matched_by_name(model: nn.Module, tmp_path: Path) -> None:
    """A folder's first class was taken for the model's first."""
    found = measure_on("x.safetensors", unequal(tmp_path / "all", "red", "green", "blue"), 32)(model, model)
    assert (found.images, found.before, found.after) == (10, 0.5, 0.5)
    found = measure_on("x.safetensors", unequal(tmp_path / "two", "red", "blue"), 32)(model, model)
    assert (found.images, round(found.before, 6)) == (7, round(5 / 7, 6))


def test_pruning_is_measured_over_the_classes_that_a_variant_has(
    lively: Callable[..., nn.Module], tmp_path: Path
) -> None:
    """Of ImageNet-A, which has 200 of the model's 1,000 classes, one is the likeliest; another of the 1,000 is more."""
    model, listed = lively(), synsets("imagenet-a")
    with torch.no_grad():
        model.fc.weight.zero_()  # type: ignore[operator, union-attr]
        for name, bias in (("n01440764", 9.0), (listed[0], 2.0)):
            model.fc.bias[synsets().index(name)] = bias  # type: ignore[index, union-attr]
    draw_classes(tmp_path / "a", listed, 1)
    found = measure_on("x.safetensors", str(tmp_path / "a"), 16)(model, model)
    assert (found.images, found.before) == (200, 1 / 200)


def test_other_classes_are_refused(model: nn.Module, tmp_path: Path) -> None:
    """As many others were measured as if they were the model's."""
    measure = measure_on("x.safetensors", unequal(tmp_path / "other", "red", "green", "teal"), 32)
    with pytest.raises(RequestError, match=r"different classes: teal only in the data set, blue only in the model"):
        measure(model, model)
