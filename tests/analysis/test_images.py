"""Pictures as people have them: colour spaces, animations, giants, strips, and files that are none."""

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from data_pictures import draw, draw_classes, picture
from PIL import Image
from torch import nn

from tcnn.analysis.images import read_pictures, seen
from tcnn.data.sources.folder import select_files
from tcnn.errors import RequestError
from tcnn.workflows.recheck import load_images

SIZE = (32, 48)


@pytest.fixture(scope="module")
def model(lively: Callable[..., nn.Module]) -> nn.Module:
    return lively()


def read(path: Path, model: nn.Module) -> list[object]:
    found = read_pictures(path, model, size=SIZE)
    assert found.tensors.shape == (len(found.names), 3, *SIZE)
    assert found.tensors.isfinite().all()
    assert [seen.shape for seen in found.seen] == [(*SIZE, 3)] * len(found.names)
    return [found.names, found.unreadable]


@pytest.mark.parametrize("mode", ["CMYK", "L", "1", "P", "RGBA", "LA", "YCbCr", "I;16"])
def test_every_colour_space(mode: str, tmp_path: Path, model: nn.Module) -> None:
    kind = {"CMYK": "jpg", "YCbCr": "jpg"}.get(mode, "png")
    image = picture(width=60, height=50)
    if mode == "I;16":
        image = Image.fromarray(numpy.arange(3000, dtype=numpy.uint16).reshape(50, 60) * 20)
    else:
        image = image.convert(mode)
    image.save(tmp_path / f"a.{kind}")
    assert read(tmp_path, model) == [(f"a.{kind}",), ()]


def test_only_the_first_frame_of_an_animation(tmp_path: Path, model: nn.Module) -> None:
    frames = [Image.new("RGB", (48, 32), colour) for colour in ("red", "blue", "lime")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=40)
    (seen,) = read_pictures(tmp_path, model, size=SIZE).seen
    assert seen.mean((0, 1)).round().tolist() == [255, 0, 0]


def test_twenty_megapixels_and_a_strip(tmp_path: Path, model: nn.Module) -> None:
    Image.new("RGB", (5000, 4000), "teal").save(tmp_path / "giant.jpg")
    Image.new("L", (6000, 1), 200).save(tmp_path / "strip.png")
    assert read(tmp_path, model) == [("giant.jpg", "strip.png"), ()]


def test_what_is_no_image_is_named_and_left_out(tmp_path: Path, model: nn.Module) -> None:
    draw(tmp_path / "good.png")
    whole = draw(tmp_path / "cut.jpg", width=90, height=90).read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "words.jpg").write_text("not a picture\nat all")
    (tmp_path / "empty.png").touch()
    (tmp_path / "bomb.png").write_bytes(bomb())
    os.mkfifo(tmp_path / "pipe.png")
    names, unreadable = read(tmp_path, model)
    assert names == ("good.png",)
    reasons = dict(line.split(": ", 1) for line in unreadable)  # type: ignore[union-attr]
    assert reasons.keys() == {"cut.jpg", "words.jpg", "empty.png", "bomb.png", "pipe.png"}
    assert reasons["words.jpg"].startswith("not an image in one of the formats JPEG, ")
    assert reasons["bomb.png"] == "too many pixels"
    assert all("\n" not in reason for reason in reasons.values())


def test_verification_waits_for_no_pipe(tmp_path: Path, model: nn.Module) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(RequestError, match=r"pipe\.png: not a readable image"):
        load_images(tmp_path, model)


def test_verification_takes_the_images_that_data_sets_take(tmp_path: Path, model: nn.Module) -> None:
    """A WebP was passed over, a 16-bit grey was white throughout, and what a Mac leaves in an archive was an error."""
    grey = numpy.tile(numpy.arange(96, dtype=numpy.uint16) * 600, (96, 1))
    Image.fromarray(grey).save(tmp_path / "deep.png")
    Image.fromarray((grey // 256).astype(numpy.uint8)).save(tmp_path / "plain.png")
    deep, plain = load_images(tmp_path, model)
    assert torch.equal(deep, plain)
    for name in ("a.webp", "b.tif", "c.BMP", "folder.png/d.gif"):
        draw(tmp_path / name)
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "__MACOSX" / "a.png").write_bytes(b"no image")
    assert len(load_images(tmp_path, model)) == 6


def test_verification_takes_images_of_every_class(tmp_path: Path, model: nn.Module) -> None:
    """The first ones were those of the first class."""
    for number in range(6):
        for folder, colour in (("black", "black"), ("white", "white")):
            (tmp_path / folder).mkdir(exist_ok=True)
            Image.new("RGB", (32, 32), colour).save(tmp_path / folder / f"{number}.png")
    dark, light = load_images(tmp_path, model, limit=4).split(2)
    assert torch.equal(dark[0], dark[1]) and torch.equal(light[0], light[1]) and not torch.equal(dark[0], light[0])


def bomb() -> bytes:
    """A PNG that says it has 900 megapixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def test_people_see_what_the_model_sees(tmp_path: Path, model: nn.Module) -> None:
    """Undoing the normalisation gives the pixels of the picture, to rounding."""
    original = numpy.asarray(picture(width=48, height=32))
    Image.fromarray(original).save(tmp_path / "a.png")
    (seen,) = read_pictures(tmp_path, model, size=SIZE).seen
    crop = model.pretrained_cfg["crop_pct"]
    if crop == 1:
        assert numpy.abs(seen.astype(int) - original).max() <= 1
    assert seen.std() > 5


def test_grey_models(tmp_path: Path, lively: Callable[..., nn.Module]) -> None:
    draw(tmp_path / "a.png")
    found = read_pictures(tmp_path, lively(in_chans=1), size=SIZE)
    assert found.tensors.shape == (1, 1, *SIZE)
    assert (found.seen[0] == found.seen[0][..., :1]).all()
    assert load_images(tmp_path, lively(in_chans=1)).shape[:2] == (1, 1)


@pytest.mark.parametrize("channels", [2, 4])
def test_tensors_of_other_channels(channels: int, lively: Callable[..., nn.Module]) -> None:
    model = lively(in_chans=channels)
    (shown,) = seen(torch.zeros(1, channels, 4, 5), model)
    assert shown.shape == (4, 5, 3)
    assert numpy.unique(shown).tolist() == [round(255 * sum(model.pretrained_cfg["mean"]) / 3)]
    with pytest.raises(RequestError, match=rf"^images: expected {channels} channels, as the model takes, found 3$"):
        seen(torch.zeros(1, 3, 4, 5), model)


def test_models_that_take_no_pictures(tmp_path: Path, lively: Callable[..., nn.Module]) -> None:
    draw(tmp_path / "a.png")
    with pytest.raises(RequestError, match=r"images have 1 or 3 channels; the model takes 5"):
        read_pictures(tmp_path, lively(in_chans=5))


def test_every_class_has_a_chance(tmp_path: Path) -> None:
    root = draw_classes(tmp_path / "pets", ("cat", "dog", "eel"), 4)
    assert [path.parent.name for path in select_files(root, 3)] == ["cat", "dog", "eel"]
    assert len(select_files(root, 100)) == 12
    (root.parent / "no pictures").mkdir()
    with pytest.raises(RequestError, match=r"no pictures: expected images, found none \(they end in \.jpg"):
        select_files(root.parent / "no pictures", 3)
    with pytest.raises(RequestError, match="nowhere: expected an image or a folder of images, found nothing"):
        select_files(root.parent / "nowhere", 3)
    assert select_files(root / "cat" / "0.jpg", 5) == [root / "cat" / "0.jpg"]


def test_nothing_there(tmp_path: Path, model: nn.Module) -> None:
    with pytest.raises(RequestError, match=r"absent: expected an image or a folder of images, found nothing"):
        read_pictures(tmp_path / "absent", model)
    (tmp_path / "notes.txt").write_text("no picture")
    with pytest.raises(RequestError, match=r"expected images, found none \(they end in .jpg"):
        read_pictures(tmp_path, model)


def test_a_tensor_without_statistics_is_shown_in_its_range(model: nn.Module) -> None:
    shown = seen(torch.full((1, 3, 4, 4), 99.0), model)
    assert shown[0].dtype == numpy.uint8
    assert (shown[0] == 255).all()
