"""Words and numbers for those who read them: no command line in answers, no HTTP verbs on the command line, names of
files that a locale cannot read, logs for a person or for machines, and the numbers of a result in a list of jobs.
"""

import io
from typing import Any

import pytest

from tcnn.errors import readable
from tcnn_jobs.errors import for_commands, for_requests
from tcnn_jobs.logs import form_on
from tcnn_jobs.model.columns import MOST, metrics_of


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("stopped; go on with --resume --out run", "stopped; resume the job"),
        ("out of memory; go on with --resume --set micro_batch=4", "out of memory; run it again with micro_batch=4"),
        ("(update 3); go on with --resume --out /home/a/run", "(update 3); resume the job"),
        (
            "x: no weights; give --weights FILE, or --no-pretrained for random ones",
            "x: no weights; name weights of your own (POST /weights), or set pretrained to false for random ones",
        ),
        ("give --batch-size 8 or less", "give batch_size 8 or less"),
        (
            "name a validation set with --val DATASET, or --val-split 0.1",
            "name a validation set with val, or val_split 0.1",
        ),
        ("other stages: --stage 2 (3 in layer2)", "other stages: stage 2 (3 in layer2)"),
        ("use float32 (with --allow-changes)", "use float32"),
        (
            "the upload: no space left while writing; nothing was kept, free some space or choose another disk",
            "the upload: no space left while writing; nothing was kept, make room on the server",
        ),
        ("nothing was kept, choose another place", "nothing was kept, the server's operator has to mend that"),
        ("a---b 1--2 layer4 -- that is all", "a---b 1--2 layer4 -- that is all"),
    ],
)
def test_options_become_fields(said: str, told: str) -> None:
    assert for_requests(said) == told


def test_names_of_files_are_utf8_whatever_the_locale() -> None:
    assert readable("größe".encode().decode("ascii", "surrogateescape")) == "größe"
    assert readable("größe") == "größe"
    assert readable("a\udcff.png") == r"a\xff.png", "which is no text at all, and is refused as a class"
    assert readable("\ud800") == r"\ud800"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("x: no such job; GET /jobs lists yours", "x: no such job; `tcnn jobs list` lists yours"),
        ("GET /models lists them, POST /checkpoints takes your own weights",
         "`tcnn models` lists them, `tcnn jobs upload PATH` takes your own weights"),
        ("j: no file of this name; GET /jobs/j/checkpoints lists them",
         "j: no file of this name; `tcnn jobs show j` lists them"),
        ("x: no such link; GET /jobs/j/shares lists yours", "x: no such link; `tcnn jobs share j --list` lists yours"),
        ("the model is a T-CNN already; POST /finetune with `model` takes it",
         "the model is a T-CNN already; `tcnn jobs submit finetune` with `model` takes it"),
    ],
)  # fmt: skip
def test_advice_on_the_command_line_has_no_http_verbs(told: str, expected: str) -> None:
    assert for_commands(told) == expected


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "asked", "form"),
    [
        (Terminal(), "auto", "console"), (io.StringIO(), "auto", "json"), (Terminal(), "json", "json"),
        (io.StringIO(), "console", "console"),
    ],
)  # fmt: skip
def test_the_form_suits_the_reader(stream: io.StringIO, asked: str, form: str) -> None:
    assert form_on(stream, asked) == form


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
