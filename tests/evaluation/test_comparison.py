"""Models side by side, from files: sizes, corruptions, ImageNet-C, -A and -R folders, labels in another order."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data_pictures import PETS, draw, draw_classes
from torch import nn

import tcnn
from tcnn.config.evaluation import EvaluationConfig
from tcnn.data.image_set import first_of_each, open_dataset
from tcnn.errors import RequestError
from tcnn.evaluation.comparing.comparison import compare, open_model
from tcnn.evaluation.comparing.report import csv_rows
from tcnn.evaluation.corruptions import CORRUPTIONS
from tcnn.evaluation.evaluate import evaluate
from tcnn.evaluation.imagenet_variants import ALEXNET_ERRORS, synsets


@pytest.mark.slow
def test_source_and_converted_agree_at_every_size(source: str, checkpoint: str, pictures: str) -> None:
    """What a conversion promises, on images: the same right answers, and nearly the same loss."""
    seen: list[tuple[int, int, str]] = []
    config = EvaluationConfig(sizes=((32, 32), (48, 64)), corruptions=("fog", "contrast"), severities=(5, 1))
    result = compare([source, checkpoint], pictures, config, progress=lambda *state: seen.append(state))
    assert [(row.model, row.height, row.width) for row in result.rows] == [
        (source, 32, 32), (source, 48, 64), (checkpoint, 32, 32), (checkpoint, 48, 64),
    ]  # fmt: skip
    for one, other in zip(result.rows[:2], result.rows[2:], strict=True):
        assert one.clean
        assert other.clean
        assert one.clean.right == other.clean.right
        assert one.clean.loss == pytest.approx(other.clean.loss, rel=1e-4)
        assert one.parameters < other.parameters
        assert list(one.corruptions) == ["fog", "contrast"]
        for name in one.corruptions:
            assert one.corruptions[name].top1 == other.corruptions[name].top1
            assert list(one.corruptions[name].severities) == [1, 5]
            assert other.corruptions[name].ce == pytest.approx(1)
        assert one.mce == other.mce == pytest.approx(1)
        assert one.corruption_error == pytest.approx(sum(s.error for s in one.corruptions.values()) / 2)
    assert result.rows[0].clean
    assert result.rows[0].clean.loss != result.rows[1].clean.loss
    assert (result.baseline, result.layout, result.images) == (source, "plain", 15)
    assert seen[-1][:2] == (2 * 2 * 5 * 15,) * 2
    assert [state[0] for state in seen] == sorted(state[0] for state in seen)


def test_single_images_are_named_where_they_are_asked_for(source: str, checkpoint: str, pictures: str) -> None:
    found = compare([source, checkpoint], pictures, EvaluationConfig(sizes=[32], examples=3))
    for row in found.rows:
        assert row.clean
        assert len(row.mistakes) == min(3, row.clean.images - row.clean.right) > 0
        assert all(one.target != one.answer and one.thumbnail for one in row.mistakes)
    (change,) = found.changes
    assert (change.of, change.over) == (checkpoint, source)
    assert (change.newly_right, change.newly_wrong, change.otherwise_wrong) == (0, 0, 0)  # one function
    short = found.headline()
    assert not any(row.mistakes for row in short.rows) and short.changes[0].newly_right == 0
    assert found.rows[0].mistakes, "what is written to the file is left as it was"
    assert not compare([source], pictures, sizes=[32]).changes


@pytest.mark.parametrize("option", [{"severities": (1,)}, {"baseline": "alexnet"}, {"seed": 3}], ids=str)
def test_settings_of_corruptions_are_given_with_corruptions(source: str, pictures: str, option: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=rf"^{next(iter(option))}: has no effect, because nothing is corrupted"):
        compare([source], pictures, sizes=[32], **option)
    assert "baseline" in option or compare([source], pictures, EvaluationConfig(sizes=[32], **option), seed=0).rows


def test_is_what_evaluate_says(checkpoint: str, pictures: str) -> None:
    model, data = open_model(checkpoint), open_dataset(pictures, "val")
    config = EvaluationConfig(sizes=[40], corruptions=("snow",), severities=(3,), per_class=True)
    seen: list[tuple[int, int, str]] = []
    (row,) = compare([checkpoint], pictures, config, progress=lambda *state: seen.append(state)).rows
    assert sorted({state[0] for state in seen}) == [0, 15, 30] and {state[1] for state in seen} == {30}
    told = [f"loading {checkpoint}", "t.safetensors at 40×40", "t.safetensors at 40×40 snow 3"]
    assert list(dict.fromkeys(what for *_, what in seen)) == told
    expected = evaluate(model, data, size=40)
    assert row.clean
    assert row.clean.model_dump(exclude={"images_per_second"}) == expected.model_dump(exclude={"images_per_second"})
    third = evaluate(model, data, size=40, corruption=("snow", 3))
    found = row.corruptions["snow"].severities[3]
    assert (found.right, found.loss) == (third.right, third.loss)
    assert row.mce is None  # of one model alone there is none
    assert not compare([checkpoint], pictures, EvaluationConfig(sizes=[40])).rows[0].clean.per_class  # type: ignore[union-attr]


def test_labels_in_another_order(tmp_path: Path, lively: Callable[..., nn.Module], pictures: str) -> None:
    model = tcnn.convert(lively(num_classes=5)).model
    plain = compare(
        [str(tcnn.save(model, tmp_path / "a.safetensors"))], pictures, EvaluationConfig(sizes=[32], limit=7)
    )
    order = [3, 0, 4, 1, 2]
    head = model.get_classifier()
    with torch.no_grad():
        head.weight.copy_(head.weight[order])
        head.bias.copy_(head.bias[order])
    model.pretrained_cfg = {**model.pretrained_cfg, "label_names": [PETS[i] for i in order]}
    config = EvaluationConfig(sizes=[32], limit=7, per_class=True)
    shuffled = compare([str(tcnn.save(model, tmp_path / "b.safetensors"))], pictures, config)
    one, other = plain.rows[0].clean, shuffled.rows[0].clean
    assert one
    assert other
    assert (one.right, one.images) == (other.right, 7)
    assert one.loss == pytest.approx(other.loss, rel=1e-5)
    assert list(other.per_class) == [PETS[i] for i in order]

    model.pretrained_cfg = {**model.pretrained_cfg, "label_names": ["cat", "dog", "eel", "fox", "hen"]}
    wrong = str(tcnn.save(model, tmp_path / "c.safetensors"))
    with pytest.raises(RequestError, match="different classes: gnu only in the data set, hen only in the model"):
        compare([wrong], pictures, EvaluationConfig(sizes=[32]))


@pytest.mark.parametrize("layout", ["imagenet-a", pytest.param("imagenet-r", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_variants_are_scored_over_their_classes(tmp_path: Path, imagenet_model: str, layout: str) -> None:
    root = tmp_path / "variant"
    for place, name in enumerate(synsets(layout)):  # type: ignore[arg-type]
        draw(root / name / "x.png", place, width=24, height=24)
    found = compare([imagenet_model], str(root), EvaluationConfig(sizes=[24]))
    (row,) = found.rows
    assert (found.layout, row.classes, row.outputs, row.clean.images) == (layout, 200, 1000, 200)  # type: ignore[union-attr]
    columns = [synsets().index(name) for name in synsets(layout)]  # type: ignore[arg-type]
    expected = evaluate(open_model(imagenet_model), open_dataset(str(root), "val"), size=24, class_subset=columns)
    assert row.clean
    assert (row.clean.right, row.clean.loss) == (expected.right, expected.loss)
    for name in synsets(layout)[50:]:  # type: ignore[arg-type]
        (root / name / "x.png").unlink()
        (root / name).rmdir()
    part = compare([imagenet_model], str(root), EvaluationConfig(sizes=[24], layout=layout)).rows[0]
    assert (part.classes, part.clean.images) == (200, 50)  # type: ignore[union-attr]
    fewer = compare([imagenet_model], str(root), EvaluationConfig(sizes=[24])).rows[0]
    assert fewer.classes == 50


def test_imagenet_c_folders(tmp_path: Path, source: str, checkpoint: str) -> None:
    """Stored corruptions are read as they are: cropped to their own size, with no corruption on top."""
    for name, severity in (("fog", 1), ("fog", 3), ("snow", 3)):
        draw_classes(tmp_path / "weather" / name / str(severity), PETS, 2)
    result = compare([source, checkpoint], str(tmp_path), EvaluationConfig(sizes=[32]))
    assert (result.layout, result.images, result.baseline) == ("imagenet-c", 10, source)
    row = result.rows[1]
    assert row.clean is None
    assert {name: list(score.severities) for name, score in row.corruptions.items()} == {"snow": [3], "fog": [1, 3]}
    stored = open_dataset(str(tmp_path / "weather" / "fog" / "3"), "val")
    expected = evaluate(open_model(checkpoint), stored, size=32, crop_pct=1.0)
    assert row.corruptions["fog"].severities[3].loss == expected.loss
    some = compare([source], str(tmp_path), EvaluationConfig(sizes=[32], corruptions=("fog",), severities=(3, 5)))
    assert list(some.rows[0].corruptions["fog"].severities) == [3]
    with pytest.raises(RequestError, match=r"it has snow, fog with severities \[1, 3\]"):
        compare([source], str(tmp_path), EvaluationConfig(corruptions=("frost",)))


@pytest.mark.slow
def test_alexnet_is_the_baseline_of_all_imagenet_c(tmp_path: Path, imagenet_model: str) -> None:
    one = tmp_path / "classes"
    picture = draw(tmp_path / "x.png", width=16, height=16)
    for name in synsets():
        (one / name).mkdir(parents=True)
        (one / name / "x.png").hardlink_to(picture)
    for name in CORRUPTIONS:
        (tmp_path / "c" / name).mkdir(parents=True)
        for severity in range(1, 6):
            (tmp_path / "c" / name / str(severity)).symlink_to(one, target_is_directory=True)
    result = compare([imagenet_model], str(tmp_path / "c"), EvaluationConfig(sizes=[16], limit=4, batch_size=4))
    assert result.baseline == "alexnet"
    (row,) = result.rows
    for name, score in row.corruptions.items():
        assert score.ce == pytest.approx(score.error / ALEXNET_ERRORS[name])
    assert row.mce == pytest.approx(sum(score.ce or 0 for score in row.corruptions.values()) / 15)
    config = EvaluationConfig(sizes=[16], limit=4, severities=(1,))
    assert compare([imagenet_model], str(tmp_path / "c"), config).baseline is None


def test_limit_takes_classes_in_turn(tmp_path: Path) -> None:
    for name, images in (("a", 1), ("b", 4), ("c", 4)):
        draw_classes(tmp_path, [name], images)
    data = open_dataset(str(tmp_path), "val")
    assert [first_of_each(data, n).targets.bincount(minlength=3).tolist() for n in (1, 3, 5, 8, 99)] == [
        [1, 0, 0], [1, 1, 1], [1, 2, 2], [1, 4, 3], [1, 4, 4],
    ]  # fmt: skip
    renamed = open_dataset(str(tmp_path), "val", class_names=["c", "b", "a"])
    for n in range(1, 10):
        one, other = first_of_each(data, n), first_of_each(renamed, n)
        assert [one.filename(i) for i in range(len(one))] == [other.filename(i) for i in range(len(other))]


def test_csv_has_a_line_for_every_pass(source: str, pictures: str) -> None:
    config = EvaluationConfig(sizes=[24, 32], corruptions=("fog",), severities=(1, 2), limit=5)
    lines = list(csv_rows(compare([source], pictures, config)))
    assert [(line["height"], line["corruption"], line["severity"]) for line in lines] == [
        (size, *case) for size in (24, 32) for case in (("", ""), ("fog", 1), ("fog", 2))
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]))
    writer.writerows(lines)
