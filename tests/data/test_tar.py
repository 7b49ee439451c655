"""Links in class folders and in tars of them, and every form of a tar: whole, compressed, cut off."""

import io
import os
import tarfile
from pathlib import Path

import numpy
import pytest
from data_pictures import as_tar, classes_of, draw_classes, latin_tar

from tcnn.data.decoded import in_memory
from tcnn.data.image_set import open_dataset
from tcnn.data.sources.tar import members
from tcnn.errors import RequestError


def test_links_are_followed(tmp_path: Path) -> None:
    draw_classes(tmp_path / "elsewhere", ["cat"], 2)
    root = draw_classes(tmp_path / "data", ["dog"], 1)
    (root / "cat").symlink_to(tmp_path / "elsewhere/cat")
    (root / "dog" / "more.jpg").symlink_to(tmp_path / "elsewhere/cat/0.jpg")
    assert classes_of(open_dataset(str(root))) == {"cat": 2, "dog": 2}


def test_a_link_to_what_it_lies_in_is_no_second_copy(tmp_path: Path) -> None:
    root = draw_classes(tmp_path / "data", ["cat", "dog"], 2)
    (root / "cat" / "up").symlink_to("..")
    (root / "dog" / "here").symlink_to(".")
    (root / "all").symlink_to(root)
    draw_classes(tmp_path / "elsewhere", ["eel"], 1)
    (root / "eel").symlink_to(tmp_path / "elsewhere/eel")
    (tmp_path / "elsewhere/eel/back").symlink_to(root)
    assert classes_of(open_dataset(str(root))) == {"cat": 2, "dog": 2, "eel": 1}


def test_a_folder_that_cannot_be_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path is too long for the system; root may look into all others."""
    root = draw_classes(tmp_path / "data", ["cat", "dog"], 1)
    monkeypatch.chdir(root / "cat")
    for _ in range(20):
        Path("d" * 250).mkdir()
        os.chdir("d" * 250)
    with pytest.raises(RequestError, match=r"d: cannot be looked into \(file name too long\)$"):
        open_dataset(str(root))


def test_symbolic_links_in_a_tar(tmp_path: Path) -> None:
    root = draw_classes(tmp_path / "data", ["cat", "dog"], 1)
    (root / "dog" / "a.jpg").symlink_to("../cat/0.jpg")
    (root / "cat" / "b.jpg").symlink_to("../dog/a.jpg")
    (root / "eel").symlink_to("cat")
    (root / "README.txt").symlink_to("nowhere.txt")
    data = open_dataset(as_tar(root))
    assert classes_of(data) == {"cat": 2, "dog": 2, "eel": 2}
    cat, *rest = (numpy.asarray(data.load(i)[0]) for i in (0, 1, 3, 4, 5))
    assert all(numpy.array_equal(cat, other) for other in rest)
    for name, link in (("dog/c.jpg", "/photos/c.jpg"), ("fox", "/photos/fox"), ("dog/round.jpg", "round.jpg")):
        (root / name).symlink_to(link)
        with pytest.raises(RequestError, match=f"{name} is a link to .*, which is not in the archive; pack it with"):
            open_dataset(as_tar(root))
        (root / name).unlink()


@pytest.mark.parametrize("outside", ["/", "/home/me/", "../", "./../../", "photos/../../", "//"])
def test_names_that_lead_outside(tmp_path: Path, outside: str) -> None:
    """Of absolute names (`tar -P`), train/ and val/ were one set; with `..` before them, nothing was found."""
    root = draw_classes(tmp_path / "pets/val", ["cat", "dog"], 2).parent
    draw_classes(root / "train", ["cat", "dog"], 3)
    (root / "train/dog/linked.jpg").symlink_to("../cat/0.jpg")
    (root / "train/cat/whole.jpg").symlink_to(f"{outside}pets/train/dog/0.jpg" if outside[0] == "/" else "1.jpg")
    os.link(root / "train/cat/0.jpg", root / "train/cat/same.jpg")

    def packed(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.name = outside + info.name
        info.linkname = outside + info.linkname if info.islnk() else info.linkname
        return info

    def pack() -> Path:
        with tarfile.open(tmp_path / "pets.tar", "w") as archive:
            archive.add(root, "pets", filter=packed)
        return tmp_path / "pets.tar"

    train, val = (open_dataset(pack(), split) for split in ("train", "val"))
    assert (classes_of(train), train.split) == ({"cat": 5, "dog": 4}, "train")
    assert (classes_of(val), val.split) == ({"cat": 2, "dog": 2}, "val")
    assert not [member.name for member in members(pack()) if member.name.startswith(("/", "."))]
    (root / "train/dog/gone.jpg").symlink_to("/nowhere/1.jpg")
    with pytest.raises(RequestError, match=r"gone\.jpg is a link to /nowhere/1\.jpg, which is not in the archive"):
        open_dataset(pack())


def test_a_linked_folder_has_none_of_its_neighbours(tmp_path: Path) -> None:
    """Names beside that begin alike, before and behind it in order."""
    place = tmp_path / "in.tar"
    with tarfile.open(place, "w") as archive:
        for folder in ("store/a", "store/a ", "store/a-b", "store/a.b", "store/a/b", "store/a0", "store/aa"):
            archive.addfile(tarfile.TarInfo(f"{folder}/0.jpg"), io.BytesIO())
        link = tarfile.TarInfo("train/cat")
        link.type, link.linkname = tarfile.SYMTYPE, "../store/a"
        archive.addfile(link)
    linked = [member.name for member in members(place) if member.name.startswith("train/")]
    assert sorted(linked) == ["train/cat/0.jpg", "train/cat/b/0.jpg"]


def test_hard_links_in_a_tar(tmp_path: Path) -> None:
    root = draw_classes(tmp_path / "data", ["cat", "dog"], 1)
    os.link(root / "cat/0.jpg", root / "dog/1.jpg")
    data = open_dataset(as_tar(root))
    assert classes_of(data) == {"cat": 1, "dog": 2}
    same = [numpy.asarray(data.load(i)[0]) for i in (0, 2)]
    assert numpy.array_equal(*same)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_every_tar_format(tmp_path: Path, form: int) -> None:
    long = "l" * (120 if form != tarfile.USTAR_FORMAT else 60)
    root = draw_classes(tmp_path / "data", [long, "dog"], 2)
    with tarfile.open(tmp_path / "data.tar", "w", format=form) as archive:
        archive.add(root, arcname=f"{'d' * 60}")
    data = open_dataset(str(tmp_path / "data.tar"))
    assert classes_of(data) == {"dog": 2, long: 2}
    assert data.load(3)[0].size == (12, 10)


def test_names_of_another_encoding(tmp_path: Path) -> None:
    """As old archives have them: all images had one name."""
    data = open_dataset(latin_tar(draw_classes(tmp_path / "data", ["cat", "dog"], 2), tmp_path))
    assert [data.filename(place).rpartition("data.tar/")[2] for place in range(4)] == [
        f"{name}/{letter}.jpg" for name in ("cat", "dog") for letter in (r"\xe0", r"\xe1")
    ]
    kept = in_memory(data, tmp_path / "kept")
    assert [kept.filename(place) for place in range(4)] == [data.filename(place) for place in range(4)]
    assert kept.listing() == data.listing()
    with tarfile.open(tmp_path / "link.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        link = tarfile.TarInfo("cat/\xe9.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/\xe9.jpg"
        archive.addfile(link)
    with pytest.raises(RequestError, match=r"cat/\\xe9\.jpg is a link to /\\xe9\.jpg, which is not in the archive"):
        open_dataset(str(tmp_path / "link.tar"))


def test_a_tar_that_is_not_whole(tmp_path: Path) -> None:
    """Cut anywhere, it must not be taken for a smaller data set."""
    path = Path(as_tar(draw_classes(tmp_path / "data", ["cat", "dog"], 3)))
    content = path.read_bytes()
    end = max(member.offset + member.size for member in members(path))
    cut = tmp_path / "cut.tar"
    for length in [0, 1, 511, 512, *range(1024, end, 512), end - 1, end // 2]:
        cut.write_bytes(content[:length])
        with pytest.raises(RequestError, match=r"cut\.tar: expected an uncompressed, whole tar archive"):
            open_dataset(str(cut))
    damaged = bytearray(content)
    header = next(member for member in members(path) if member.name == "dog/1.jpg").offset - 512
    damaged[header : header + 512] = os.urandom(512)
    cut.write_bytes(damaged)
    with pytest.raises(RequestError, match="cut off, damaged"):
        open_dataset(str(cut))


@pytest.mark.parametrize("mode", ["w:gz", "w:xz"])
def test_a_compressed_tar(tmp_path: Path, mode: str) -> None:
    root = draw_classes(tmp_path / "data", ["cat", "dog"], 1)
    with tarfile.open(tmp_path / "data.tar.z", mode) as archive:
        archive.add(root, arcname=".")
    with pytest.raises(RequestError, match=r"data\.tar\.z: expected an uncompressed, whole tar archive; .*compressed"):
        open_dataset(str(tmp_path / "data.tar.z"))
