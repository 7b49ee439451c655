"""Small pictures and class folders that tests draw, where real ones are, and images as timm prepares them."""

import importlib.util
import io
import os
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
from PIL import Image

if TYPE_CHECKING:
    from tcnn.data.image_set import ImageSet
    from tcnn.data.transforms import Transform

ARCHIVE = Path(os.environ.get("TCNN_TEST_DATA", Path(__file__).parents[3] / "shared" / "data")) / "cifar10.tar.xz"
PETS = ("cat", "dog", "eel", "fox", "gnu")
ANIMALS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")


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


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n0 0 8 8 rectfill\nshowpage\n%%EOF\n"
"""A picture that Pillow, if it is let, gives to Ghostscript."""


def ghostscript(folder: Path) -> tuple[str, Path]:
    """The `PATH` on which `gs` is a program that only notes how it was called, and the file where it does."""
    program, noted = folder / "bin" / "gs", folder / "called.txt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {noted}\n')
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}", noted


def draw(path: Path, seed: int = 0, **options: int) -> Path:
    """A picture as a file, in folders that are made for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed, **options).save(path, "JPEG" if path.suffix.lower() not in (".png", ".gif", ".webp") else None)
    return path


def draw_classes(root: Path, classes: Iterable[str], images: int = 3, first: int = 0) -> Path:
    """Class folders of so many pictures each; those of other numbers are other pictures."""
    for place, name in enumerate(classes):
        for number in range(first, first + images):
            draw(root / name / f"{number}.jpg", 100 * place + number)
    return root


def as_mixed_shard(root: Path, shard: Path) -> str:
    """Class folders as a WebDataset shard, in which the images have their names, and another order."""
    files = sorted(file for file in root.rglob("*.*") if file.is_file())
    with tarfile.open(shard, "w") as archive:
        for place in numpy.random.default_rng(0).permutation(len(files)):
            name = files[place].relative_to(root)
            label = tarfile.TarInfo(str(name.with_suffix(".cls")))
            label.size = len(name.parent.name)
            archive.add(files[place], str(name))
            archive.addfile(label, io.BytesIO(name.parent.name.encode()))
    return f"wds/{shard}"


def as_tar(root: Path) -> str:
    path = root.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        archive.add(root, arcname=".")
    return str(path)


def latin_tar(root: Path, folder: Path) -> str:
    """As an archive in GNU's format whose images are called à.jpg, á.jpg, … in Latin-1, which is no UTF-8."""
    path = folder / "data.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        for file in sorted(root.glob("*/*.jpg")):
            archive.add(file, f"{file.parent.name}/{chr(0xE0 + int(file.stem))}.jpg")
    return str(path)


def classes_of(data: "ImageSet") -> dict[str, int]:
    """How many images each class has."""
    counts = data.targets.bincount(minlength=len(data.class_names)).tolist()
    return dict(zip(data.class_names, counts, strict=True))


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


def plain_transform(
    *,
    size: tuple[int, int],
    crop_pct: float,
    mean: Sequence[float],
    std: Sequence[float],
    interpolation: str,
    crop_mode: str = "center",
) -> "Transform":
    """Resized, cropped and normalised, (3, H, W), float32; `size` is (H, W)."""
    from timm.data import create_transform

    from tcnn.data.transforms import middle_of_strip

    transform = create_transform(
        (3, *size), mean=tuple(mean), std=tuple(std), interpolation=interpolation, crop_pct=crop_pct,
        crop_mode=crop_mode, use_prefetcher=False,
    )  # fmt: skip
    transform.transforms.insert(0, middle_of_strip)
    return transform
