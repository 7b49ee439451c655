"""Archives that attack the server are refused with one line, and its home directory stays as it was."""

import gzip
import io
import json
import lzma
import random
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from data_pictures import picture

from tcnn.errors import RequestError
from tcnn_api.uploading.archives import ArchiveError, Limits, safe_parts
from tcnn_api.uploading.datasets import unpack_and_describe

Refused = Callable[..., str]
Unpacked = Callable[[Path], str]


@pytest.fixture(params=["here", pytest.param("sent", marks=pytest.mark.slow)])
def unpacked(request: pytest.FixtureRequest, tmp_path: Path) -> Unpacked:
    """What is said of an archive that must be refused: by what looks at it, and with the server around it.

    What is meant to fill memory or disk is always sent.
    """
    if request.param == "sent":
        refused = request.getfixturevalue("refused")
        return lambda path: refused("/datasets", path)
    (tmp_path / "kept").mkdir()

    def unpacked(path: Path) -> str:
        with pytest.raises(RequestError) as caught:
            unpack_and_describe(str(path), str(tmp_path / "kept" / "target"), json.dumps(Limits(2000, 10**8, 100.0)))
        assert [place.name for place in (tmp_path / "kept").iterdir()] == ["target"], "nothing beside its own folder"
        assert "\n" not in str(caught.value) and str(tmp_path) not in str(caught.value)
        return str(caught.value)

    return unpacked


def image() -> bytes:
    buffer = io.BytesIO()
    picture().save(buffer, "PNG")
    return buffer.getvalue()


IMAGE = image()
GIGABYTE = gzip.compress(bytes(4 << 20)) * 256
"""A gigabyte of zeros, in a megabyte."""
GOOD = ("cat/1.png", "dog/1.png")


def zipped(path: Path, names: Iterable[str | zipfile.ZipInfo], content: bytes = IMAGE) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (*GOOD, *names):
            archive.writestr(name, content)
    return path


def tarred(path: Path, *members: tarfile.TarInfo, mode: str = "w", format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, mode, format=format) as archive:  # type: ignore[call-overload]
        for member in (*map(member_of, GOOD), *members):
            archive.addfile(member, io.BytesIO(IMAGE) if member.isreg() else None)
    return path


def member_of(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    member.size = len(IMAGE) if kind == tarfile.REGTYPE else 0
    return member


LEAVES = ["../evil.png", "cat/../../evil.png", "cat/.././../evil.png"]
ABSOLUTE = ["/tmp/evil.png", "//tmp/evil.png", "C:/evil.png", "c:evil.png"]
ODD = ["cat/\x07.png", "cat\\evil.png", "..\\evil.png", "cat/new\nline.png"]
LONG = ["cat/" + 300 * "a" + ".png", 40 * "deep/" + "1.png", "/".join(["x" * 200] * 6) + "/1.png"]


@pytest.mark.parametrize("name", [*LEAVES, *ABSOLUTE, *ODD, *LONG, "cat/\0.png", "cat/\udce9.png"])
def test_dangerous_names(name: str) -> None:
    with pytest.raises(ArchiveError, match="pack the folder with relative names"):
        safe_parts(name)


@pytest.mark.parametrize("name", ["./cat/1.png", "cat//1.png", "..cat/1..png", "кошка/猫 é\u202f.png", "ab:c/1.png"])
def test_harmless_names(name: str) -> None:
    assert [part for part in safe_parts(name) if part in ("", ".", "..")] == []


@pytest.mark.parametrize("name", [LEAVES[0], ABSOLUTE[0], ABSOLUTE[2], ODD[2], LONG[0]])
@pytest.mark.parametrize("pack", ["zip", "tar"])
def test_names_that_leave_the_folder_or_fit_no_disk(unpacked: Unpacked, tmp_path: Path, pack: str, name: str) -> None:
    if pack == "zip":
        said = unpacked(zipped(tmp_path / "a.zip", [name]))
    else:
        said = unpacked(tarred(tmp_path / "a.tar", member_of(name)))
    assert "pack the folder with relative names" in said
    assert not (tmp_path / "evil.png").exists()


def test_a_name_that_ends_at_a_nul(unpacked: Unpacked, tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", ["cat/evil#.png"])
    path.write_bytes(path.read_bytes().replace(b"evil#", b"evil\0"))
    assert "control character" in unpacked(path)


@pytest.mark.parametrize("pack", ["zip", "tar"])
def test_names_that_are_not_utf8(unpacked: Unpacked, tmp_path: Path, pack: str) -> None:
    if pack == "zip":
        path = zipped(tmp_path / "a.zip", ["cat/caf#.png"])
        path.write_bytes(path.read_bytes().replace(b"caf#", b"caf\xe9"))
    else:
        path = tarred(tmp_path / "a.tar", member_of("cat/caf\udce9.png"), format=tarfile.GNU_FORMAT)
    assert "utf-8" in unpacked(path).lower()


@pytest.mark.parametrize(
    "members",
    [
        [member_of("out", tarfile.SYMTYPE, "/tmp"), member_of("out/evil.png")],
        [member_of("cat/2.png", tarfile.SYMTYPE, "/etc/passwd")],
        [member_of("cat/2.png", tarfile.LNKTYPE, "cat/1.png")],
        [member_of("cat/2.png", tarfile.LNKTYPE, "/etc/passwd")],
        [member_of("cat/2.png", tarfile.CHRTYPE)],
        [member_of("cat/2.png", tarfile.BLKTYPE)],
        [member_of("cat/2.png", tarfile.FIFOTYPE)],
        [member_of(".git/link", tarfile.SYMTYPE, "/")],
    ],
    ids=["through", "symlink", "hardlink", "hardlink-out", "character", "block", "fifo", "hidden"],
)
def test_links_and_devices_in_a_tar(unpacked: Unpacked, tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    assert "pack plain files only" in unpacked(tarred(tmp_path / "a.tar", *members))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_links_and_devices_in_a_zip(unpacked: Unpacked, tmp_path: Path, kind: int) -> None:
    info = zipfile.ZipInfo("cat/2.png")
    info.create_system, info.external_attr = 3, (kind | 0o777) << 16
    assert "pack plain files only" in unpacked(zipped(tmp_path / "a.zip", [info, "cat/2.png/evil.png"]))


def test_a_sparse_file(unpacked: Unpacked, tmp_path: Path) -> None:
    member = member_of("cat/2.png")
    member.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 40)}
    assert "sparse" in unpacked(tarred(tmp_path / "a.tar", member))


class TestBombs:
    def test_zeros_in_a_zip(self, refused: Refused, tmp_path: Path) -> None:
        with zipfile.ZipFile(zipped(tmp_path / "a.zip", []), "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("cat/2.png", bytes(66 << 20))  # a little more than what is allowed whatever its size
        assert "times its size" in refused("/datasets", tmp_path / "a.zip")

    @pytest.mark.parametrize("name", ["cat/1.png", pytest.param("cat/notes.txt", marks=pytest.mark.slow)])
    def test_a_gigabyte_of_zeros_in_a_tar(self, refused: Refused, tmp_path: Path, name: str) -> None:
        """Also in a file that is skipped: it takes as long to skip it."""
        member = tarfile.TarInfo(name)
        member.size = 1 << 30
        (tmp_path / "a.tgz").write_bytes(gzip.compress(member.tobuf()) + GIGABYTE)
        assert "times its size" in refused("/datasets", tmp_path / "a.tgz")

    def test_headers_that_fill_the_memory(self, refused: Refused, tmp_path: Path) -> None:
        """tarfile reads an extended header in one piece, however long it says it is."""
        member = tarfile.TarInfo("x")
        member.type, member.size = tarfile.XHDTYPE, 1 << 30
        (tmp_path / "a.tgz").write_bytes(gzip.compress(member.tobuf()) + GIGABYTE)
        assert refused("/datasets", tmp_path / "a.tgz")

    def test_entries_that_share_their_bytes(self, refused: Refused, tmp_path: Path) -> None:
        """One compressed block, and a hundred names for it in the directory."""
        path = zipped(tmp_path / "a.zip", ["cat/2.png"], bytes(1 << 20))
        raw = path.read_bytes()
        end = raw.rindex(b"PK\5\6")
        size, start = struct.unpack("<LL", raw[end + 12 : end + 20])
        directory = raw[start : start + size]
        count = 3 * 100
        tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory) * 100, start, 0)
        path.write_bytes(raw[:start] + directory * 100 + tail)
        assert "overlaps" in refused("/datasets", path)

    def test_an_archive_in_an_archive_is_not_opened(self, refused: Refused, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
            archive.write(zipped(tmp_path / "inner.zip", []), "cat/inner.zip")
        assert "expected a folder of images for every class" in refused("/datasets", tmp_path / "outer.zip")

    @pytest.mark.slow
    def test_two_hundred_thousand_tiny_files(self, refused: Refused, tmp_path: Path) -> None:
        directory, entries, count = b"", [], 200_000
        for number in range(count):
            name = b"cat/%06d.png" % number
            entries.append(struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0) + name)
        places = [len(entries[0]) * number for number in range(count)]
        directory = b"".join(
            struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 14, 0, 0, 0, 0, 0, place) + entry[30:]
            for entry, place in zip(entries, places, strict=True)
        )
        body = b"".join(entries)
        zip64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), len(body))
        locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(body) + len(directory), 1)
        tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        (tmp_path / "a.zip").write_bytes(body + directory + zip64 + locator + tail)
        assert "at most 2000 entries" in refused("/datasets", tmp_path / "a.zip")

    def test_two_thousand_and_one_files_in_a_tar(self, refused: Refused, tmp_path: Path) -> None:
        header = tarfile.TarInfo("cat/1.txt").tobuf()
        (tmp_path / "a.tar.gz").write_bytes(gzip.compress(header * 2001 + bytes(1024), 1))
        assert "at most 2000 entries" in refused("/datasets", tmp_path / "a.tar.gz")

    @pytest.mark.slow
    def test_more_bytes_than_allowed(self, refused: Refused, tmp_path: Path) -> None:
        noise = random.Random(0).randbytes(1 << 20)  # compresses little enough for the ratio, but 230 of it do not fit
        with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(26):
                archive.writestr(f"cat/{number}.png", noise + bytes(8 << 20))
        assert "at most 200000000 bytes" in refused("/datasets", tmp_path / "a.zip")


class TestDamage:
    @pytest.mark.parametrize("share", [0.5, 0.99])
    @pytest.mark.parametrize("kind", ["zip", "tar", "gz", "bz2", "xz"])
    def test_a_truncated_end(self, unpacked: Unpacked, tmp_path: Path, kind: str, share: float) -> None:
        more = [f"cat/{number}.png" for number in range(2, 12)]
        if kind == "zip":
            path = zipped(tmp_path / "a.zip", more)
        else:
            path = tarred(tmp_path / "a.tar", *map(member_of, more), mode="w" if kind == "tar" else f"w:{kind}")
        raw = path.read_bytes().rstrip(b"\0") if kind == "tar" else path.read_bytes()
        path.write_bytes(raw[: int(share * len(raw))])
        assert "send it again" in unpacked(path)

    def test_a_tar_that_ends_between_two_files(self, unpacked: Unpacked, tmp_path: Path) -> None:
        path = tarred(tmp_path / "a.tar", member_of("cat/2.png"))
        raw = path.read_bytes()
        with tarfile.open(path) as archive:
            path.write_bytes(raw[: archive.getmembers()[2].offset])
        assert "ends too early" in unpacked(path)

    def test_a_zip_whose_sizes_lie(self, unpacked: Unpacked, tmp_path: Path) -> None:
        path = zipped(tmp_path / "a.zip", [])
        raw, size = path.read_bytes(), struct.pack("<L", len(IMAGE))
        path.write_bytes(raw.replace(size, struct.pack("<L", 10)))
        assert "send it again" in unpacked(path)

    def test_a_flipped_byte(self, unpacked: Unpacked, tmp_path: Path) -> None:
        path = zipped(tmp_path / "a.zip", [])
        raw = bytearray(path.read_bytes())
        raw[60] ^= 255
        path.write_bytes(raw)
        assert "send it again" in unpacked(path)

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"hello",
            bytes(512),
            b"PK\3\4",
            b"\x1f\x8b",
            lzma.compress(b"x"),
            gzip.compress(IMAGE),
            b"Rar!" + bytes(99),
        ],
        ids=["nothing", "text", "zeros", "zip", "gzip", "xz", "gz", "rar"],
    )
    def test_what_is_no_archive(self, unpacked: Unpacked, tmp_path: Path, raw: bytes) -> None:
        (tmp_path / "a.zip").write_bytes(raw)
        assert unpacked(tmp_path / "a.zip")

    @pytest.mark.parametrize("names", [["cat/1.png"], ["Cat/2.png"], ["cat/1.PNG"], ["dog", "cat/1.png/x.png"]])
    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_names_that_clash(self, unpacked: Unpacked, tmp_path: Path, names: list[str]) -> None:
        said = unpacked(zipped(tmp_path / "a.zip", names))
        assert "is there twice" in said or "differ only by case" in said

    def test_a_password(self, unpacked: Unpacked, tmp_path: Path) -> None:
        path = zipped(tmp_path / "a.zip", [])
        raw = bytearray(path.read_bytes())
        for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
            raw[raw.index(mark) + place] |= 1
        path.write_bytes(raw)
        assert "encrypted" in unpacked(path)
