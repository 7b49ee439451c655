"""Models held against the first one on the same images: by hand, corrupted, with images that one cannot read."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from data_pictures import draw_classes
from PIL import Image
from torch import nn

import tcnn
from tcnn.config.evaluation import EvaluationConfig
from tcnn.data.image_set import open_dataset
from tcnn.evaluation import scores
from tcnn.evaluation.comparing.before_after import estimate
from tcnn.evaluation.comparing.comparison import compare, open_model
from tcnn.evaluation.comparing.paired import Answers, Tally, image_names, paired_differences
from tcnn.evaluation.evaluate import transform_for
from tcnn.evaluation.outcomes import Outcomes

PETS = ("cat", "dog", "eel")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("pets"), PETS, 4)


def model(file: Path, made: nn.Module, order: list[int]) -> str:
    """A checkpoint, its classes in this order."""
    made = tcnn.convert(made).model
    head = made.get_classifier()  # type: ignore[operator]
    with torch.no_grad():
        head.weight.copy_(head.weight[order])
        head.bias.copy_(head.bias[order])
    made.pretrained_cfg = {**made.pretrained_cfg, "label_names": [PETS[i] for i in order]}  # type: ignore[dict-item]
    return str(tcnn.save(made, file))


def test_differences_are_those_of_single_images(
    tmp_path: Path, lively: Callable[..., nn.Module], pictures: Path
) -> None:
    """Counted one image at a time; the second model has its classes in another order."""
    first = model(tmp_path / "a.safetensors", lively(num_classes=3), [0, 1, 2])
    other = lively(num_classes=3)
    with torch.no_grad():
        other.get_classifier().weight.mul_(-1)
    second = model(tmp_path / "b.safetensors", other, [2, 0, 1])
    config = EvaluationConfig(sizes=((32, 32),), corruptions=("contrast",), severities=(1, 5))
    found = compare([first, second], str(pictures), config)

    data = open_dataset(str(pictures))
    right = {name: np.zeros((3, len(data))) for name in (first, second)}
    cases = [None, *((effect, level) for effect in config.corruptions for level in config.severities)]
    for name in (first, second):
        opened = open_model(name)
        names = opened.pretrained_cfg["label_names"]
        for row, case in enumerate(cases):
            transform = transform_for(opened, 32, corruption=case)
            for place in range(len(data)):
                with torch.no_grad():
                    answer = opened(transform(data.load(place)[0])[None]).argmax()
                right[name][row, place] = names[answer] == PETS[data.targets[place]]
    gain = right[second] - right[first]
    (told,) = found.differences
    assert (told.of, told.over, told.height, told.width) == (second, first, 32, 32)
    assert told.top1
    assert told.corrupted
    assert gain.any(), "or nothing is shown"
    assert told.top1.mean == pytest.approx(gain[0].mean(), abs=1e-6)
    assert told.corrupted.mean == pytest.approx(gain[1:].mean(), abs=1e-6)
    expected = scores.paired_means(right[first][1:].mean(0), right[second][1:].mean(0))
    assert (told.corrupted.low, told.corrupted.high) == pytest.approx(expected[1:], abs=1e-6)
    assert [row.clean.right for row in found.rows if row.clean] == [right[n][0].sum() for n in (first, second)]
    assert found.headline().differences == found.differences
    assert not compare([first], str(pictures), EvaluationConfig(sizes=((32, 32),))).differences


def test_corrupted_images_in_folders_of_their_own_all_count(tmp_path: Path, lively: Callable[..., nn.Module]) -> None:
    """As ImageNet-C has them: one model says cat to what is bright and dog to what is dark, the other the reverse."""
    light = {"snow/3": "white", "fog/1": "black", "fog/3": "white"}
    for folder, colour in light.items():
        for file in ("cat/0.png", "dog/1.png", "dog/2.png"):
            path = tmp_path / "c" / folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), colour).save(path)
    names = []
    for number, sign in enumerate((1, -1)):
        made = lively(num_classes=2)
        with torch.no_grad():
            shown = torch.stack([transform_for(made, 32)(Image.new("RGB", (32, 32), c)) for c in ("white", "black")])
            bright, dark = made.forward_head(made.forward_features(shown), pre_logits=True)  # type: ignore[operator]
            head = made.get_classifier()  # type: ignore[operator]
            head.weight.copy_(sign * torch.stack([bright - dark, dark - bright]))
            head.bias.copy_(-head.weight @ (bright + dark) / 2)
        made.pretrained_cfg = {**made.pretrained_cfg, "label_names": ["cat", "dog"]}  # type: ignore[dict-item]
        names.append(str(tcnn.save(tcnn.convert(made).model, tmp_path / f"{number}.safetensors")))
    found = compare(names, str(tmp_path / "c"), EvaluationConfig(sizes=((32, 32),)))
    passes = [("snow", 3), ("fog", 1), ("fog", 3)]
    right = [[row.corruptions[effect].severities[level].right for effect, level in passes] for row in found.rows]
    assert right == [[1, 2, 1], [2, 1, 2]]
    (told,) = found.differences
    assert told.top1 is None
    assert told.corrupted
    assert told.corrupted.mean == pytest.approx(1 / 9)


def test_only_images_that_both_have_read_count(pictures: Path) -> None:
    data = open_dataset(str(pictures))
    targets = data.targets.numpy()

    def said(places: list[int], wrong: list[int]) -> Tally:
        tally = Tally(image_names(data))
        answers = np.array([-1 if place in wrong else targets[place] for place in places])
        tally.add(data, Outcomes(np.array(places), targets[places], answers, np.ones(len(places))))
        return tally

    every = list(range(12))
    one, other = said(every[:10], [0, 1]), said(every[1:], [1, 2, 3, 11])
    (found,) = paired_differences([[Answers("a", (8, 8), one, None)], [Answers("b", (8, 9), other, None)]])
    was, now = np.ones(9, bool), np.ones(9, bool)  # places 1 to 9
    was[0], now[:3] = False, False
    expected = scores.paired(was, now)
    assert found.top1
    assert (found.top1.mean, found.top1.low, found.top1.high) == pytest.approx(expected, abs=1e-6)
    assert (found.corrupted, found.width) == (None, 9)
    (nothing,) = paired_differences(
        [[Answers("a", (8, 8), said([0], []), None)], [Answers("b", (8, 8), said([1], []), None)]]
    )
    assert nothing.top1 is None, "no image was read by both"
    assert paired_differences([[Answers("a", (8, 8), one, None)]] * 2) == [], "a model less itself"


def test_what_is_told_has_six_decimals() -> None:
    told = estimate(scores.Interval(1 / 3, 1 / 7, 2 / 3))
    assert told.model_dump() == {"mean": 0.333333, "low": 0.142857, "high": 0.666667}


def test_intervals_of_means_by_the_formula() -> None:
    """Agresti and Min's, by the table of pairs with half an image more in each of its four cells."""
    for both, gained, lost, neither in ((7, 3, 1, 4), (0, 0, 0, 6), (5, 0, 0, 0), (20, 9, 9, 30)):
        before = np.array([1.0] * both + [0.0] * gained + [1.0] * lost + [0.0] * neither)
        after = np.array([1.0] * both + [1.0] * gained + [0.0] * lost + [0.0] * neither)
        b, c, n = gained + 0.5, lost + 0.5, before.size + 2
        half = 1.959964 * math.sqrt((b + c - (b - c) ** 2 / n) / n / n)
        found = scores.paired_means(before, after)
        assert found.mean == pytest.approx((gained - lost) / before.size)
        assert (found.low, found.high) == pytest.approx(((b - c) / n - half, (b - c) / n + half), rel=1e-6)


@pytest.mark.parametrize("images", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_intervals_of_means_cover_the_truth(images: int) -> None:
    """Five corruptions of one image go together: as 5 N independent answers they would be covered far less often."""
    generator = np.random.default_rng(0)
    effect, hits, naive, trials = 0.04, 0, 0, 1500
    for _ in range(trials):
        hard = generator.normal(size=(images, 1))
        latent = 0.3 * generator.normal(size=(2, images, 5)) + hard + 0.8 * generator.normal(size=(2, images, 1))
        right = latent > 0
        moved = generator.random((images, 1)) < effect  # of so many images all five corruptions become right
        before, after = right[0].mean(1), np.where(moved, True, right[1]).mean(1)
        found = scores.paired_means(before, after)
        cells = scores.paired(right[0].ravel(), np.where(moved, True, right[1]).ravel())
        hits += found.low <= effect / 2 <= found.high
        naive += cells.low <= effect / 2 <= cells.high
    assert hits / trials >= 0.93
    assert naive / trials < 0.75


def test_what_is_no_pair_is_refused() -> None:
    for before, after in ((np.zeros(0), np.zeros(0)), (np.zeros(2), np.zeros(3)), (np.zeros((2, 2)), np.zeros((2, 2)))):
        with pytest.raises(ValueError, match="at least one"):
            scores.paired_means(before, after)
