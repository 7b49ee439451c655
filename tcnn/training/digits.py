"""A small real data set for the demo: handwritten digits as class folders.

scikit-learn bundles 1,797 scans of handwritten digits (8×8 pixels, 17 levels; UCI, Alpaydın & Kaynak 1998). They are
enlarged to 64×64, so that a small ResNet's last stage still has a map to attend over.
"""

from pathlib import Path

import torch
from PIL import Image

from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.errors import EnvironmentFailure

HELD_OUT = 450
SIZE = 64
MEAN, STD = 0.304, 0.324
"""Of the enlarged scans, whose brightness goes from 0 to 1."""


def write_digits(root: Path, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Write the scans as `root/{train,val}/CLASS/NUMBER.png` and open them; 450, chosen by `seed`, are held out.

    Raises `EnvironmentFailure` without scikit-learn.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise EnvironmentFailure("the demo needs scikit-learn for its images: pip install 'tcnn[demo]'") from error
    bunch = datasets.load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(seed)).tolist()
    for place, index in enumerate(order):
        split = "train" if place < len(order) - HELD_OUT else "val"
        folder = root / split / str(bunch.target[index])
        folder.mkdir(parents=True, exist_ok=True)
        scan = Image.fromarray((bunch.images[index] * (255 / 16)).astype("uint8"))
        scan.resize((SIZE, SIZE), Image.Resampling.BILINEAR).save(folder / f"{index:04d}.png", compress_level=1)
    train = open_dataset(str(root), "train", in_chans=1)
    return train, open_dataset(str(root), "val", class_names=train.class_names, in_chans=1)
