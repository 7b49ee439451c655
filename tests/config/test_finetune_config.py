"""One configuration from a preset, a file, assignments and options; what is wrong is one line that names the field."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

import tcnn
from tcnn.config import PRESETS, ConversionConfig, FinetuneConfig, build, finetune_config, finetune_settings
from tcnn.config.base import Frozen
from tcnn.config.evaluation import EvaluationConfig, VerificationConfig
from tcnn.config.finetune import RUNTIME
from tcnn.errors import RequestError


def refused(*arguments: Any, **options: Any) -> str:
    with pytest.raises(RequestError) as caught:
        finetune_config(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


def test_the_defaults_are_the_papers() -> None:
    """§3 of the paper, and DeiT's augmentation (Touvron et al. 2021, Table 9)."""
    config = finetune_config()
    assert config == FinetuneConfig()
    said = {
        "opt": "adamw", "epochs": 50, "batch_size": 1024, "lr": 1e-4, "gating_lr": 0.1, "warmup": 5, "annealing": 5,
        "gate_temperature": 1, "position_temperature": 1,
        "auto_augment": "rand-m9-mstd0.5-inc1", "mixup": 0.8, "cutmix": 1.0, "reprob": 0.25, "smoothing": 0.1,
        "repeats": 3, "weight_decay": 0.05, "anneal": "warmup", "train_interpolation": "bicubic",
    }  # fmt: skip
    assert {key: getattr(config, key) for key in said} == said


@pytest.mark.parametrize("name", PRESETS)
def test_the_dashboards_form_shows_a_presets_own_settings(name: str) -> None:
    form = (Path(__file__).parents[2] / "tcnn_api/dashboard/forms/training-form.js").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^  {name}: \{{ (.*) }},$", form, re.MULTILINE)
    shown = dict(re.findall(r"(\w+): ([\d.]+)", line))
    assert {"epochs", "batch_size", "lr"} <= shown.keys()
    made = finetune_config(name)
    for key, value in shown.items():
        assert getattr(made, key) == float(value), key


def test_what_is_no_preset_and_no_file_is_one_line() -> None:
    assert re.fullmatch(r"--preset: expected one of paper, .*, found 3", refused(3))
    assert refused("paper", 3) == "file: expected a path (str or pathlib.Path), found a value of type int"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_configurations(name: str) -> None:
    config = finetune_config(name)
    chosen = config.model_dump(include=set(PRESETS[name]))
    own = PRESETS[name].get("conversion", {})
    assert {key: value for key, value in chosen.items() if key != "conversion"} | (
        {"conversion": config.conversion.model_dump(include=set(own))} if own else {}
    ) == PRESETS[name]


def test_the_later_wins(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("epochs: 7\nlr: 1e-3\nbatch_size: 32\nconversion: {stride: remove, head_dim: 8}\n")
    config = finetune_config("quick", file, ["lr=2e-3", "batch_size=16", "conversion.head_dim=16"], {"batch_size": 8})
    assert (config.warmup_epochs, config.epochs, config.lr, config.batch_size) == (1, 7, 2e-3, 8)
    assert config.conversion == ConversionConfig(stride="remove", head_dim=16, content_heads=4)
    assert PRESETS["quick"]["batch_size"] == 64, "the preset is as it was"
    assert PRESETS["quick"]["conversion"] == {"content_heads": 4}, "inside as well"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("size=64", "size", 64),
        ("size=[64,48]", "size", (64, 48)),
        ("clip_grad=null", "clip_grad", None),
        ("clip_grad=None", "clip_grad", None),
        ("compile=True", "compile", True),
        ("compile=true", "compile", True),
        ("auto_augment=rand-m5", "auto_augment", "rand-m5"),
        ("teacher=local-dir:a=b", "teacher", "local-dir:a=b"),
        ("conversion.stride=remove", "conversion", ConversionConfig(stride="remove")),
        ("scale=[0.5, 0.9]", "scale", (0.5, 0.9)),
        ("seed=7", "seed", 7),
    ],
)
def test_assignments(text: str, key: str, value: object) -> None:
    assert getattr(finetune_config(assignments=[text]), key) == value


def test_it_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        FinetuneConfig().epochs = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epohcs=3", "epohcs: no such setting; did you mean epochs?"),
        ("conversion.strid=keep", "conversion.strid: no such setting; did you mean stride?"),
        ("zzz=3", "zzz: no such setting; expected one of convert, "),
        ("epochs=0", "epochs: input should be greater than or equal to 1, got 0"),
        ("epochs=many", "epochs: input should be a valid integer"),
        ("epochs=2.5", "epochs: input should be a valid integer"),
        ("lr=NaN", "lr: input should be a finite number"),
        ("lr=1e999", "lr: input should be a finite number"),
        ("gate_temperature=1e300", "gate_temperature: expected from 1e-38 to 3e+38, as float32 has, got 1e+300"),
        ("position_temperature=1e-300", "position_temperature: expected from 1e-38 to 3e+38, as float32 has"),
        ("conversion.temperature=1e300", "conversion.temperature: expected from 1e-38 to 3e+38, as float32 has"),
        ("lr=-1", "lr: input should be greater than or equal to 0"),
        ("size=0", "size: input should be greater than or equal to 1, got 0"),
        ("size=-32", "size: input should be greater than or equal to 1, got -32"),
        ("size=[32,0]", "size: input should be greater than or equal to 1, got 0"),
        ("size=abc", "size: input should be a valid integer"),
        ("seed=18446744073709551616", "seed: input should be less than"),
        ("anneal_epochs=Infinity", "anneal_epochs: input should be a finite number"),
        ("fraction=0", "fraction: input should be greater than 0"),
        ("fraction=1.5", "fraction: input should be less than or equal to 1"),
        ("val_split=1", "val_split: input should be less than 1"),
        ("scale=[0.9,0.5]", "scale: expected two numbers, 0 < smallest <= largest"),
        ("ratio=[0,1]", "ratio: expected two numbers"),
        ("ratio=1", "ratio: input should be a valid list"),
        ("anneal=slowly", "anneal: input should be 'warmup', 'none' or 'hold'"),
        ("amp=float8", "amp: input should be"),
        ("conversion.target=(", "conversion.target: not a regular expression"),
        ("conversion.stride=jump", "conversion.stride: input should be 'keep', 'remove' or 'dilate'"),
        ("conversion=3", "conversion: "),
        ("warmup_epochs=51", "warmup_epochs: expected at most the 50 epochs, found 51"),
        ("convert_at=50", "convert_at: expected less than the 50 epochs, found 50"),
        ("batch_size=7", "batch_size: mixup needs an even number, found 7"),
        ("epochs", "--set epochs: expected KEY=VALUE"),
        ("=3", "--set =3: expected KEY=VALUE"),
    ],
)
def test_wrong_assignments(text: str, expected: str) -> None:
    assert refused(assignments=[text]).startswith(expected)


@pytest.mark.parametrize(
    ("preset", "options", "warmup", "annealing"),
    [
        ("paper", {"epochs": 4}, 0.4, 0.4),
        ("paper", {"epochs": 49}, 4.9, 4.9),
        ("paper", {"epochs": 300}, 5, 5),
        ("paper", {"epochs": 4, "warmup_epochs": 2}, 2, 2),
        ("paper", {"epochs": 4, "anneal_epochs": 3}, 0.4, 3),
        ("quick", {"epochs": 2}, 0.4, 1.2),
        ("quick", {"epochs": 2.0}, 0.4, 1.2),
        ("quick", {"epochs": 20}, 1, 3),
        ("quick", {"epochs": 2, "warmup_epochs": 1}, 1, 1.2),
        ("quick", {"epochs": 2, "anneal_epochs": None}, 0.4, 0.4),
        ("cifar", {"epochs": 5}, 0.5, 2.5),
    ],
)
def test_a_shorter_run_has_a_shorter_warm_up(
    preset: str, options: dict[str, Any], warmup: float, annealing: float
) -> None:
    """In the proportion of the recipe, but for what was asked for."""
    for config in (
        finetune_config(preset, options=options),
        finetune_config(preset, assignments=[f"{key}={json.dumps(value)}" for key, value in options.items()]),
    ):
        assert (config.warmup, config.annealing) == (pytest.approx(warmup), pytest.approx(annealing))


@pytest.mark.parametrize(
    "options", [{"convert": False}, {"anneal": "none"}, {"anneal": "hold"}, {"filters": "random"}], ids=str
)
def test_matching_what_there_is_not(options: dict[str, Any]) -> None:
    assert refused(options={"matching": 1, **options}).startswith("matching: expected a T-CNN with pretrained filters")


def test_settings_that_contradict_each_other() -> None:
    assert refused(options={"convert": False, "convert_at": 3}).startswith("convert_at: expected convert to be true")


def test_an_unknown_preset() -> None:
    assert refused("fast") == "--preset: expected one of paper, quick, cifar, found 'fast'"


@pytest.mark.parametrize(
    ("fraction", "epochs", "warmup", "late"), [(1.0, 50, 5, 20), (0.5, 100, 10, 40), (0.1, 500, 50, 200)]
)
def test_a_fraction_has_as_many_updates(fraction: float, epochs: int, warmup: float, late: int) -> None:
    config = FinetuneConfig(fraction=fraction, anneal_epochs=2, convert_at=20).scaled()
    assert (config.epochs, config.convert_at) == (epochs, late)
    assert config.warmup == pytest.approx(warmup)
    assert config.anneal_epochs == pytest.approx(2 / fraction)
    assert FinetuneConfig(fraction=fraction).scaled().anneal_epochs is None


def test_runtime_settings_are_settings() -> None:
    assert set(FinetuneConfig.model_fields) > RUNTIME


def test_several_wrong_fields_are_still_one_line() -> None:
    with pytest.raises(RequestError, match=r"^epochs: [^\n]+$"):
        build(FinetuneConfig, {"epochs": 0, "lr": -1})


def test_a_preset_may_be_named_where_settings_are_given_as_keywords() -> None:
    """It was `no such setting; did you mean repeats?`."""
    assert finetune_settings({"preset": "quick", "lr": 1e-3}) == finetune_config("quick", options={"lr": 1e-3})
    assert finetune_settings({"lr": 1e-3}) == FinetuneConfig(lr=1e-3)
    wide = finetune_settings({"preset": "quick", "conversion": ConversionConfig(head_dim=8)})
    assert (wide.conversion.head_dim, wide.conversion.content_heads) == (8, 4)
    with pytest.raises(RequestError, match=r"^preset: a configuration has all settings already; give one of the two$"):
        finetune_settings({"preset": "quick"}, FinetuneConfig())
    with pytest.raises(RequestError, match=r"expected one of paper, quick, cifar, found 'fast'$"):
        finetune_settings({"preset": "fast"})
    groups = tcnn.parameter_groups(torch.nn.Linear(2, 2), preset="quick")
    assert {group["lr"] for group in groups} == {finetune_config("quick").lr}


@pytest.mark.parametrize("kind", [FinetuneConfig, ConversionConfig, VerificationConfig, EvaluationConfig])
def test_true_and_false_are_no_numbers(kind: type[Frozen]) -> None:
    """Pydantic takes them for 1 and 0, so that `epochs=True` was a run of one epoch."""
    numbers = {name for name, field in kind.model_fields.items() if type(field.default) in (int, float)}
    assert numbers
    for name in numbers:
        for value in (True, False):
            with pytest.raises(RequestError, match=f"^{name}: input should be a number, got {value}$"):
                build(kind, {name: value})
    for name in (name for name, field in kind.model_fields.items() if type(field.default) is bool):
        assert [getattr(build(kind, {name: value}), name) for value in (True, False)] == [True, False]


def test_nor_within_what_a_setting_is_made_of(tmp_path: Path) -> None:
    assert refused(options={"size": (True, 32)}) == "size: input should be a number, got (True, 32)"
    assert refused(options={"conversion": {"head_dim": True}}).startswith("conversion.head_dim: input should be a numb")
    assert refused(assignments=["val_split=false"]) == "val_split: input should be a number, got False"
    (tmp_path / "c.yaml").write_text("epochs: yes\n")
    assert refused(file=tmp_path / "c.yaml").endswith("epochs: input should be a number, got True")
