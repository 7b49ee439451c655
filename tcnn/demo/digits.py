"""Data sets of the demo, without a download: handwritten digits, and scenes with one digit in clutter.

scikit-learn bundles 1,797 scans of handwritten digits (8×8 pixels, 17 levels; UCI, Alpaydın & Kaynak 1998). Enlarged to
64×64 they are so easy that every network ends near 100 %. In a scene one scan lies anywhere among fragments of others,
as in cluttered MNIST (Mnih et al. 2014): there is something left to learn.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray
from PIL import Image

from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.errors import EnvironmentFailure, OutputError

HELD_OUT = 450
SIZE = 64
MEAN, STD = 0.304, 0.324
"""Mean and standard deviation of the enlarged scans, whose brightness is from 0 to 1."""
SCENES, SCENES_HELD_OUT = 1500, 900
SCENES_MEAN, SCENES_STD = 0.128, 0.264
FRAGMENTS = 8
"""Number of fragments of other digits in a scene."""
SPLITS = ("train", "val")

Picture = NDArray[numpy.float32]


def write_digits(root: Path, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Write the scans as `root/{train,val}/CLASS/NUMBER.png` and open them; 450, chosen by `seed`, are held out.

    Images of an earlier call are removed. Raises `EnvironmentFailure` without scikit-learn, and `OutputError` where
    `root` holds other files.
    """
    scans, labels, *divided = _split(seed)
    _clear(root)
    for split, numbers in zip(SPLITS, divided, strict=True):
        for number in numbers:
            _write(_enlarged(scans[number], SIZE), root / split / str(labels[number]) / f"{number:04d}.png")
    return _opened(root)


def write_scenes(
    root: Path, seed: int = 0, train: int = SCENES, held_out: int = SCENES_HELD_OUT
) -> tuple[ImageSet, ImageSet]:
    """Write so many scenes as `root/{train,val}/CLASS/NUMBER.png` and open them.

    Scenes of one split are made from 1,347 scans, those of the other from the 450 that `write_digits` holds out.
    Images of an earlier call are removed. Raises `EnvironmentFailure` without scikit-learn, and `OutputError` where
    `root` holds other files.
    """
    scans, labels, *divided = _split(seed)
    _clear(root)
    for split, numbers, count in zip(SPLITS, divided, (train, held_out), strict=True):
        random = numpy.random.default_rng((seed, len(numbers)))
        for place, (picture, number) in enumerate(_scenes(scans, numbers, count, random)):
            _write(picture, root / split / str(labels[number]) / f"{place:05d}.png")
    return _opened(root)


def _scenes(
    scans: Picture, numbers: list[int], count: int, random: numpy.random.Generator
) -> Iterator[tuple[Picture, int]]:
    """Make scenes, each with the index of its whole scan; where patches overlap the brighter pixel counts."""
    for _ in range(count):
        scene = numpy.zeros((SIZE, SIZE), numpy.float32)
        for _ in range(FRAGMENTS):
            other = _enlarged(scans[random.choice(numbers)], int(random.integers(24, 33)))
            side = int(random.integers(8, 13))
            y, x = random.integers(0, len(other) - side + 1, 2)
            _place(scene, other[y : y + side, x : x + side], random)
        number = int(random.choice(numbers))
        _place(scene, _enlarged(scans[number], int(random.integers(24, 33))), random)
        yield scene, number


def _place(scene: Picture, patch: Picture, random: numpy.random.Generator) -> None:
    y, x = random.integers(0, SIZE - len(patch) + 1, 2)
    window = scene[y : y + len(patch), x : x + len(patch)]
    numpy.maximum(window, patch, out=window)


def _split(seed: int) -> tuple[Picture, list[int], list[int], list[int]]:
    """All scans, their classes, and the indices of the training and of the held-out ones."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise EnvironmentFailure("the demo needs scikit-learn for its images: pip install 'tcnn[demo]'") from error
    bunch = datasets.load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(seed)).tolist()
    return bunch.images, bunch.target.tolist(), order[:-HELD_OUT], order[-HELD_OUT:]


def _enlarged(scan: Picture, side: int) -> Picture:
    """Resize a scan to side×side pixels from 0 to 255."""
    picture = Image.fromarray((scan * (255 / 16)).astype("uint8")).resize((side, side), Image.Resampling.BILINEAR)
    return numpy.asarray(picture, dtype=numpy.float32)


def _write(picture: Picture, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture.astype("uint8")).save(path, compress_level=1)


def _clear(root: Path) -> None:
    """Remove the images of an earlier call: with another seed some would be of scans that are held out now."""
    earlier = {path for split in SPLITS for path in root.glob(f"{split}/[0-9]/*.png") if path.stem.isdecimal()}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path not in earlier and not path.name.startswith("."):
            raise OutputError(f"{root}: expected nothing but the demo's images, found {path}; choose another directory")
    for path in earlier:
        path.unlink()
    for folder in {path.parent for path in earlier}:
        with suppress(OSError):  # a hidden file is in it
            folder.rmdir()


def _opened(root: Path) -> tuple[ImageSet, ImageSet]:
    train = open_dataset(str(root), SPLITS[0], in_chans=1)
    return train, open_dataset(str(root), SPLITS[1], class_names=train.class_names, in_chans=1)
