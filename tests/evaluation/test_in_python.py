"""`evaluate` and `compare` as Python has them: settings as keywords, printed results, the weights of a file,
and requests that cannot be met."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from timm.models import save_for_hf
from torch import nn

import tcnn
from tcnn.config.evaluation import EvaluationConfig
from tcnn.errors import CheckpointError, RequestError, UnknownModelError
from tcnn.evaluation.comparing.comparison import compare
from tcnn.evaluation.corruptions import CORRUPTIONS


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


@pytest.mark.parametrize(
    ("models", "options", "kind", "message"),
    [
        ([], {}, RequestError, "no model to evaluate; name a checkpoint or a timm model"),
        (["no.safetensors"], {}, CheckpointError, "no.safetensors: expected a tcnn checkpoint, found nothing"),
        (["resnet51"], {}, UnknownModelError, "resnet51: no timm model of this name"),
        (["x"], {"baseline": "y"}, RequestError, "--baseline y: expected alexnet or one of x"),
        (
            ["x"],
            {"baseline": "alexnet", "corruptions": CORRUPTIONS},
            RequestError,
            "--baseline alexnet: its errors are",
        ),
        (["x"], {"corruptions": ["smoke"]}, RequestError, "'smoke' is no ImageNet-C corruption"),
        (["x"], {"layout": "imagenet-c"}, RequestError, "PICTURES: expected folders CORRUPTION/SEVERITY/CLASS"),
        (["IMAGENET"], {"layout": "imagenet-a"}, RequestError, "PICTURES: unknown class cat"),
        (["SOURCE"], {"layout": "imagenet-a"}, RequestError, "SOURCE: imagenet-a needs a model of ImageNet's 1,000"),
    ],
)
def test_wrong_requests(
    models: list[str],
    options: dict[str, object],
    kind: type[Exception],
    message: str,
    source: str,
    pictures: str,
    imagenet_model: str,
) -> None:
    models = [model.replace("SOURCE", source).replace("IMAGENET", imagenet_model) for model in models]
    with pytest.raises(kind) as raised:
        compare(models, pictures, EvaluationConfig(**options))
    assert str(raised.value).startswith(message.replace("SOURCE", source).replace("PICTURES", pictures))


def test_a_size_that_is_too_small_for_the_model(
    tmp_path: Path, lively: Callable[..., nn.Module], pictures: str
) -> None:
    save_for_hf(lively("test_vit", num_classes=5), tmp_path / "vit", safe_serialization=True)
    with pytest.raises(RequestError, match=r"/vit: VisionTransformer does not run on an image of 3×7×7 \("):
        compare([f"local-dir:{tmp_path / 'vit'}"], pictures, EvaluationConfig(sizes=[7]))
