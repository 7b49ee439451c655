"""What Python's callers give and get: a square by its side, arrays of pixels, others' names; results print, and a wrong
setting is one line.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from nets import PlainNet
from PIL import Image
from pydantic import ValidationError
from torch import nn

import tcnn
from tcnn.config import ConversionConfig, FinetuneConfig, VerificationConfig, build
from tcnn.config.evaluation import EvaluationConfig
from tcnn.errors import ConfigError, RequestError

ROOT = Path(__file__).parents[2]
PIXELS = numpy.random.default_rng(0).integers(0, 255, (24, 20, 3), dtype=numpy.uint8)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return tcnn.convert(PlainNet(), input_size=16).model


@pytest.mark.parametrize("side", [48, numpy.int64(48), (48, 48), [48, 48]])
def test_a_side_is_a_square(side: Any) -> None:
    for kind in (ConversionConfig, VerificationConfig):
        assert build(kind, {"input_size": side}).input_size == (48, 48)


@pytest.mark.parametrize("side", [True, 0, "48", (48,), 4.5])
def test_what_is_no_size(side: Any) -> None:
    with pytest.raises(RequestError, match=r"^input_size"):
        build(ConversionConfig, {"input_size": side})


def test_exports_take_a_side(model: nn.Module, tmp_path: Path) -> None:
    report = tcnn.export(model, tmp_path / "a.pt2", size=numpy.int64(16), dynamic=())
    assert [axis.size for axis in report.axes] == [1, 16, 16]
    lines = str(report).splitlines()
    assert lines[0] == "takes batch 1 only, height 16 only, width 16 only"
    assert lines[1].startswith("same on 1×3×16×16: relative error ")
    assert lines[-1].startswith(f"wrote {tmp_path / 'a.pt2'} (torch.export program, ")


def test_arrays_of_pixels_are_images(model: nn.Module) -> None:
    image = Image.fromarray(PIXELS)
    expected = [[guess.probability for guess in one.guesses] for one in tcnn.predict(model, [image] * 2, size=16)]
    for given in (numpy.stack([PIXELS] * 2), [PIXELS, PIXELS], [image, PIXELS]):
        found = tcnn.predict(model, given, size=16)
        assert [one.file for one in found] == ["image 1", "image 2"]
        assert [[guess.probability for guess in one.guesses] for one in found] == expected
    assert len(tcnn.predict(model, PIXELS, size=16)) == len(tcnn.predict(model, PIXELS[:, :, 0], size=16)) == 1
    drawn = [tcnn.inspect(model, given, size=16).pictures[0].png for given in (PIXELS, image)]
    assert drawn[0] == drawn[1]


def test_model_inputs_are_taken_as_they_are(model: nn.Module) -> None:
    batch = torch.randn(3, 3, 16, 16)
    places = model.eval()(batch).argmax(1).tolist()
    assert [one.guesses[0].index for one in tcnn.predict(model, batch, batch_size=2)] == places


@pytest.mark.parametrize(
    ("images", "options", "said"),
    [
        (PIXELS.astype("float32"), {}, r"array of uint8, .* found float32, \(24, 20, 3\)"),
        (PIXELS[:, :, :2], {}, r"found uint8, \(24, 20, 2\)"),
        (
            torch.from_numpy(PIXELS).permute(2, 0, 1)[None],
            {},
            "expected model inputs .*, found uint8; .* PIL or arrays",
        ),
        (torch.zeros(1, 1, 16, 16), {}, "expected 3 channels, as the model takes, found 1"),
        (torch.zeros(3, 16, 16), {}, r"shape \(B, C, H, W\), at least one image, found \(3, 16, 16\)"),
        (torch.zeros(1, 3, 16, 16), {"size": 16}, "size: the images are a tensor"),
    ],
)
def test_what_is_no_image(model: nn.Module, images: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        tcnn.predict(model, images, **options)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("learning_rate", "lr"), ("num_train_epochs", "epochs"), ("optimizer", "opt"), ("max_grad_norm", "clip_grad")],
)
def test_other_libraries_names_are_known(theirs: str, ours: str) -> None:
    with pytest.raises(RequestError, match=f"^{theirs}: no such setting; did you mean {ours}\\?$"):
        build(FinetuneConfig, {theirs: 1})
    with pytest.raises(RequestError, match="no such setting"):  # and only of settings that there are
        build(EvaluationConfig, {theirs: 1})


def test_a_setting_of_the_conversion_is_known_for_one(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match=r"^content_heads: no such setting; did you mean conversion\.content_heads\?$"
    ):
        build(FinetuneConfig, {"content_heads": 4})
    with pytest.raises(RequestError, match=r"did you mean conversion=\{'content_heads': …\}\?$"):
        tcnn.finetune(PlainNet(), tmp_path, out=tmp_path / "run", content_heads=4)
    assert tcnn.finetune_config("quick", epochs=3, conversion={"content_heads": 2}).conversion.content_heads == 2
    assert tcnn.finetune_config("quick", options={"epochs": 4}, lr=0.5).epochs == 4


def test_torchs_devices_and_dtypes_are_taken_by_name() -> None:
    for kind in (FinetuneConfig, EvaluationConfig):
        made = build(kind, {"device": torch.device("cuda:1"), "amp": torch.bfloat16})
        assert (made.device, made.amp) == ("cuda:1", "bfloat16")
        with pytest.raises(RequestError, match=r"^amp: .* got 'int8'|^amp: .*torch\.int8"):
            build(kind, {"amp": torch.int8})


def test_what_a_training_returned_is_told_from_a_model(model: nn.Module) -> None:
    trained = SimpleNamespace(best="run/best.safetensors", out="run")
    with pytest.raises(RequestError, match=r"take its \.best"):
        tcnn.predict(trained, PIXELS)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"take its \.out, or \.best"):
        tcnn.report(trained)  # type: ignore[arg-type]


def test_results_print_in_a_few_lines(model: nn.Module) -> None:
    folded = str(tcnn.fold(model, source=PlainNet()).report)
    assert folded.splitlines()[0].endswith(": convolution (heads: 9 convolution)")
    assert "relative error of the logits " in folded
    (one,) = tcnn.predict(model, PIXELS, size=16, top=1)
    assert str([one]) == f"[image 1: {one.guesses[0].name} {one.guesses[0].probability:.1%}]"
    published = str(tcnn.push_to_hub(_timms(), "team/net", dry_run=True, pictures=False))
    assert "model.safetensors" in published
    assert published.splitlines()[-1] == "dry run: nothing was published at https://huggingface.co/team/net"


def _timms() -> nn.Module:
    import timm

    return timm.create_model("t_test_resnet").eval()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: FinetuneConfig(epochs=-1), "epochs: input should be greater than or equal to 1, got -1"),
        (lambda: FinetuneConfig(learning_rate=1), "learning_rate: no such setting; did you mean lr?"),
        (lambda: FinetuneConfig(conversion={"target": 3}), "conversion.target: input should be a valid string, got 3"),
        (lambda: ConversionConfig(content_heads=-3),
         "content_heads: input should be greater than or equal to 0, got -3"),
        (lambda: VerificationConfig(input_size=0), "input_size: input should be greater than or equal to 1, got 0"),
        (lambda: EvaluationConfig(severities=[9]), "severities: expected severities from 1 to 5, got [9]"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one_that_is_built_is_told_in_one_line(build: Callable[[], object], said: str) -> None:
    """And by pydantic where it reads values itself, which FastAPI relies on."""
    with pytest.raises(ConfigError) as error:
        build()
    assert str(error.value) == said
    assert isinstance(error.value, RequestError) and isinstance(error.value, ValueError)
    with pytest.raises(ValidationError):
        FinetuneConfig.model_validate({"epochs": -1})


TYPED = """
from pathlib import Path

import torch
from torch import nn

import tcnn
from tcnn.config.evaluation import EvaluationConfig

net: nn.Module = nn.Conv2d(3, 8, 3)
size: tuple[int, int] | None = tcnn.ConversionConfig(input_size=32).input_size
size = tcnn.VerificationConfig(input_size=(32, 48)).input_size
place: str = tcnn.FinetuneConfig(device=torch.device("cpu"), amp=torch.bfloat16).device
sizes: tuple[tuple[int, int], ...] = EvaluationConfig(sizes=[32, (32, 48)], device=torch.device("cpu")).sizes
metrics: dict[str, dict[str, int]] = {"training": {"steps": 3}}
for file in ("a.safetensors", Path("a.safetensors")):
    tcnn.save(net, file, sections=metrics)
    tcnn.save_directory(net, file, sections=metrics)
    tcnn.compare("test_resnet", "photos", weights=file)
    tcnn.plan("test_resnet", "photos", weights=file)
    tcnn.finetune("test_resnet", "photos", weights=file)
    tcnn.finetune_config("quick", file=file)
tcnn.ConversionConfig(input_size="32")
tcnn.FinetuneConfig(device=3)
"""


@pytest.mark.slow
def test_type_checkers_accept_what_the_functions_take(tmp_path: Path) -> None:
    """And what is read is of one type; the last two lines are wrong."""
    (tmp_path / "program.py").write_text(TYPED)
    options = ("--strict", "--follow-imports", "silent", "--config-file", str(ROOT / "pyproject.toml"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", str(tmp_path / "cache"), "program.py"],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = TYPED.count("\n")
    *errors, summary = done.stdout.splitlines()
    assert [error.partition(": ")[0] for error in errors] == [f"program.py:{lines - 1}", f"program.py:{lines}"], errors
    assert 'to "ConversionConfig" has incompatible type "str"' in errors[0] and summary.startswith("Found 2 errors")
