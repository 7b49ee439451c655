"""What is in a data set: classes, splits, sizes, thumbnails, and images that cannot be read, whatever they are."""

import base64
import io
import json
import unicodedata
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from serving import Server
from tiny_runs import colours

from tcnn.data.sources.names import FORMATS
from tcnn_api.uploading import gallery
from tcnn_jobs.confined.views import picked

NONE = f"not an image in one of the formats {', '.join(FORMATS)}"


def wanted(**asked: Any) -> str:
    return json.dumps({"label": None, "split": None, "start": 0, "limit": 60} | asked)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two classes in two splits, below a folder; one image is cut off, one is none, one is grey of 16 bits."""
    root = tmp_path / "pets"
    for place, (split, label) in enumerate((("training", "cat"), ("training", "dog"), ("val", "cat"), ("val", "dog"))):
        folder = root / "pets" / split / label
        folder.mkdir(parents=True)
        for number in range(3 + place):
            Image.effect_noise((300, 100 + number), 90).convert("RGB").save(folder / f"{number}.jpg")
    cat = root / "pets" / "training" / "cat"
    (cat / "10.jpg").write_bytes((cat / "0.jpg").read_bytes()[:-500])
    (cat / "11.png").write_bytes(b"none")
    Image.new("I;16", (50, 200), 40000).save(cat / "12.png")
    return root


def test_the_survey(pets: Path) -> None:
    found = gallery.survey(str(pets))
    assert found["classes"] == [
        {"name": "cat", "images": {"train": 6, "val": 5}},
        {"name": "dog", "images": {"train": 4, "val": 6}},
    ]
    assert (found["images"], found["checked"], found["unreadable"]) == (21, 21, 2)
    first, second = found["unreadable_images"]
    assert first["file"] == "pets/training/cat/10.jpg"
    assert "truncated" in first["reason"]
    assert second == {"file": "pets/training/cat/11.png", "reason": NONE}
    assert found["formats"] == {"JPEG": 19, "PNG": 1}
    assert found["width"] == {"least": 50, "median": 300.0, "most": 300}


def test_a_survey_that_takes_too_long_says_how_much_it_saw(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "PATIENCE", -1.0)
    found = gallery.survey(str(pets))
    assert (found["images"], found["checked"], found["width"], found["mean_bytes"]) == (21, 0, None, None)


def test_a_page_of_thumbnails(pets: Path) -> None:
    found = gallery.thumbnails(str(pets), wanted(label="cat", split="train", start=2, limit=3))
    assert (found["total"], found["has_more"]) == (6, True)
    good, cut, none = found["data"]
    assert (good["file"], good["label"], good["split"]) == ("pets/training/cat/2.jpg", "cat", "train")
    assert (good["width"], good["height"]) == (300, 102)
    media, _, content = good["thumbnail"].partition(",")
    assert media == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(content))).size == (96, 33)
    assert (cut["thumbnail"], none["thumbnail"]) == (None, None)
    assert "truncated" in cut["reason"]
    (last,) = gallery.thumbnails(str(pets), wanted(label="cat", split="train", start=5))["data"]
    thumbnail = Image.open(io.BytesIO(base64.b64decode(last["thumbnail"].partition(",")[2])))
    assert abs(thumbnail.getpixel((5, 5))[0] - 40000 // 256) < 3  # type: ignore[index]
    assert gallery.thumbnails(str(pets), wanted(label="cow"))["data"] == []


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_label_is_found_however_its_accents_are_written(tmp_path: Path, form: Any) -> None:
    """A set that was packed on a Mac has them apart; one with both spellings has two classes."""
    name, other = unicodedata.normalize("NFC", "été"), unicodedata.normalize("NFD", "été")
    here = unicodedata.normalize(form, "été")
    picture = colours(tmp_path / "set", 1) / "red"
    picture.rename(picture.with_name(here))
    for asked in (name, other):
        (found,) = gallery.thumbnails(str(tmp_path / "set"), wanted(label=asked))["data"]
        assert found["label"] == here
        assert picked(tmp_path / "set", 0, f"{asked}/0.png").parent.name == here
    twin = tmp_path / "set" / (other if here == name else name)
    twin.mkdir()
    Image.new("RGB", (8, 8)).save(twin / "0.png")
    for asked in (name, other):
        (found,) = gallery.thumbnails(str(tmp_path / "set"), wanted(label=asked))["data"]
        assert found["label"] == asked == picked(tmp_path / "set", 0, f"{asked}/0.png").parent.name


def test_a_bomb_is_an_image_that_cannot_be_read(pets: Path) -> None:
    raw = bytearray((pets / "pets" / "training" / "cat" / "12.png").read_bytes())
    raw[16:24] = (60000).to_bytes(4, "big") * 2
    raw[29:33] = __import__("zlib").crc32(raw[12:29]).to_bytes(4, "big")
    (pets / "pets" / "training" / "cat" / "13.png").write_bytes(raw)
    *_, bomb = gallery.thumbnails(str(pets), wanted(label="cat", split="train"))["data"]
    assert (bomb["thumbnail"], bomb["reason"]) == (None, "too many pixels")


def test_an_image_for_which_there_is_no_memory_is_one_that_cannot_be_read(
    pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the process that looks, whose memory is bounded; the others of the set are looked at."""
    load = JpegImageFile.load

    def starved(image: JpegImageFile) -> Any:
        if str(image.filename).endswith("2.jpg"):
            raise MemoryError
        return load(image)

    monkeypatch.setattr(JpegImageFile, "load", starved)
    found = gallery.survey(str(pets))
    assert (found["checked"], found["unreadable"]) == (21, 2 + 4)
    told = {image["file"]: image["reason"] for image in found["unreadable_images"]}
    assert told["pets/val/dog/2.jpg"] == "too large to be looked at here"
    (large,) = gallery.thumbnails(str(pets), wanted(label="dog", split="val", start=2, limit=1))["data"]
    assert (large["thumbnail"], large["reason"]) == (None, "too large to be looked at here")


@pytest.mark.usefixtures("looked_at_here")
def test_over_http(client: httpx.Client, server: Server, tmp_path: Path) -> None:
    import zipfile

    packed = tmp_path / "pets.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for image in sorted(colours(tmp_path / "made", 4).rglob("*.png")):
            archive.write(image, image.relative_to(tmp_path / "made"))
    before = server.files()
    data = client.post("/datasets", files={"file": ("pets.zip", packed.read_bytes())}).json()["id"]
    first = client.get(f"/datasets/{data}/contents")
    assert first.status_code == 200, first.text
    assert first.json()["images"] == first.json()["checked"] == 12
    kept = next((server.home / "datasets").glob(f"{data}.contents-*"))
    kept.write_text(kept.read_text().replace('"checked": 12', '"checked": 11'))
    assert client.get(f"/datasets/{data}/contents").json()["checked"] == 11  # it is looked at once
    page = client.get(f"/datasets/{data}/images", params={"label": "red", "limit": 2, "start": 1}).json()
    assert (page["total"], page["has_more"], len(page["data"])) == (4, True, 2)
    with server.client("key-of-bob") as bob:
        assert bob.get(f"/datasets/{data}/contents").status_code == 404
        assert bob.get(f"/datasets/{data}/images").status_code == 404
    assert client.delete(f"/datasets/{data}").status_code == 204
    assert server.files() == before
