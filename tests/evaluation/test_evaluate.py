"""`evaluate` against a plain loop over the same images: counts are exact, and the model is left as it was."""

import copy
import importlib
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
import timm
import torch
from data_pictures import ANIMALS, draw_classes, picture
from forked import ranks
from PIL import Image
from sampled import sampled
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.errors import RequestError
from tcnn.evaluation.corruptions import Corruption, MixedCorruption
from tcnn.evaluation.evaluate import evaluate, transform_for
from tcnn.evaluation.outcomes import outcomes
from tcnn.evaluation.scores import Evaluation
from tcnn.training.distributed import join_processes


def plain(model: nn.Module, data: ImageSet, transform: Callable[[Image.Image], Tensor]) -> tuple[Tensor, Tensor]:
    """Logits (N, classes) and targets, one image at a time."""
    with torch.no_grad():
        logits = torch.cat([model(transform(data.load(i)[0])[None]) for i in range(len(data))])
    return logits, data.targets


def counts(result: Evaluation) -> tuple[int, int, int | None, list[tuple[int, int]]]:
    return result.images, result.right, result.right5, [(c.images, c.right) for c in result.per_class.values()]


def test_agrees_with_a_plain_loop(model: nn.Module, data: ImageSet) -> None:
    settings = resolve_model_data_config(model) | {"input_size": (3, 40, 40), "crop_pct": 0.9}
    logits, targets = plain(model, data, create_transform(**settings, is_training=False))
    right = logits.argmax(1) == targets
    found = evaluate(model, data, size=40, crop_pct=0.9, batch_size=8)
    assert (found.images, found.right) == (35, int(right.sum()))
    assert 0 < found.right < 35
    assert found.right5 == int((logits.argsort(1, descending=True)[:, :5] == targets[:, None]).sum())
    assert (found.top1, found.top5) == (found.right / 35, found.right5 / 35)
    assert found.loss == pytest.approx(float(cross_entropy(logits, targets)), rel=1e-5)
    assert list(found.per_class) == list(ANIMALS)
    for label, score in enumerate(found.per_class.values()):
        assert (score.images, score.right) == (5, int(right[targets == label].sum()))
        assert score.top1 == score.right / 5
    wrong = Counter(
        (ANIMALS[t], ANIMALS[a]) for t, a in zip(targets.tolist(), logits.argmax(1).tolist(), strict=True) if t != a
    )
    assert Counter({(one.target, one.answer): one.images for one in found.confusions}) == wrong
    assert [one.images for one in found.confusions] == sorted(wrong.values(), reverse=True)
    assert found.images_per_second > 0
    assert (found.unreadable, found.unreadable_count) == ([], 0)


@pytest.mark.parametrize(
    "options",
    sampled(
        [{"batch_size": 1}, {"batch_size": 100}, {"workers": 2}, {"channels_last": True}, {"device": "cpu"}],
        [{"workers": 2}, {"channels_last": True}],
    ),
    ids=str,
)
def test_how_it_is_done_changes_no_count(model: nn.Module, data: ImageSet, options: dict[str, object]) -> None:
    corrupted: dict[str, object] = {"size": 40, "corruption": ("snow", 4)}
    expected, found = evaluate(model, data, **corrupted), evaluate(model, data, **(corrupted | options))
    assert counts(found) == counts(expected)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)


def test_images_a_second_by_a_clock_of_its_own(
    model: nn.Module, data: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read before the first batch and after the last."""
    ticks = itertools.count(start=7, step=4)
    monkeypatch.setattr(
        importlib.import_module("tcnn.evaluation.evaluate"), "time", SimpleNamespace(perf_counter=lambda: next(ticks))
    )
    assert evaluate(model, data, size=32).images_per_second == len(data) / 4


def test_corrupts_what_the_model_would_see(model: nn.Module, data: ImageSet) -> None:
    """At the model's resolution, before normalising; the same images whatever subset they are in."""
    clean = create_transform(**(resolve_model_data_config(model) | {"input_size": (3, 48, 48)}), is_training=False)
    resize, crop, *rest = clean.transforms
    assert "Resize" in type(resize).__name__

    def corrupted(image: Image.Image) -> Tensor:
        image = Corruption("gaussian_noise", 5, seed=3)(crop(resize(image)))
        assert image.size == (48, 48)
        for step in rest:
            image = step(image)
        return image

    logits, targets = plain(model, data, corrupted)
    found = evaluate(model, data, size=48, corruption=("gaussian_noise", 5), seed=3)
    assert found.loss == pytest.approx(float(cross_entropy(logits, targets)), rel=1e-5)
    assert found.loss != evaluate(model, data, size=48, corruption=("gaussian_noise", 5), seed=4).loss
    some = evaluate(model, data.subset([9, 2]), size=48, corruption=("gaussian_noise", 5), seed=3)
    assert some.loss == pytest.approx(float(cross_entropy(logits[[9, 2]], targets[[9, 2]])), rel=1e-5)


def test_mixed_corruptions_are_those_of_the_seed(model: nn.Module, data: ImageSet) -> None:
    """Drawn for each image, at the model's resolution, before normalising."""
    _, resize, crop, *rest = transform_for(model, (48, 48)).transforms
    for seed in (3, 4):
        whole, mixed = transform_for(model, (48, 48), corruption="mixed", seed=seed), MixedCorruption(seed)
        for index in range(3):
            image = data.load(index)[0]
            expected = mixed(crop(resize(image)))
            for step in rest:
                expected = step(expected)
            assert torch.equal(whole(image), expected)


def test_evaluation_under_mixed_corruptions(model: nn.Module, data: ImageSet) -> None:
    found = [evaluate(model, data, size=48, corruption="mixed", seed=seed).loss for seed in (3, 3, 4)]
    assert found[0] == found[1] != found[2]
    with pytest.raises(RequestError, match=r"^corruption: expected .*mixed"):
        evaluate(model, data, size=48, corruption="fog")  # type: ignore[arg-type]


@pytest.mark.parametrize("corruption", [None, ("gaussian_noise", 1)])
@pytest.mark.parametrize(("width", "height"), [(3000, 1), (2, 3001), (90, 40)])
def test_a_long_strip_is_not_enlarged_as_a_whole(
    model: nn.Module, width: int, height: int, corruption: tuple[str, int] | None
) -> None:
    """timm scales the short side to the model's size: of one row of 3,000 pixels it would make 663 MB at 224 pixels."""
    image = picture(width=width, height=height)
    transform: Any = transform_for(model, 48, corruption=corruption)
    seen: Any = image
    pixels = []
    for step in transform.transforms:
        seen = step(seen)
        pixels.append(seen.width * seen.height if isinstance(seen, Image.Image) else 0)
    assert max(pixels) < 25 * 64**2
    assert seen.shape == (3, 48, 48)
    if max(width, height) <= 20 * min(width, height):
        plain = create_transform(**(resolve_model_data_config(model) | {"input_size": (3, 48, 48)}), is_training=False)
        assert corruption or torch.equal(seen, plain(image)), "any other image is prepared as timm prepares it"


def test_only_the_subset_of_outputs_competes(lively: Callable[..., nn.Module], data: ImageSet) -> None:
    wide, outputs = lively(num_classes=20), [19, 3, 5, 7, 11, 0, 2]
    transform = transform_for(wide, 40)
    logits, targets = plain(wide, data, transform)
    found = evaluate(wide, data, size=40, class_subset=outputs)
    assert found.right == int((logits[:, outputs].argmax(1) == targets).sum())
    assert found.loss == pytest.approx(float(cross_entropy(logits[:, outputs], targets)), rel=1e-5)


def test_no_top5_among_four(root: Path, lively: Callable[..., nn.Module]) -> None:
    few = open_dataset(str(root), "val", class_names=ANIMALS)
    few = few.subset((few.targets < 4).nonzero()[:, 0])
    assert evaluate(lively(num_classes=7), few, size=32).top5 is not None  # seven compete, though four are there
    few.class_names = ANIMALS[:4]
    found = evaluate(lively(num_classes=4), few, size=32)
    assert (found.top5, found.right5) == (None, None)


def test_a_class_without_images(root: Path, lively: Callable[..., nn.Module]) -> None:
    data = open_dataset(str(root), "val", class_names=[*ANIMALS, "yak"])
    found = evaluate(lively(num_classes=8), data, size=32)
    assert found.per_class["yak"].model_dump() == {"images": 0, "right": 0, "top1": None, "top1_interval": None}


def test_unreadable_images_are_counted_and_named(tmp_path: Path, lively: Callable[..., nn.Module]) -> None:
    root = draw_classes(tmp_path, ["a", "b"], 3)
    for number in range(25):
        (root / "a" / f"broken{number}.jpg").write_bytes(b"")
    data = open_dataset(str(root), "val")
    seen: list[int] = []
    found = evaluate(lively(num_classes=2), data, size=32, batch_size=4, progress=seen.append)
    assert (found.images, found.unreadable_count, len(found.unreadable)) == (6, 25, 20)
    assert found.unreadable[0].endswith("broken0.jpg")
    assert sum(seen) == len(data) == 31
    assert [score.images for score in found.per_class.values()] == [3, 3]
    seen.clear()
    told = outcomes(lively(num_classes=2), data, size=(32, 32), batch_size=4, progress=seen.append)
    assert sum(seen) == 31
    assert [*told.indices] == [i for i in range(31) if "broken" not in data.filename(i)]
    assert [*told.targets] == [0, 0, 0, 1, 1, 1]


def test_nothing_can_be_read(tmp_path: Path, lively: Callable[..., nn.Module]) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jpg").write_text("no image")
    with pytest.raises(RequestError, match=r"none of the 2 can be read .*x\.jpg"):
        evaluate(lively(num_classes=2), open_dataset(str(tmp_path), "val"), size=32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_subset": [0, 1]}, "class_subset: expected one of the model's 7 outputs for each of the data set's 7"),
        ({"class_subset": range(1, 8)}, "class_subset: expected one of the model's 7 outputs"),
        ({"class_subset": []}, "class_subset: expected one of the model's 7 outputs"),
        ({"class_subset": [0, 1, 2, 3, 4, 5, 1]}, "class_subset: expected another output for each class, found 1 for"),
        ({"size": 0}, "size: expected 1 to 65536 pixels each way, found 0×0"),
        ({"size": (32, -1)}, "size: expected 1 to 65536 pixels each way, found 32×-1"),
        ({"size": 10**30}, "size: expected 1 to 65536 pixels each way, found 1000"),
        ({"crop_pct": 0}, "crop_pct: expected a share above 0 and up to 1, found 0"),
        ({"corruption": ("fogs", 1)}, "'fogs' is no ImageNet-C corruption; did you mean fog?"),
        ({"corruption": ("fog", 6)}, "severity: expected 1 to 5, found 6"),
        ({"batch_size": 0}, "batch_size: expected at least 1, found 0"),
        ({"workers": -1}, "workers: expected 0 to 1024 processes, found -1"),
        ({"workers": 10_000}, "workers: expected 0 to 1024 processes, found 10000"),
        ({"amp": "fp16"}, "amp: expected float32, bfloat16, float16, found 'fp16'"),
        ({"world": 2}, "evaluate: 2 processes need torch.distributed.init_process_group first"),
    ],
)
def test_wrong_requests(model: nn.Module, data: ImageSet, options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError) as raised:
        evaluate(model, data, **({"size": 32} | options))
    assert str(raised.value).startswith(message)


def test_a_data_set_by_its_path(model: nn.Module, root: Path, data: ImageSet) -> None:
    """Its validation split; classes have the model's numbers, not those of the folders' names."""
    named = copy.deepcopy(model)
    named.pretrained_cfg = {**model.pretrained_cfg, "label_names": data.class_names[::-1]}
    opened = evaluate(model, data, size=32)
    assert evaluate(model, root, size=32).loss == opened.loss
    numbered = evaluate(named, open_dataset(str(root), "val", data.class_names[::-1]), size=32)
    assert evaluate(named, str(root), size=32).loss == numbered.loss != opened.loss
    assert evaluate(named, data, size=32) == numbered.model_copy(update={"images_per_second": ANY}), (
        "nor those of an opened set's own"
    )
    part = evaluate(named, open_dataset(str(root), "val").subset(data.targets < 3), size=32)
    assert {name for name, of_class in part.per_class.items() if of_class.images} == set(ANIMALS[:3])
    named.pretrained_cfg["label_names"] = [*ANIMALS[:6], "yak"]
    with pytest.raises(RequestError, match=r"^data: unknown class gnu; it must have classes that were trained \(7 of"):
        evaluate(named, data, size=32)
    named.pretrained_cfg["label_names"] = list("0123456")  # of another kind, so that the numbers count
    assert evaluate(named, data, size=32).loss == opened.loss
    with pytest.raises(RequestError, match="photos/: no such data set"):
        evaluate(model, "photos/", size=32)
    with pytest.raises(RequestError, match=r'data: expected the name of a data set, as "photos/", .* found 3'):
        evaluate(model, 3, size=32)  # type: ignore[arg-type]


def test_outputs_and_classes_must_agree(lively: Callable[..., nn.Module], data: ImageSet) -> None:
    with pytest.raises(RequestError, match="the model tells 9 classes apart, the data set has 7"):
        evaluate(lively(num_classes=9), data, size=32)
    with pytest.raises(RequestError, match=r"expected logits of shape \(images, classes\), found \(35, 3, 32, 32\)"):
        evaluate(nn.Identity(), data, size=32)


def half(root: str, told: Path) -> None:
    """What each of two processes does."""
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=7).eval()
    with join_processes("cpu") as here:
        shared = torch.nn.parallel.DistributedDataParallel(model)
        data = open_dataset(root, "val")
        result = evaluate(shared, data, size=32, batch_size=4, corruption=("fog", 3), rank=here.rank, world=here.world)
    (told / str(here.rank)).write_text(result.model_dump_json())


def test_two_processes_count_every_image_once(tmp_path: Path) -> None:
    """Shares of 11 and 10 images, so one has a batch more; one image cannot be read."""
    root = draw_classes(tmp_path / "pictures", ANIMALS, 3)
    (root / "ant" / "0.jpg").write_bytes(b"broken")
    assert ranks(2, half, str(root), tmp_path) == [0, 0]
    first, second = (Evaluation.model_validate_json((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert first == second

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = timm.create_model("test_resnet", num_classes=7).eval()
    alone = evaluate(model, open_dataset(str(root), "val"), size=32, batch_size=4, corruption=("fog", 3))
    assert counts(first) == counts(alone)
    assert first.loss == pytest.approx(alone.loss, rel=1e-6)
    assert (first.images, first.unreadable_count) == (20, 1)
    assert first.unreadable == alone.unreadable
