"""What a job's models say of an image: they agree or differ only where they tell the same classes apart."""

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
import timm
from PIL import Image
from timm.models import save_for_hf
from torch import nn

from tcnn_jobs.confined.predicting import Predicting

ANIMALS = ("ape", "bee", "cat")


@pytest.fixture
def image() -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (40, 40), "red").save(written, "PNG")
    return written.getvalue()


def says(first: object, of: Sequence[object]) -> nn.Module:
    """A CNN with these classes, to whom every image shows the same."""
    model = timm.create_model("test_resnet", num_classes=len(of)).eval()
    model.pretrained_cfg["label_names"] = list(of)
    model.fc.weight.data.zero_()
    model.fc.bias.data[:] = 0
    model.fc.bias.data[of.index(first)] = 5
    return model


@pytest.mark.parametrize(
    ("beside", "classes", "same", "comparable"),
    [("bee", ANIMALS, True, True), ("cat", ANIMALS, False, True), ("bee", ("bee", "cow"), None, False)],
)
def test_classes_alike_are_compared(
    beside: str, classes: Sequence[str], same: bool | None, comparable: bool, tmp_path: Path, image: bytes
) -> None:
    save_for_hf(
        says(beside, classes), tmp_path / "cnn", model_config={"label_names": list(classes)}, safe_serialization=True
    )
    predicting = Predicting(says("bee", ANIMALS))
    cnn = {"role": "cnn", "name": f"local-dir:{tmp_path / 'cnn'}"}
    gone = {"role": "tuned_cnn", "missing": "gone"}
    found = predicting(image, [cnn, gone], 1)
    assert [one["same_classes"] for one in found["models"]] == [comparable, None, True]
    assert [[guess["name"] for guess in one["guesses"]] for one in found["models"]] == [[beside], [], ["bee"]]
    assert found["same_first_guess"] is same


@pytest.mark.parametrize(("classes", "said", "comparable"), [(3, "cat", True), (4, "2", False)])
def test_a_model_that_names_no_classes_has_those_that_it_was_fine_tuned_on(
    classes: int, said: str, comparable: bool, tmp_path: Path, image: bytes
) -> None:
    """As uploaded weights have none; of another number of classes nothing is known."""
    cnn = says(2, range(classes))
    del cnn.pretrained_cfg["label_names"]
    save_for_hf(cnn, tmp_path / "cnn", safe_serialization=True)
    predicting = Predicting(says("cat", ANIMALS))
    found = predicting(image, [{"role": "cnn", "name": f"local-dir:{tmp_path / 'cnn'}"}], 1)
    assert (found["models"][0]["guesses"][0]["name"], found["models"][0]["same_classes"]) == (said, comparable)
