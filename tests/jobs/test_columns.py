"""Which numbers of a result stand in a list of jobs, and by which names."""

from typing import Any

from tcnn_jobs.model.columns import MOST, metrics_of


def evaluated(classes: int) -> dict[str, Any]:
    """The result of an evaluation, class by class."""
    scores = {f"class_{number}": {"images": 50, "right": 40, "top1": 0.8} for number in range(classes)}
    clean = {"images": 50 * classes, "right": 40 * classes, "top1": 0.8, "top5": None, "loss": 0.7, "per_class": scores}
    fog = {"top1": 0.6, "severities": {"1": {"images": 50, "top1": 0.7}}}
    row = {"model": "resnet18", "parameters": 11_000_000, "height": 224, "width": 224, "clean": clean,
           "corruptions": {"fog": fog}, "corruption_top1": 0.6}  # fmt: skip
    return {"data": "pets", "split": "val", "images": 50 * classes, "rows": [row, row]}


def test_accuracy_is_told_however_many_classes_were_measured() -> None:
    found = metrics_of(evaluated(1000))
    assert (found["top1"], found["loss"], found["corruption_top1"]) == (0.8, 0.7, 0.6)
    assert found["images"] == 50_000 and found["parameters"] == 11_000_000
    assert not [name for name in found if "per_class" in name], "a class is no column"
    assert not [name for name in found if name.startswith("clean.")], "it has a short name"
    assert found == metrics_of(evaluated(3)) | {"images": 50_000, "right": 40_000}


def test_accuracy_is_that_of_the_model_that_the_result_is() -> None:
    assert metrics_of({"top1": 0.0, "best_top1": 0.5})["accuracy"] == 0.5, "the last epoch's weights are not kept"
    assert metrics_of({"top1": 0.0, "best_top1": 0.0})["accuracy"] == 0.0
    assert metrics_of(evaluated(3))["accuracy"] == 0.8
    assert "accuracy" not in metrics_of({"seconds": 3.0}), "a conversion measures none"


def test_of_many_numbers_those_of_the_shortest_names_are_told() -> None:
    deep = {f"of_{number}": {"one": {"more": number}} for number in range(2 * MOST)}
    found = metrics_of({**deep, "top1": 0.5, "before_after": {"images": 9}})
    assert len(found) == MOST
    assert list(found)[:2] == ["top1", "before_after.images"]
    assert metrics_of(None) == {}


def test_only_a_number_that_has_a_shorter_name_is_left_out() -> None:
    assert metrics_of({"clean": {"top1": 0.5}}) == {"clean.top1": 0.5}
    assert metrics_of({"clean": {"top1": 0.5}, "top1": 0.5}) == {"top1": 0.5}
