"""Images that were decoded once are the images that a data set decodes every time."""

import pickle
import tarfile
from pathlib import Path

import numpy
import pytest
import torch
from data_pictures import draw, draw_classes
from PIL import Image

from tcnn.data.decoded import in_memory
from tcnn.data.image_set import ImageSet, open_dataset, training_transform
from tcnn.data.loader import TrainingLoader
from tcnn.errors import RequestError


@pytest.fixture
def data(tmp_path: Path) -> ImageSet:
    """Twelve images of three classes and several sizes."""
    root = tmp_path / "data"
    draw_classes(root, ["a", "b", "c"], 4)
    Image.fromarray(numpy.random.default_rng(1).integers(0, 256, (7, 19, 3), numpy.uint8)).save(root / "b" / "wide.png")
    return open_dataset(str(root))


def pixels(data: ImageSet) -> list[tuple[str, int, tuple[int, int], bytes]]:
    loaded = ((data.filename(index), *data.load(index)) for index in range(len(data)))
    return [(name, target, image.size, image.tobytes()) for name, image, target in loaded]


@pytest.mark.parametrize("bands", [3, 1])
def test_every_pixel_is_the_same(data: ImageSet, tmp_path: Path, bands: int) -> None:
    data = open_dataset(str(tmp_path / "data"), in_chans=bands)
    kept = in_memory(data, tmp_path / "kept")
    assert pixels(kept) == pixels(data)
    assert pixels(kept.subset([5, 0])) == [pixels(data)[5], pixels(data)[0]]
    assert (kept.class_names, kept.split, kept.mode) == (data.class_names, data.split, data.mode)


def test_batches_are_the_same_in_this_process_and_in_others(data: ImageSet, tmp_path: Path) -> None:
    transform = training_transform(size=(8, 8), mean=(0.5,) * 3, std=(0.2,) * 3, crop_padding=2)
    batches = []
    kept = in_memory(data, tmp_path / "kept")
    for images, workers in ((data, 0), (kept, 0), (kept, 2)):
        loader = TrainingLoader(images, transform, batch_size=6, micro_batch=3, seed=3, workers=workers)
        batches.append(torch.cat([batch.images for batch in loader.epoch(1)]))
        loader.close()
    assert torch.equal(batches[0], batches[1])
    assert torch.equal(batches[0], batches[2])


def test_a_file_is_made_once_and_again_for_other_images(data: ImageSet, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    before = in_memory(data, file), file.stat().st_mtime_ns
    (tmp_path / "data" / "a").rename(tmp_path / "gone")
    again = in_memory(data, file)  # the folder is not looked into
    assert (pixels(again), file.stat().st_mtime_ns) == (pixels(before[0]), before[1])
    (tmp_path / "gone").rename(tmp_path / "data" / "a")
    assert pixels(in_memory(data.subset([2, 3]), file)) == pixels(data.subset([2, 3]))
    file.write_bytes(b"cut")
    assert pixels(in_memory(data, file)) == pixels(data)


@pytest.mark.parametrize("packed", [False, True])
def test_an_image_that_was_replaced_is_decoded_anew(data: ImageSet, tmp_path: Path, packed: bool) -> None:
    """By another one of its name, right where it lies or in its archive."""
    folder, archive, file = tmp_path / "data", tmp_path / "data.tar", tmp_path / "kept"

    def opened() -> ImageSet:
        if packed:
            with tarfile.open(archive, "w") as written:
                written.add(folder, arcname=".")
        return open_dataset(str(archive if packed else folder))

    in_memory(opened(), file)
    draw(folder / "a" / "0.jpg", 77)
    assert pixels(in_memory(opened(), file)) == pixels(opened())


def test_what_is_changed_or_pickled_never_reaches_the_file(data: ImageSet, tmp_path: Path) -> None:
    kept = in_memory(data, tmp_path / "kept")
    image, _ = kept.load(0)
    image.putpixel((0, 0), (1, 2, 3))
    assert pixels(kept) == pixels(data)
    copy = pickle.dumps(kept)
    assert not any(held in copy for *_, held in pixels(data))
    assert pixels(pickle.loads(copy)) == pixels(data)


def test_an_image_that_cannot_be_decoded_stays_unreadable(data: ImageSet, tmp_path: Path) -> None:
    (broken := tmp_path / "data" / "a" / "0.png").write_bytes(b"no image")
    data = open_dataset(str(tmp_path / "data"))
    place = next(index for index in range(len(data)) if data.filename(index).endswith(str(broken.name)))
    kept = in_memory(data, tmp_path / "kept")
    with pytest.raises(RequestError, match=r"0\.png: cannot be read as an image"):
        kept.load(place)
    others = [index for index in range(len(data)) if index != place]
    assert pixels(kept.subset(others)) == pixels(data.subset(others))
