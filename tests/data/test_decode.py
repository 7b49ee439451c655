"""Whatever a file holds becomes RGB or grey in silence, or is an `UnreadableImage`; never anything else."""

import io
import os
import pickle
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from data_pictures import draw, picture, plain_transform
from PIL import Image

from tcnn.data.decode import decode, mode_of, reason
from tcnn.data.image_set import ImageSet, UnreadableImage, open_dataset, training_transform
from tcnn.data.loader import EvaluationLoader
from tcnn.errors import EnvironmentFailure, RequestError

Writer = Callable[[Path], None]


def palette(path: Path) -> None:
    image = picture().quantize(16)
    image.save(path, "PNG", transparency=bytes(range(0, 160, 10)))


def animated(path: Path, kind: str) -> None:
    frames = [picture(seed) for seed in range(3)]
    frames[0].save(path, kind, save_all=True, append_images=frames[1:])


def turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture().save(path, "JPEG", exif=exif)


def bad_exif(path: Path) -> None:
    picture().save(path, "JPEG", exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\xff\xff broken")


def grey_16(path: Path) -> None:
    Image.fromarray(numpy.arange(0, 65536, 512, dtype=numpy.uint16).reshape(8, 16)).save(path, "PNG")


def grey_32(path: Path) -> None:
    Image.fromarray(numpy.arange(0, 65536, 512, dtype=numpy.int32).reshape(8, 16)).save(path, "TIFF")


READABLE: dict[str, Writer] = {
    "rgb.jpg": lambda path: picture().save(path, "JPEG"),
    "grey.jpg": lambda path: picture().convert("L").save(path, "JPEG"),
    "cmyk.jpg": lambda path: picture().convert("CMYK").save(path, "JPEG"),
    "rgba.png": lambda path: picture().convert("RGBA").save(path, "PNG"),
    "la.png": lambda path: picture().convert("LA").save(path, "PNG"),
    "bilevel.png": lambda path: picture().convert("1").save(path, "PNG"),
    "palette.png": palette,
    "16bit.png": grey_16,
    "32bit.tiff": grey_32,
    "float.tiff": lambda path: picture().convert("F").save(path, "TIFF"),
    "animated.gif": lambda path: animated(path, "GIF"),
    "animated.png": lambda path: animated(path, "PNG"),
    "animated.webp": lambda path: animated(path, "WEBP"),
    "turned.jpg": turned,
    "exif.jpg": bad_exif,
    "pixel.png": lambda path: picture(width=1, height=1).save(path, "PNG"),
    "row.png": lambda path: picture(width=3000, height=1).save(path, "PNG"),
    "wrong.jpg": lambda path: picture().save(path, "PNG"),
    "UPPER.JPG": lambda path: picture().save(path, "JPEG"),
    "portable.ppm": lambda path: picture().save(path, "PPM"),
    "windows.bmp": lambda path: picture().save(path, "BMP"),
}


def png_of(width: int, height: int) -> bytes:
    """A PNG that claims a size, without the pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def jpeg(path: Path, keep: float) -> None:
    content = draw(path, width=64, height=64).read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


def altered(path: Path) -> None:
    """A PNG whose pixels fail their checksum."""
    content = bytearray(draw(path.with_suffix(".png"), width=64, height=64).read_bytes())
    content[200:260] = bytes(60)
    path.with_suffix(".png").unlink()
    path.write_bytes(content)


UNREADABLE: dict[str, tuple[Writer, str]] = {
    "cut.jpg": (lambda path: jpeg(path, 0.5), "truncated"),
    "head.jpg": (lambda path: jpeg(path, 0.05), "truncated|not an image|cannot"),
    "empty.jpg": (Path.touch, "not an image"),
    "text.jpg": (lambda path: path.write_text("no image") and None, "not an image"),
    "html.png": (lambda path: path.write_text("<html>404</html>") and None, "not an image"),
    "altered.jpg": (altered, "."),
    "bomb.png": (lambda path: path.write_bytes(png_of(30_000, 30_000)) and None, "too many pixels"),
    "hollow.png": (lambda path: path.write_bytes(png_of(30, 30)) and None, "."),
    "gone.jpg": (lambda path: path.symlink_to("nowhere"), "no such file"),
    "pipe.jpg": (os.mkfifo, "not an image"),
}


def one(tmp_path: Path, name: str, write: Writer, in_chans: int = 3) -> ImageSet:
    path = tmp_path / "data" / "class" / name
    path.parent.mkdir(parents=True)
    write(path)
    return open_dataset(str(tmp_path / "data"), in_chans=in_chans)


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("in_chans", [1, 3])
def test_readable(tmp_path: Path, name: str, in_chans: int, capfd: pytest.CaptureFixture[str]) -> None:
    data = one(tmp_path, name, READABLE[name], in_chans)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image, target = data.load(0)
        assert image.mode == {1: "L", 3: "RGB"}[in_chans]
        assert target == 0
        statistics = {"mean": (0.5,) * in_chans, "std": (0.25,) * in_chans}
        train = training_transform(size=(16, 16), aa="rand-m9-mstd0.5-inc1", reprob=0.5, **statistics)
        for _ in range(20):
            assert train(image).shape == (in_chans, 16, 16)
        for crop_mode in ("center", "squash", "border"):
            plain = plain_transform(
                size=(16, 16), crop_pct=0.9, interpolation="bicubic", crop_mode=crop_mode, **statistics
            )
            assert plain(image).shape == (in_chans, 16, 16)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    write, why = UNREADABLE[name]
    data = one(tmp_path, name, write)
    with pytest.raises(UnreadableImage, match=why) as raised:
        data.load(0)
    assert raised.value.filename == data.filename(0) == str(tmp_path / "data" / "class" / name)
    assert str(raised.value) == f"{raised.value.filename}: cannot be read as an image ({raised.value.reason})"
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.filename, again.reason) == (raised.value.filename, raised.value.reason)


def test_every_cut_of_a_file_is_an_image_or_unreadable(tmp_path: Path) -> None:
    """PIL's decoders raise many kinds of errors; none may pass."""
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM"):
        whole = io.BytesIO()
        picture(width=24, height=24).save(whole, kind)
        content = whole.getvalue()
        folder = tmp_path / kind / "class"
        folder.mkdir(parents=True)
        cuts = range(0, len(content), max(1, len(content) // 60))
        for cut in cuts:
            (folder / f"{cut}.jpg").write_bytes(content[:cut])
        data = open_dataset(str(tmp_path / kind))
        read = 0
        for index in range(len(data)):
            try:
                read += data.load(index)[0].size == (24, 24)
            except UnreadableImage:
                continue
        assert read < len(data) / 2, kind


def test_pixels(tmp_path: Path) -> None:
    """The colours are what timm would see: no rotation, no blending, the first frame."""
    for name, expected in {
        "turned.jpg": (12, 10),
        "animated.gif": picture(0).quantize(256).convert("RGB"),
        "animated.png": picture(0),
        "rgba.png": picture(0),
        "wrong.jpg": picture(0),
    }.items():
        image, _ = one(tmp_path / name, name, READABLE[name]).load(0)
        if isinstance(expected, tuple):
            assert image.size == expected
        else:
            error = numpy.asarray(image).astype(int) - numpy.asarray(expected)
            assert abs(error).max() <= (30 if name == "animated.gif" else 0), name


@pytest.mark.parametrize("name", ["16bit.png", "32bit.tiff"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path, name: str) -> None:
    """PIL's own conversion makes almost everything white."""
    image, _ = one(tmp_path, name, READABLE[name], in_chans=1).load(0)
    assert numpy.array_equal(numpy.asarray(image).flatten(), numpy.arange(0, 256, 2))


def test_eight_bits_in_thirty_two_stay(tmp_path: Path) -> None:
    values = numpy.arange(0, 256, 2, dtype=numpy.int32).reshape(8, 16)
    assert numpy.array_equal(numpy.asarray(decode(Image.fromarray(values), "L")), values)


@pytest.mark.parametrize("most", [1.0, 255.0])
def test_floating_point_values_are_those_of_eight_bits(most: float) -> None:
    """PIL's own conversion makes values from 0 to 1 black."""
    eight = numpy.arange(0, 256, 2, dtype=numpy.uint8).reshape(8, 16)
    values = (eight * (most / 255)).astype(numpy.float32)
    values[-1, -1] = most
    assert numpy.array_equal(numpy.asarray(decode(Image.fromarray(values), "L"))[:-1], eight[:-1])
    assert decode(Image.fromarray(values), "RGB").getpixel((15, 7)) == (255, 255, 255)


@pytest.mark.parametrize("wrong", [-1.0, 65535.0, float("nan"), float("inf")])
def test_floating_point_values_of_another_range_are_no_image(wrong: float) -> None:
    values = numpy.full((4, 4), 0.5, numpy.float32)
    values[1, 2] = wrong
    with pytest.raises(ValueError, match="expected floating-point values from 0 to 1 or from 0 to 255, found "):
        decode(Image.fromarray(values), "RGB")


def test_too_many_open_files_are_not_the_images_fault() -> None:
    with pytest.raises(EnvironmentFailure, match="fewer workers"):
        reason(OSError(24, "Too many open files"))
    with pytest.raises(EnvironmentFailure, match="out of memory"):
        reason(MemoryError())


@pytest.mark.parametrize("in_chans", [0, 2, 4])
def test_channels(in_chans: int) -> None:
    with pytest.raises(RequestError, match=f"1 or 3 channels; the model takes {in_chans}"):
        mode_of(in_chans)


def test_workers_are_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not put filters back: that would show other warnings again with every image."""
    for name in ("exif.jpg", "palette.png", "animated.png"):
        one(tmp_path / name, name, READABLE[name])
        (tmp_path / name / "data/class" / name).rename(draw(tmp_path / "data/class/0.jpg").parent / name)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)
    large = Image.new("1", (1200, 1000))
    large.save(tmp_path / "data/class/large.png")
    data = open_dataset(str(tmp_path / "data"))
    plain = plain_transform(size=(8, 8), crop_pct=1.0, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bilinear")
    loader = EvaluationLoader(data, plain, batch_size=2, workers=1)
    assert [batch.unreadable for batch in loader] == [()] * 3
    loader.close()
    with pytest.warns(Image.DecompressionBombWarning):
        Image.open(tmp_path / "data/class/large.png")
    assert capfd.readouterr() == ("", "")


def test_reading_changes_no_warning_filter(tmp_path: Path) -> None:
    data = one(tmp_path, "exif.jpg", bad_exif)
    before = list(warnings.filters)
    data.load(0)
    assert warnings.filters == before
