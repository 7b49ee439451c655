"""`evaluate` and `compare` as Python has them: settings as keywords, printed results, the weights of a file."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from data_pictures import draw_classes
from timm.models import save_for_hf
from torch import nn

import tcnn
from tcnn.config.evaluation import EvaluationConfig
from tcnn.errors import RequestError

PETS = ("cat", "dog", "eel", "fox", "gnu")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(draw_classes(tmp_path_factory.mktemp("pets"), PETS, 3))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> str:
    return str(tcnn.save(tcnn.convert(lively(num_classes=5)).model, tmp_path_factory.mktemp("t") / "t.safetensors"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> str:
    directory = tmp_path_factory.mktemp("source")
    save_for_hf(lively(num_classes=5), directory, safe_serialization=True)
    return f"local-dir:{directory}"


def test_in_python_and_in_notebooks(
    source: str, checkpoint: str, pictures: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings are keywords, one model needs no list, and what comes back is printed as the command prints it."""
    found = tcnn.compare([source, Path(checkpoint)], Path(pictures), sizes=[32], corruptions=("fog",), severities=(3,))
    text = str(found)
    lines = text.splitlines()
    assert lines[0] == f"{pictures}: 15 images"
    names = ["model", "parameters", "size", "top-1", "95%", "top-5", "loss", "corrupted", "mCE", "images/s"]
    assert lines[1].split() == names
    assert lines[2].startswith(source) and lines[3].startswith(checkpoint)
    assert lines[4].startswith(f"how much better than {source}, image by image")
    assert "top-1 under corruption (CE)" in lines
    assert list(tcnn.plots(found)) == ["corruptions"]
    alone = tcnn.compare(checkpoint, pictures, EvaluationConfig(sizes=[32]), limit=3, quiet=True)
    assert [row.model for row in alone.rows] == [checkpoint]
    assert alone.rows[0].clean is not None and alone.rows[0].clean.images == 3
    assert capsys.readouterr() == ("", ""), "where there is no terminal no bar is drawn"
    for wrong, found in ((None, "NoneType"), ([checkpoint, 3], "int")):
        with pytest.raises(
            RequestError, match=f"models: expected names, .* or modules, found a value of type {found}$"
        ):
            tcnn.compare(wrong, pictures)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="no model to evaluate"):
        tcnn.compare([])
    with pytest.raises(RequestError, match="corruption: no such setting; did you mean corruptions"):
        tcnn.compare(checkpoint, pictures, corruption=("fog",))


def test_the_weights_of_a_file(tmp_path: Path, lively: Callable[..., nn.Module], source: str, pictures: str) -> None:
    """They are what is measured, and belong to one model that is named."""
    other = lively(num_classes=5)
    with torch.no_grad():
        other.get_classifier().bias[0] += 20
    torch.save(other.state_dict(), tmp_path / "other.pth")
    expected = tcnn.evaluate(other, pictures, size=32, quiet=True).loss
    for weights in (tmp_path / "other.pth", str(tmp_path / "other.pth")):
        (row,) = tcnn.compare(source, pictures, sizes=[32], weights=weights, quiet=True).rows
        assert row.clean is not None and row.clean.loss == pytest.approx(expected)
    (row,) = tcnn.compare(source, pictures, sizes=[32], quiet=True).rows
    assert row.clean is not None and row.clean.loss < 0.9 * expected
    for models, named, said in (
        (source, "none.pth", "none.pth: expected a weights file, found nothing"),
        ([source, source], "other.pth", "weights: belong to one model; name one"),
        (other, "other.pth", "weights: ResNet brings weights of its own; leave it out"),
    ):
        with pytest.raises(RequestError, match=said):
            tcnn.compare(models, pictures, weights=tmp_path / named, quiet=True)
