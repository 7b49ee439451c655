"""Only pictures of listed formats are opened, whatever they are called and wherever they lie: of any other, Pillow may
start another program. That program is a stand-in here, which notes that it was called.
"""

import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_pictures import POSTSCRIPT, draw, ghostscript, picture, plain_transform
from PIL import EpsImagePlugin, Image

from tcnn.data.decode import decode, open_image
from tcnn.data.image_set import UnreadableImage, open_dataset
from tcnn.data.sources.names import FORMATS
from tcnn.data.transforms import load_image
from tcnn.errors import RequestError
from tcnn.evaluation.predict import predict_image

LISTED = f"not an image in one of the formats {', '.join(FORMATS)}"
MEMBERS = ("a/0.png", "b/1.jpg", "b/2.png")
INNOCENT = "a/innocent.png"
Image.init()


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the stand-in was called."""
    search, noted = ghostscript(tmp_path)
    monkeypatch.setenv("PATH", search)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # it is looked for once
    return noted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for place, name in enumerate(MEMBERS):
        draw(tmp_path / "set" / name, place)
    (tmp_path / "set" / INNOCENT).write_bytes(POSTSCRIPT)
    return tmp_path / "set"


class Lazy:
    """A data set of somebody's own, which leaves reading to who uses it."""

    classes = ("a", "b")
    targets = (0, 0, 1, 1)

    def __init__(self, root: Path) -> None:
        self.files = sorted(root.rglob("*.*"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.open(self.files[index]), self.targets[index]


def as_tar(folder: Path) -> str:
    with tarfile.open(folder.with_suffix(".tar"), "w") as archive:
        archive.add(folder, "set")
    return str(folder.with_suffix(".tar"))


def as_shard(folder: Path) -> str:
    (folder.parent / "wds").mkdir()
    with tarfile.open(folder.parent / "wds" / "0.tar", "w") as archive:
        for place, file in enumerate(sorted(folder.rglob("*.*"))):
            for suffix, content in ((file.suffix, file.read_bytes()), (".cls", b"01"[place // 2 :][:1])):
                member = tarfile.TarInfo(f"{place}{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return f"wds/{folder.parent}/wds"


def rows_of(folder: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    files = sorted(folder.rglob("*.*"))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    images = [{"bytes": file.read_bytes(), "path": None} for file in files]
    return datasets.Dataset.from_dict({"image": images, "label": [0, 0, 1, 1]}, features=features)


def as_rows(folder: Path) -> str:
    rows_of(folder).save_to_disk(folder.parent / "rows")
    return f"hfds/{folder.parent}/rows"


def as_parquet(folder: Path) -> str:
    (folder.parent / "parquet").mkdir()
    rows_of(folder).to_parquet(folder.parent / "parquet" / "train.parquet")
    return f"hfds/{folder.parent}/parquet"


def as_image_folder(folder: Path) -> Any:
    from torchvision.datasets import ImageFolder

    return ImageFolder(str(folder))


KINDS: dict[str, Callable[[Path], Any]] = {
    "folder": str,
    "tar": as_tar,
    "shard": as_shard,
    "rows": as_rows,
    "parquet": as_parquet,
    "opened rows": rows_of,
    "ImageFolder": as_image_folder,
    "opened": Lazy,
}


def test_the_stand_in_is_called_where_any_format_is_opened(folder: Path, called: Path) -> None:
    with pytest.raises(OSError), Image.open(folder / INNOCENT) as opened:
        opened.load()
    assert "-dSAFER" in called.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_no_data_set_starts_another_program(kind: str, folder: Path, called: Path) -> None:
    data = open_dataset(KINDS[kind](folder), "train")
    assert len(data) == 4
    refused = []
    for index in range(4):
        try:
            data.load(index)
        except UnreadableImage as error:
            refused.append(error.reason)
    expected = LISTED if kind != "opened" else "expected one of the formats JPEG, PNG, .*, found EPS; convert it first"
    assert len(refused) == 1
    assert re.match(expected, refused[0])
    assert not called.exists()


def test_the_refusal_names_the_file_and_the_formats(folder: Path, called: Path) -> None:
    plain = plain_transform(size=(8, 8), crop_pct=1.0, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bilinear")
    with pytest.raises(UnreadableImage) as refused:
        load_image(folder / INNOCENT, plain, "RGB")
    assert str(refused.value) == f"{folder / INNOCENT}: cannot be read as an image ({LISTED})"
    timm = pytest.importorskip("timm")
    with pytest.raises(RequestError, match=r"cannot be read as an image .not an image in one of the formats"):
        predict_image(timm.create_model("test_resnet"), io.BytesIO(POSTSCRIPT))
    assert not called.exists()


def test_every_format_that_pillow_writes_is_listed_or_refused() -> None:
    written = []
    for name in sorted(Image.SAVE):
        file = io.BytesIO()
        try:
            picture(width=16, height=16).save(file, name)
        except (OSError, ValueError, KeyError, AttributeError):  # no colours in this format, or only through a plugin
            continue
        file.seek(0)
        written.append(name)
        if name in (*FORMATS, "MPO"):  # of JPEG, several in a file
            assert decode(file, "RGB").size == (16, 16), name
        else:
            with pytest.raises(Image.UnidentifiedImageError):
                open_image(file)
    assert {"JPEG", "PNG", "WEBP", "EPS", "TGA", "PCX"} <= set(written)
