"""A network that others trained, on real images: what is known of it is what `evaluate` finds."""

import tarfile

import cifar_resnet20 as resnet20
import pytest
from torch import nn

from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.evaluation.evaluate import evaluate

RIGHT = 4051
"""Of 5,000 validation images; what the CNN is known to get right."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (resnet20.ARCHIVE.is_file() and resnet20.WEIGHTS.is_file()),
        reason=f"NOT TESTED ON REAL IMAGES: {resnet20.ARCHIVE} and {resnet20.WEIGHTS.name} are absent; "
        "set TCNN_TEST_DATA",
    ),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    root = tmp_path_factory.mktemp("cifar")
    with tarfile.open(resnet20.ARCHIVE, "r:xz") as archive:
        for member in archive:
            if "/val/" in member.name and member.isfile():
                archive.extract(member, root, filter="data")
    return open_dataset(str(root / "cifar10"), "val")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    model: nn.Module = resnet20.load_model()
    return model


def test_the_known_network_gets_what_is_known_right(model: nn.Module, data: ImageSet) -> None:
    found = evaluate(model, data, size=32, crop_pct=1.0, batch_size=100)
    assert (found.images, found.right) == (5000, RIGHT)
    assert [score.images for score in found.per_class.values()] == [500] * 10
    assert sum(score.right for score in found.per_class.values()) == RIGHT


@pytest.mark.parametrize(
    ("name", "mild", "severe"),
    [("brightness", 0.75, 0.55), ("gaussian_noise", 0.40, 0.10), ("fog", 0.75, 0.30), ("jpeg_compression", 0.70, 0.5)],
)
def test_corruptions_cost_accuracy(model: nn.Module, data: ImageSet, name: str, mild: float, severe: float) -> None:
    """More with severity, and about as much as CIFAR-10-C costs networks without augmentation."""
    some = data.subset(range(0, 5000, 10))
    one, five = (evaluate(model, some, size=32, crop_pct=1.0, corruption=(name, s)).top1 for s in (1, 5))
    assert 0.84 > one > mild
    assert one - 0.05 > five > severe
