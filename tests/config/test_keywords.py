"""What the functions are given in Python: keywords beside a configuration go over it, and one that it does not know is
refused: none vanishes; nor is what is neither path nor model where one should stand, such as None, a TypeError."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from pydantic import BaseModel
from torch import nn

import tcnn
from tcnn.config import (
    ConversionConfig,
    FinetuneConfig,
    VerificationConfig,
    build,
    finetune_config,
    finetune_settings,
)
from tcnn.config.base import unknown_key
from tcnn.config.evaluation import EvaluationConfig
from tcnn.errors import RequestError

TAKE_BOTH = ["compare", "convert", "finetune", "parameter_groups", "plan", "verify", "without_stride"]
"""The public functions that take a configuration and its fields as keywords."""


@pytest.fixture(scope="module")
def source() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)).eval()


def test_these_are_all_that_take_both() -> None:
    functions = {name: getattr(tcnn, name) for name in tcnn.__all__ if inspect.isfunction(getattr(tcnn, name))}
    both = [
        name
        for name, function in functions.items()
        if "config" in (parameters := inspect.signature(function).parameters)
        and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    ]
    assert both == TAKE_BOTH


class TestBuild:
    def test_keywords_go_over_what_was_set(self) -> None:
        given = ConversionConfig(head_dim=4, seed=7)
        made = build(ConversionConfig, {"seed": 8}, given)
        assert made == ConversionConfig(head_dim=4, seed=8) and given.seed == 7
        assert made.model_fields_set == {"head_dim", "seed"}

    def test_without_keywords_it_is_the_same(self) -> None:
        given = FinetuneConfig(epochs=9, conversion=ConversionConfig(stage=2), scale=(0.1, 0.2), size=(3, 4))
        assert build(FinetuneConfig, {}, given) == given

    def test_the_sum_is_validated(self) -> None:
        with pytest.raises(RequestError, match=r"^convert_at: expected less than the 3 epochs"):
            build(FinetuneConfig, {"convert_at": 4}, FinetuneConfig(epochs=3, warmup_epochs=1))


class TestEveryFunction:
    def calls(self, source: nn.Module) -> dict[str, Callable[..., object]]:
        converted = tcnn.convert(source).model
        return {
            "compare": lambda **options: tcnn.compare("resnet18", "nowhere", **options),
            "convert": lambda **options: tcnn.convert(source, **options),
            "finetune": lambda **options: tcnn.finetune(source, "nowhere", **options),
            "parameter_groups": lambda **options: tcnn.parameter_groups(converted, **options),
            "plan": lambda **options: tcnn.plan(source, "nowhere", **options),
            "verify": lambda **options: tcnn.verify(source, converted, images=torch.zeros(1, 3, 8, 8), **options),
            "without_stride": lambda **options: tcnn.without_stride(source, **options),
        }

    @pytest.mark.parametrize("name", TAKE_BOTH)
    def test_refuses_an_unknown_keyword_beside_a_configuration(self, source: nn.Module, name: str) -> None:
        own = {
            "verify": VerificationConfig,
            "compare": EvaluationConfig,
            **dict.fromkeys(("finetune", "parameter_groups", "plan"), FinetuneConfig),
        }.get(name, ConversionConfig)
        with pytest.raises(RequestError, match=r"^bogus: no such setting") as caught:
            self.calls(source)[name](config=own(), bogus=1)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", TAKE_BOTH)
    def test_refuses_a_configuration_of_another_kind(self, source: nn.Module, name: str) -> None:
        class Other:
            stride = "keep"

        with pytest.raises(RequestError, match=r"^config: expected a \w+Config, got a Other$"):
            self.calls(source)[name](config=Other())


def test_convert_follows_both(source: nn.Module) -> None:
    model, report = tcnn.convert(source, ConversionConfig(head_dim=4, temperature=0.5), head_dim=6)
    assert report.config == ConversionConfig(head_dim=6, temperature=0.5)
    assert model[1].head_dim == 6 and model[1].position_temperature.item() == 0.5


def test_verify_follows_both(source: nn.Module) -> None:
    config = VerificationConfig(float64=False, input_size=(8, 8))
    report = tcnn.verify(source, tcnn.convert(source).model, config, tolerance_float32=1e-30)
    assert [result.tolerance for result in report.passes] == [1e-30]
    assert report.images == "noise 2×3×8×8"


def test_without_stride_removes_it_whatever_the_configuration_says_and_refuses_to_keep_it() -> None:
    source = timm.create_model("test_resnet")
    assert max(tcnn.without_stride(source, ConversionConfig(head_dim=4)).layer4[0].conv1.stride) == 1
    with pytest.raises(RequestError, match=r"^stride: without_stride removes it, got 'keep'"):
        tcnn.without_stride(source, stride="keep")


def test_finetune_follows_both(source: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^convert_at: expected less than the 2 epochs"):
        tcnn.finetune(source, "nowhere", config=FinetuneConfig(epochs=2, warmup_epochs=0), out=tmp_path, convert_at=5)


@pytest.mark.parametrize("kind", [dict, ConversionConfig])
def test_settings_of_the_conversion_go_over_a_configurations_one_by_one(kind: Any) -> None:
    """As over a preset's; the content heads were lost."""
    given = {"conversion": kind(stride="remove")}
    made = finetune_settings(given, finetune_config("quick"))
    assert made == finetune_settings({**given, "preset": "quick"}) and made.conversion.content_heads == 4
    with pytest.raises(RequestError, match=r"^conversion\.strid: no such setting; did you mean stride\?$"):
        finetune_settings({"conversion": {"strid": "remove"}}, finetune_config("quick"))


class Inner(BaseModel):
    model: str = ""


class Outer(BaseModel):
    several: tuple[Inner, ...] = ()
    perhaps: Inner | None = None
    number: int = 0


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("path", "message"),
        [
            (("several", 0, "modle"), "several.0.modle: no such setting; did you mean model?"),
            (("several", 3, "zzz"), "several.3.zzz: no such setting; expected one of model"),
            (("perhaps", "zzz"), "perhaps.zzz: no such setting; expected one of model"),
            (("number", "zzz"), "number.zzz: no such setting; leave it out"),
            (("numbre",), "numbre: no such setting; did you mean number?"),
        ],
    )
    def test_names_those_of_its_own_place(self, path: tuple[int | str, ...], message: str) -> None:
        assert unknown_key(Outer, path) == message


MODEL = nn.Identity()
PATHS: dict[str, Callable[..., object]] = {
    "load": tcnn.load,
    "save": lambda wrong: tcnn.save(MODEL, wrong),  # type: ignore[arg-type]
    "save_directory": lambda wrong: tcnn.save_directory(MODEL, wrong),  # type: ignore[arg-type]
    "export": lambda wrong: tcnn.export(MODEL, wrong),  # type: ignore[arg-type]
    "export_explorer": lambda wrong: tcnn.export_explorer(MODEL, wrong),  # type: ignore[arg-type]
    "report": tcnn.report,
}
MODELS: dict[str, Callable[..., object]] = {
    "convert": tcnn.convert,
    "evaluate": lambda wrong: tcnn.evaluate(wrong, None),  # type: ignore[arg-type]
    "initialise": tcnn.initialise,
    "inspect": tcnn.inspect,
    "predict": lambda wrong: tcnn.predict(wrong, [__file__]),  # type: ignore[arg-type]
    "push_to_hub": lambda wrong: tcnn.push_to_hub(wrong, "team/model"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("wrong", [None, 3, b"model.safetensors", MODEL], ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize("function", PATHS)
def test_no_path(function: str, wrong: object) -> None:
    kind = type(wrong).__name__
    with pytest.raises(RequestError, match=rf"^\w+: expected a path \(str or pathlib\.Path\), found .* type {kind}$"):
        PATHS[function](wrong)


@pytest.mark.parametrize("wrong", [None, 3, {"weight": torch.zeros(9, 9)}], ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize("function", MODELS)
def test_no_model(function: str, wrong: object) -> None:
    with pytest.raises(
        RequestError, match=rf"^model: expected a module, found .* type {type(wrong).__name__}; [^\n]+$"
    ):
        MODELS[function](wrong)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r": expected a tcnn checkpoint, found no model\.safetensors$"):
        tcnn.load(tmp_path)


def test_neither_images_nor_repository() -> None:
    with pytest.raises(
        RequestError, match=r"^images: expected images of PIL, or the paths of files or folders, found int$"
    ):
        tcnn.inspect(timm.create_model("test_vit"), 3)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"^repository: expected text as ORG/NAME, found a value of type NoneType$"):
        tcnn.push_to_hub(MODEL, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"preset": "quick", "anneal_epochs": 1},
            "anneal_epochs: has no effect, because τ is fixed with anneal=",
        ),
        ({"distillation": "hard"}, "distillation: has no effect, because nothing is distilled without a teacher"),
        (
            {"convert": False, "conversion": {"head_dim": 8}},
            "conversion: has no effect, because nothing is converted with",
        ),
    ],
)
def test_a_setting_without_effect(given: dict[str, Any], why: str) -> None:
    """Refused as `--set` is on the command line; those of a preset or of a configuration may stand."""
    for function in (tcnn.finetune, tcnn.plan):
        with pytest.raises(RequestError, match=f"^{why}"):
            function(MODEL, "photos", **given)
    with pytest.raises(RequestError, match="photos: no such data set"):
        tcnn.finetune(MODEL, "photos", config=FinetuneConfig(teacher="source", distillation="hard"), convert=False)
