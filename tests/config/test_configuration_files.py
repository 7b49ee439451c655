"""Settings from a file, in YAML or JSON, or a run's own; what is wrong with one is one line that names it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.reproduce import experiment
from tcnn.config import PRESETS, finetune_config
from tcnn.config.presets import parsed
from tcnn.errors import RequestError


def refused(file: Path) -> str:
    with pytest.raises(RequestError) as caught:
        finetune_config(file=file)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


@pytest.mark.parametrize("kind", ["yaml", "json", "run"])
@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_printed_reads_the_same(tmp_path: Path, preset: str, kind: str) -> None:
    config = finetune_config(preset, assignments=["size=[64,48]", "lr=1.23456789e-5", "conversion.target=last"])
    values, file = config.model_dump(mode="json"), tmp_path / "config"
    text = {"yaml": yaml.safe_dump(values), "json": json.dumps(values)}.get(kind) or json.dumps(
        {"run": "finetune", "model": "test_resnet", "config": values}
    )
    file.write_text(text)
    assert finetune_config("cifar" if preset == "quick" else "quick", file) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epochs: [1\n", "neither YAML nor JSON in line 2: "),
        ("{:::", "neither YAML nor JSON in line 1: "),
        ("a: \x00", "neither YAML nor JSON: unacceptable character"),
        ("!!python/object:os.system {}", "neither YAML nor JSON in line 1: "),
        ("- 1\n- 2\n", "expected settings as `key: value` lines, found list"),
        ("fast", "expected settings as `key: value` lines, found str"),
        ("1: 2", "1: no such setting"),
        ("null: 2", "None: no such setting"),
        (b"\xff\xfe\x00", "not a readable configuration file (UnicodeDecodeError)"),
    ],
)
def test_files_that_are_no_settings(tmp_path: Path, text: str | bytes, expected: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert refused(file).startswith(f"{file}: {expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epohcs: 3", "epohcs: no such setting; did you mean epochs?"),
        ("epochs: 2020-01-01", "epochs: input should be a valid integer"),
        ("conversion: {1: 2}", "conversion.1: keys should be strings"),
        ("conversion: &a {stage: *a}", "conversion.stage: input should be a valid integer"),
        ("mixup: {alpha: 0.8}", "mixup: input should be a valid number"),
    ],
)
def test_files_with_wrong_settings(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    assert refused(file).startswith(expected)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert refused(tmp_path / "no.yaml") == f"{tmp_path / 'no.yaml'}: no such configuration file"
    assert refused(tmp_path).startswith(f"{tmp_path}: not a readable configuration file")


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("# nothing yet\n")
    assert finetune_config("quick", file) == finetune_config("quick")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr: 1\nseed: 2\nlr: 1\n", "lr is given twice, in lines 1 and 3; give it once"),
        ('conversion:\n  stage: 3\n  "stage": 4\n', "stage is given twice, in lines 2 and 3; give it once"),
        ('{"epochs": 3, "epochs": 4}', "epochs is given twice, in line 1; give it once"),
        ('{"run": "finetune", "config": {}, "config": {"lr": 1}}', "config is given twice, in line 1; give it once"),
        ("size: [{a: 1, a: 2}]", "a is given twice, in line 1; give it once"),
        ("a: &it {lr: 1}\n<<: *it\n1: 2\n1: 3\n", "1 is given twice, in lines 3 and 4; give it once"),
        ("conversion: &a {stage: *a, stage: 3}", "stage is given twice, in line 1; give it once"),
    ],
)
def test_a_key_that_is_given_twice(tmp_path: Path, text: str, expected: str) -> None:
    """YAML's reader takes the last, as JSON's does: one of the two was a mistake."""
    file = tmp_path / "a.yaml"
    file.write_text(text)
    assert refused(file) == f"{file}: {expected}"
    with pytest.raises(RequestError, match=r"given twice"):
        experiment.load(file)


def test_keys_that_are_alike_are_not_given_twice(tmp_path: Path) -> None:
    """In two places, as words and numbers, of a mapping that another is merged with, or twice."""
    texts = {
        "a: {lr: 1}\nb: {lr: 1}\nlr: 2\n": {"a": {"lr": 1}, "b": {"lr": 1}, "lr": 2},
        "1: 2\n'1': 3\n": {1: 2, "1": 3},
        "a: &a {lr: 1, seed: 3}\n<<: *a\nlr: 2\n": {"a": {"lr": 1, "seed": 3}, "lr": 2, "seed": 3},
        "": None,
    }
    found: dict[str, Any] = {text: parsed(text, "f") for text in texts}
    assert found == texts
