"""docs/timm.md with timm's own scripts, which its package lacks (`TIMM_SCRIPTS` names a folder that has them), and
docs/trainers.md with the trainers of transformers and lightning, where they are installed.

Every command of the page that runs a script is run as it stands, in its order; small images, models and sizes are put
in the place of those of the page.
"""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import pages
import pytest
import torch
from data_pictures import draw_classes
from desk import hub_of_weights, smaller
from torch import nn

import tcnn
from tcnn.checkpoints.opening import open_model
from tcnn.evaluation.imagenet_variants import synsets

pytestmark = pytest.mark.slow
SCRIPTS = os.environ.get("TIMM_SCRIPTS", "")
SMALL: dict[str, list[str]] = {
    "train.py": ["--epochs", "2", "--warmup-epochs", "0", "--img-size", "32", "-b", "8", "-j", "0", "--device", "cpu"],
    "validate.py": ["--img-size", "32", "-b", "8", "-j", "0", "--device", "cpu"],
    "inference.py": ["--img-size", "32", "-b", "8", "-j", "0", "--device", "cpu"],
    "onnx_export.py": ["--img-size", "32", "--check-forward"],
    "bulk_runner.py": ["--size", "32", "--device", "cpu"],
}
"""What makes each script quick; argparse takes the last of an option that is given twice."""


def commands() -> list[str]:
    """The page's commands up to the last that runs a script, each on one line."""
    code = "\n".join(block.code for block in pages.blocks("docs/timm.md") if block.language in ("bash", "sh"))
    lines = re.sub(r"\\\n\s*", " ", code).splitlines()
    return [line for line in lines if line.startswith(("alias ", "with-tcnn ", "tcnn convert"))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the images and the list of models that the page names."""
    place = tmp_path_factory.mktemp("page")
    classes = [f"class{number:02}" for number in range(12)]
    draw_classes(place / "photos" / "train", classes, 2)
    draw_classes(place / "photos" / "val", classes, 2)
    draw_classes(place / "imagenet" / "val", synsets()[:3], 2)
    (place / "models.txt").write_text("test_resnet\nt_test_resnet\n", encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def followed(place: Path, tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> dict[str, str]:
    """What every command printed, by its script."""
    if not SCRIPTS:
        pytest.skip("timm's package has no scripts: set TIMM_SCRIPTS to a folder with train.py, validate.py and so on")
    alias, *lines = commands()
    wrapper = shlex.split(shlex.split(alias.partition("=")[2])[0])[1:]
    printed = {}
    patch, cache = pytest.MonkeyPatch(), tmp_path_factory.mktemp("cache")
    with patch.context() as own, hub_of_weights(own, lively, cache) as hub:
        environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1",
                                    "HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1"}  # fmt: skip
        for line in lines:
            first, *words = shlex.split(line.replace("resnet18", "test_resnet"))
            if first == "tcnn":
                call, script = ["-m", "tcnn", *smaller(words)], "tcnn"
            else:
                script, *words = words
                before = wrapper if first == "with-tcnn" else []
                call = [*before, str(Path(SCRIPTS) / script), *words, *SMALL[script]]
            done = subprocess.run(
                [sys.executable, *call],
                cwd=place,
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == 0, (line, done.stderr[-3000:])
            printed[script] = printed.get(script, "") + done.stdout
    return printed


def test_every_script_of_the_page_is_run(followed: dict[str, str]) -> None:
    assert set(followed) == {*SMALL, "tcnn"}


def test_what_was_trained_is_validated_as_tcnn_evaluates_it(followed: dict[str, str], place: Path) -> None:
    (row,) = csv.DictReader((place / "mine.csv").read_text(encoding="utf-8").splitlines())
    code, said = pages.run(
        ["evaluate", str(place / "output/mine/model_best.pth.tar"), "--data", str(place / "photos"), "--size", "32",
         "--device", "cpu", "--result"]
    )  # fmt: skip
    assert code == 0, said
    ours = json.loads(said.split("--result")[-1])
    assert {key: str(ours[key]) for key in ("top1", "top5", "img_size", "crop_pct", "interpolation")} == {
        key: row[key] for key in ("top1", "top5", "img_size", "crop_pct", "interpolation")
    }


def test_every_image_has_an_answer(followed: dict[str, str], place: Path) -> None:
    (file,) = (place / "answers").glob("*.csv")
    rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    assert len({row["filename"] for row in rows}) == 24


def test_the_onnx_file_computes_the_trained_model(followed: dict[str, str], place: Path) -> None:
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(place / "t_test_resnet.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    with torch.no_grad():
        expected = open_model(str(place / "output/mine/model_best.pth.tar"))(image).numpy()
    assert numpy.allclose(found, expected, atol=1e-4)


def test_the_runner_has_a_line_for_every_model(followed: dict[str, str], place: Path) -> None:
    rows = list(csv.DictReader((place / "all.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["model"] for row in rows} == {"test_resnet", "t_test_resnet"}


def test_examples_for_other_trainers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run one after the other, as on the page; the models come back with their classes' names, and τ at 1."""
    pytest.importorskip("transformers")
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    draw_classes(tmp_path / "photos", ("cat", "dog"), 16)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for block in pages.blocks("docs/trainers.md"):
        if block.language == "py" and ("peft" not in block.code or find_spec("peft")):
            code = block.code.replace("t_resnet18", "t_test_resnet").replace("epochs=10", "epochs=4")
            pages.execute(code.replace("10 * -(-len", "4 * -(-len"), namespace, "docs/trainers.md")
    for file in ("trained.safetensors", "trained-by-lightning.safetensors"):
        layer = next(module for module in tcnn.load(file).modules() if isinstance(module, tcnn.GPSA2d))
        assert layer.position_temperature == 1 and not (layer.gating_param == 1).all()
    loaded, model = namespace["loaded"], namespace["converted"].eval()
    assert any(isinstance(module, tcnn.GPSA2d) for module in loaded.modules())
    image = torch.randn(1, 3, 64, 64)
    assert torch.equal(loaded(image).logits, model(image).logits)
    (answer,) = tcnn.predict("trained.safetensors", "photos/cat/0.jpg", size=64)
    assert {guess.name for guess in answer.guesses} == {"cat", "dog"}
