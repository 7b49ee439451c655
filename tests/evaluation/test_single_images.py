"""Images that a model gets wrong, or on which it departs from the first model, whatever the order of its classes."""

import base64
import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from data_pictures import draw_classes
from PIL import Image
from torch import nn
from torchvision.transforms import Compose, Resize, ToTensor

from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.data.loader import EvaluationLoader
from tcnn.evaluation.comparing.single_images import Looked, changes, mistakes
from tcnn.evaluation.outcomes import Observer, Outcomes
from tcnn.evaluation.predict import Answers, PredictionReport, predict

PETS = ("cat", "dog", "eel")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("pets"), PETS, 2)


def opened(pictures: Path, names: tuple[str, ...]) -> ImageSet:
    return open_dataset(str(pictures), class_names=names)


def said(model: str, data: ImageSet, answers: dict[str, str], size: tuple[int, int] = (32, 32)) -> Looked:
    """A model that answers so to the images of these names, and else rightly."""
    names = data.class_names
    files = [data.filename(index) for index in range(len(data))]
    given = [answers.get(Path(file).parent.name + "/" + Path(file).name, names[t]) for file, t in
             zip(files, data.targets.tolist(), strict=True)]  # fmt: skip
    predicted = np.array([names.index(name) if name in names else -1 for name in given])
    confidence = np.linspace(0.5, 0.9, len(data))
    return Looked(model, size, data, Outcomes(np.arange(len(data)), data.targets.numpy(), predicted, confidence))


def test_the_surest_mistakes_come_first(pictures: Path) -> None:
    data = opened(pictures, PETS)
    looked = said("a", data, {"cat/0.jpg": "dog", "eel/1.jpg": "cat", "dog/0.jpg": "not finite"})
    found = mistakes(looked, 2)
    assert [(one.file.split("/")[-2], one.target, one.answer) for one in found] == [
        ("eel", "eel", "cat"), ("dog", "dog", "no number"),
    ]  # fmt: skip
    assert all(one.thumbnail and one.thumbnail.startswith("data:image/jpeg;base64,") for one in found)
    assert not any(one.file.startswith("/") for one in found)
    assert [one.confidence for one in found] == sorted((one.confidence for one in found), reverse=True)


def test_models_with_classes_in_another_order(pictures: Path) -> None:
    first = said("first", opened(pictures, PETS), {"cat/0.jpg": "dog", "dog/1.jpg": "eel"})
    other = said("other", opened(pictures, PETS[::-1]), {"dog/1.jpg": "cat", "eel/0.jpg": "dog"})
    (found,) = changes([first, other], 5)
    assert (found.of, found.over, found.height) == ("other", "first", 32)
    assert (found.newly_right, found.newly_wrong, found.otherwise_wrong) == (1, 1, 1)
    (gained,), (lost,) = found.right_images, found.wrong_images
    assert (gained.target, gained.before, gained.after) == ("cat", "dog", "cat")
    assert (lost.target, lost.before, lost.after) == ("eel", "eel", "dog")
    assert found.per_class["dog"].mean == 0 < found.per_class["cat"].mean


def test_images_that_are_called_alike_have_their_own_thumbnails(tmp_path: Path) -> None:
    for folder, colour in (("a", "white"), ("b", "black")):
        for name in PETS:
            path = tmp_path / folder / name / "0.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (8, 8), colour).save(path)
    data = opened(tmp_path, PETS)
    found = mistakes(said("model", data, {f"{name}/0.png": "not finite" for name in PETS}), 6)
    assert {one.file for one in found} == {f"{folder}/{name}/0.png" for folder in "ab" for name in PETS}
    for one in found:
        assert one.thumbnail
        picture = Image.open(io.BytesIO(base64.b64decode(one.thumbnail.partition(",")[2])))
        assert (picture.getpixel((0, 0))[0] > 128) == one.file.startswith("a/")


def test_only_what_was_measured_at_one_size_is_compared(pictures: Path) -> None:
    data = opened(pictures, PETS)
    all_looked = [said(model, data, {}, (side, side)) for model in ("a", "b") for side in (32, 48)]
    assert [(one.of, one.height) for one in changes(all_looked, 5)] == [("b", 32), ("b", 48)]
    assert changes(all_looked[:2], 5) == [] == changes([], 5)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Archives of other systems leave names in Latin-1, which neither JSON nor a file in UTF-8 takes as they are."""
    root = draw_classes(tmp_path / "pets", PETS, 2)
    (root / "cat" / "0.jpg").rename(root / "cat" / os.fsdecode(b"caf\xe9.jpg"))
    (root / "dog" / os.fsdecode(b"torn\xe9.jpg")).write_bytes(b"no picture")
    data = open_dataset(str(root))
    (batch,) = EvaluationLoader(data, Compose([Resize((8, 8)), ToTensor()]), batch_size=9)
    assert [Path(name).name for name in batch.unreadable] == ["torn\\xe9.jpg"]
    observer = Observer(data, 9)
    observer(batch, torch.eye(3)[2 - batch.targets])
    (one,) = (one for one in mistakes(Looked("m", (8, 8), data, observer.outcomes), 9) if "xe9" in one.file)
    assert one.file == "cat/caf\\xe9.jpg" and one.thumbnail
    one.model_dump_json()
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = PredictionReport(models=[Answers(model="m", images=predict(model, root, size=8))])
    assert {Path(image.file).name for image in found.models[0].images} >= {"caf\\xe9.jpg", "torn\\xe9.jpg"}
    found.model_dump_json()
