"""Small pictures and class folders that tests draw, and where real ones are."""

import importlib.util
import os
import tarfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy
from PIL import Image

ARCHIVE = Path(os.environ.get("TCNN_TEST_DATA", Path(__file__).parents[3] / "shared" / "data")) / "cifar10.tar.xz"


def photograph(name: str) -> Image.Image:
    """`china.jpg` or `flower.jpg` of scikit-learn, which is not loaded: that takes a second of every test process."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None, "scikit-learn is not installed"
    with Image.open(Path(package.origin).parent / "datasets" / "images" / name) as found:
        return found.convert("RGB")


def picture(seed: int = 0, width: int = 12, height: int = 10) -> Image.Image:
    """Noise on a colour: no two alike."""
    random = numpy.random.default_rng(seed)
    pixels = random.integers(0, 100, (height, width, 3)) + random.integers(0, 150, 3)
    return Image.fromarray(pixels.astype(numpy.uint8))


def draw(path: Path, seed: int = 0, **options: int) -> Path:
    """A picture as a file, in folders that are made for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed, **options).save(path, "JPEG" if path.suffix.lower() not in (".png", ".gif", ".webp") else None)
    return path


def draw_classes(root: Path, classes: Iterable[str], images: int = 3) -> Path:
    """Class folders of so many pictures each."""
    for place, name in enumerate(classes):
        for number in range(images):
            draw(root / name / f"{number}.jpg", 100 * place + number)
    return root


def some_of_cifar10(root: Path, classes: int, images: int) -> Path:
    """The first real training images of the first classes, as class folders. Asks for an archive that is there."""
    taken: Counter[str] = Counter()
    with tarfile.open(ARCHIVE, "r:xz") as archive:
        for member in archive:
            _, _, name, file = (*member.name.split("/"), "", "", "")[:4]
            if not file or taken[name] == images:
                continue
            taken[name] += 1
            archive.extract(member, root, filter="data")
            if list(taken.values()) == [images] * classes:
                break
    return root / "cifar10" / "train"
