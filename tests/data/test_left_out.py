"""Which files are taken for images by their names, and what is said of the others."""

import io
import shutil
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from data_pictures import as_tar, classes_of, draw, draw_classes, picture
from PIL import Image
from tiny_runs import TwoConvs, run

from tcnn.data.decoded import in_memory
from tcnn.data.image_set import open_dataset
from tcnn.data.sources.names import EXTENSIONS, FORMATS, is_image
from tcnn.errors import RequestError
from tcnn.evaluation.comparing.comparison import compare
from tcnn.evaluation.evaluate import evaluate
from tcnn.evaluation.predict import predict

NOTE = "left out: 2 files without the extension of an image, such as dog/8.heic"
COMPANIONS = ("cat/0.txt", "cat/0.JSON", "dog/labels.csv", "dog/Thumbs.db", "dog/.DS_Store", "cat/0.pfm", "note.heic")
SAID = "left out: 2 samples without NAME.jpg or the like, such as"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = draw_classes(tmp_path / "data", ["cat", "dog"], 4)
    for name in ("dog/8.heic", "dog/9", *COMPANIONS):
        (root / name).write_bytes(b"of no matter")
    return root


def test_names_of_every_format_are_those_of_images() -> None:
    Image.init()
    expected = {suffix for suffix, name in Image.registered_extensions().items() if name in (*FORMATS, "MPO")}
    assert expected - {".pfm"} <= set(EXTENSIONS)  # numbers: depths, and nothing to look at
    assert not {".eps", ".ps", ".pdf", ".svg", ".heic"} & set(EXTENSIONS)
    assert is_image("a/1.JP2") and not is_image("a/.1.avif")


@pytest.mark.parametrize("pack", [str, as_tar])
def test_images_of_every_format_are_found(tmp_path: Path, pack: Callable[[Path], str]) -> None:
    """Files of half of the formats that are read were left out in silence."""
    root = draw_classes(tmp_path / "data", ["cat", "dog"], 1)
    for suffix, kind in ((".jp2", "JPEG2000"), (".JFIF", "JPEG"), (".ico", "ICO"), (".apng", "PNG"), (".pnm", "PPM")):
        picture(width=16, height=16).save(root / "dog" / f"1{suffix}", kind)
    data = open_dataset(pack(root))
    assert classes_of(data) == {"cat": 1, "dog": 6}
    assert {data.load(place)[0].mode for place in range(7)} == {"RGB"}
    assert data.left_out is None


@pytest.mark.parametrize("pack", [str, as_tar])
def test_what_is_left_out_is_said(folder: Path, pack: Callable[[Path], str], tmp_path: Path) -> None:
    data = open_dataset(pack(folder))
    assert classes_of(data) == {"cat": 4, "dog": 4}
    assert data.left_out == data.of_channels(1).left_out == data.subset([0]).left_out == NOTE
    assert in_memory(data, tmp_path / "pixels").left_out == NOTE
    both = folder.with_name("both")
    for split in ("train", "val"):
        shutil.copytree(folder, both / split)
    for split in ("train", "val"):
        assert open_dataset(pack(both), split).left_out == NOTE.replace("dog/", f"{split}/dog/")


@pytest.mark.parametrize("pack", [str, as_tar])
def test_nothing_but_what_is_left_out(tmp_path: Path, pack: Callable[[Path], str]) -> None:
    for name in ("cat/1.heic", "dog/2.heic"):
        (tmp_path / "data" / name).parent.mkdir(parents=True)
        (tmp_path / "data" / name).touch()
    with pytest.raises(RequestError, match=r"found 2 files without the extension of an image, such as cat/1\.heic$"):
        open_dataset(pack(tmp_path / "data"))


@pytest.mark.parametrize("suffix", [".heic", ".seg.png"])
def test_samples_without_an_image(tmp_path: Path, suffix: str) -> None:
    image = io.BytesIO()
    picture(width=16, height=16).save(image, "JPEG2000")
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        for key, field in (("0", ".jp2"), ("1", suffix), ("2", suffix), ("3", ".txt"), ("4", ".JP2")):
            for name, content in ((f"{key}{field}", image.getvalue()), (f"{key}.cls", b"0")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    data = open_dataset(f"wds/{tmp_path}")
    assert [data.load(place)[0].size for place in range(len(data))] == [(16, 16)] * 2
    assert data.left_out == f"{SAID} 1{suffix}"


def test_a_run_and_its_evaluation_say_it(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found = run(TwoConvs(2), folder, tmp_path / "run", epochs=1, batch_size=2, report=lambda now: None, say=said.append)
    assert NOTE in found.notes and NOTE in said
    compared = compare(TwoConvs(2), folder, sizes=((32, 32),), quiet=True)
    assert compared.left_out == NOTE and NOTE in str(compared)
    with pytest.warns(UserWarning, match=NOTE):
        evaluate(TwoConvs(2), folder, size=32)
    with warnings.catch_warnings(action="error"):
        evaluate(TwoConvs(2), folder, size=32, warn=False)


def test_a_folder_to_predict(folder: Path) -> None:
    model = TwoConvs()
    with pytest.warns(UserWarning, match=r"data: left out: 3 files without the extension of an image, such as dog/8"):
        assert len(predict(model, folder, size=32)) == 8
    with warnings.catch_warnings(action="error"):
        assert len(predict(model, folder, size=32, quiet=True)) == 8
    draw(folder / "cat" / "9.jfif")
    assert len(predict(model, folder / "cat", size=32)) == 5
