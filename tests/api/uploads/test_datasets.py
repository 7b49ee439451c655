"""Data sets over HTTP: what is accepted, what is said of it, and what becomes of every kind of accident."""

import hashlib
import http.client
import resource
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from data_pictures import draw, draw_classes
from serving import SMALL, Server, hosted, problem

from tcnn_jobs.client.client import Client
from tcnn_jobs.client.refusals import RefusedError

pytestmark = pytest.mark.usefixtures("looked_at_here")
Refused = Callable[..., str]


def pack(folder: Path, archive: Path) -> Path:
    """Everything below a folder, as the archive's ending says."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as packed:
            for path in paths:
                packed.write(path, path.relative_to(folder))
    else:
        mode = {".tar": "w", ".gz": "w:gz", ".xz": "w:xz", ".bz2": "w:bz2"}[archive.suffix]
        with tarfile.open(archive, mode) as packed:  # type: ignore[call-overload]
            packed.add(folder, ".")
    return archive


def send(client: httpx.Client, path: Path, key: str | None = None) -> httpx.Response:
    with path.open("rb") as file:
        return client.post(
            "/datasets", files={"file": (path.name, file)}, headers={"Idempotency-Key": key} if key else {}
        )


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return pack(draw_classes(tmp_path / "pets", ["cat", "dog"]), tmp_path / "pets.zip")


@pytest.fixture(autouse=True)
def empty(client: httpx.Client, server: Server) -> Iterator[None]:
    """Every test begins and ends with a house without data sets."""
    yield
    for row in client.get("/datasets?limit=100").json()["data"]:
        assert client.delete(f"/datasets/{row['id']}").status_code == 204
    assert [name for name in server.files() if "/" in name] == []


class TestAccepted:
    @pytest.mark.parametrize("ending", [".zip", ".tar", ".tar.gz", ".tar.xz", ".tar.bz2"])
    def test_class_folders(self, client: httpx.Client, server: Server, tmp_path: Path, ending: str) -> None:
        folder = draw_classes(tmp_path / "pets", ["dog", "cat", "10", "9"])
        archive = pack(folder, tmp_path / f"pets{ending}")
        answer = send(client, archive)
        assert answer.status_code == 201, answer.text
        body = answer.json()
        assert answer.headers["location"] == f"/datasets/{body['id']}"
        assert body["classes"] == ["9", "10", "cat", "dog"]
        assert (body["images"], body["splits"], body["name"]) == (12, {}, f"pets{ending}")
        assert body["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
        assert body["size"] == archive.stat().st_size
        assert client.get(f"/datasets/{body['id']}").json() == body
        unpacked = server.home / "datasets" / body["id"]
        for path in folder.rglob("*.jpg"):
            assert (unpacked / path.relative_to(folder)).read_bytes() == path.read_bytes()

    def test_splits_in_one_wrapping_folder(self, client: httpx.Client, tmp_path: Path) -> None:
        draw_classes(tmp_path / "a/pets/train", ["cat", "dog"], 4)
        draw_classes(tmp_path / "a/pets/val", ["dog"], 2)
        for name in ("1.heic", "train/2.heic", "train/cat/3.heic", "val/dog/4.heic"):
            (tmp_path / "a/pets" / name).touch()
        body = send(client, pack(tmp_path / "a", tmp_path / "a.tar.gz")).json()
        assert (body["classes"], body["images"], body["splits"]) == (["cat", "dog"], 10, {"train": 8, "val": 2})
        assert body["left_out"] == 2  # the others lie in no class folder

    def test_junk_and_other_files_are_left_behind(self, client: httpx.Client, server: Server, tmp_path: Path) -> None:
        folder = draw_classes(tmp_path / "pets", ["cat", "dog"])
        for name in ("README.md", "cat/notes.txt", "cat/.DS_Store", "Thumbs.db", "run.py", "cat/1.heic", "dog/2"):
            (folder / name).write_text("no image")
        draw(folder / "__MACOSX/cat/._1.jpg")
        body = send(client, pack(folder, tmp_path / "pets.zip")).json()
        assert (body["classes"], body["images"], body["left_out"]) == (["cat", "dog"], 6, 2)
        assert {Path(name).suffix for name in server.files() if Path(name).suffix} == {".jpg"}

    def test_names_in_other_scripts(self, client: httpx.Client, tmp_path: Path) -> None:
        names = {"кошка", "猫", "café", "ශ්\u200dරී", "می\u200cخواهم", "秋田\u3000犬", "👨\u200d👩\u200d👧"}
        folder = draw_classes(tmp_path / "pets", sorted(names))
        for archive in (tmp_path / "実験\u3000一 👨\u200d👩\u200d👧 می\u200cخواهم.tar.gz", tmp_path / "n°\u00a01.zip"):
            made = send(client, pack(folder, archive)).json()
            assert set(made["classes"]) == names and made["name"] == archive.name

    def test_a_name_is_shown_without_its_folders(self, client: httpx.Client, pets: Path) -> None:
        for given, shown in [("../../etc/p.zip", "p.zip"), ("C:\\x\\p.zip", "p.zip"), ("a\x01b.zip", "ab.zip")]:
            answer = client.post("/datasets", files={"file": (given, pets.read_bytes())})
            assert answer.json()["name"].endswith(shown.removeprefix("a")), answer.text
            assert "/" not in answer.json()["name"]


class TestRefused:
    @pytest.mark.parametrize(
        ("files", "words"),
        [
            ([], "expected a folder of images for every class"),
            (["1.jpg", "2.jpg"], "2 images that lie in no class folder"),
            (["cat/1.jpg", "cat/2.jpg"], "expected at least two class folders, found one, 'cat'"),
            (["cat/1.jpg", "dog/notes.txt", "cow/1.jpg"], "no images in class folder dog"),
            (["train/cat/1.jpg", "train/dog/1.jpg", "val/cow/1.jpg"], "val/ has class 'cow', which train/ has not"),
            (["cat/notes.txt", "dog/notes.txt"], "found folders without images"),
            (["x/cat/1.heic", "x/dog/1.heic"], "found 2 files without the extension of an image, such as cat/1.heic"),
        ],
        ids=["empty", "flat", "one", "hollow", "foreign", "texts", "others"],
    )
    def test_what_cannot_be_trained_on(self, refused: Refused, tmp_path: Path, files: list[str], words: str) -> None:
        (tmp_path / "a").mkdir()
        for name in files:
            path = tmp_path / "a" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("not looked into") if name.endswith(("txt", "heic")) else draw(path)
        assert words in refused("/datasets", pack(tmp_path / "a", tmp_path / "a.zip"))

    def test_other_bodies(self, client: httpx.Client, pets: Path) -> None:
        raw = pets.read_bytes()
        assert problem(client.post("/datasets", json={"file": "x"}))["status"] == 415
        assert problem(client.post("/datasets", content=raw, headers={"Content-Type": "application/zip"}))
        for files in ({"data": raw}, [("file", raw), ("file", raw)], [("file", raw), ("note", b"x")]):
            assert problem(client.post("/datasets", files=files))["status"] == 422
        form = {"Content-Type": "multipart/form-data; boundary=b"}
        for body in (
            b"",
            b"nonsense",
            b"--b\r\n",
            b"--b--\r\n",
            b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx',
        ):
            assert problem(client.post("/datasets", content=body, headers=form))["status"] == 422
        assert problem(client.post("/datasets", content=raw, headers={"Content-Type": "multipart/form-data"}))

    def test_a_header_that_never_ends(self, client: httpx.Client) -> None:
        body = b"--b\r\nContent-Disposition: " + b"x" * 1_000_000
        answer = client.post("/datasets", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"})
        assert problem(answer)["status"] == 422

    @pytest.mark.parametrize("announced", [True, False])
    def test_a_body_over_the_limit_is_cut_off(self, server: Server, announced: bool) -> None:
        """The server answers long before the end, which is a gigabyte away."""
        before = server.files()
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
        connection.putrequest("POST", "/datasets")
        connection.putheader("Authorization", "Bearer key-of-alice")
        connection.putheader("Content-Type", "multipart/form-data; boundary=b")
        connection.putheader(*(("Content-Length", "1000000000") if announced else ("Transfer-Encoding", "chunked")))
        connection.endheaders()
        sent, piece = 0, bytes(1 << 20)
        try:
            connection.send(_chunk(b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n', not announced))
            while sent < 1_000_000_000 and not announced:
                connection.send(_chunk(piece, True))
                sent += len(piece)
        except OSError:
            pass  # it hung up on us
        answer = connection.getresponse()
        assert answer.status == 413
        assert b"TCNN_MAX_UPLOAD_GB" in answer.read()
        assert sent < 500_000_000  # what it reads and discards has an end
        _eventually(lambda: server.files() == before)

    def test_our_own_client_understands_that_it_is_cut_off(self, server: Server, tmp_path: Path) -> None:
        (tmp_path / "large.zip").write_bytes(bytes(60_000_000))
        with Client(server.url, "key-of-alice", patience=5) as client, pytest.raises(RefusedError) as caught:
            client.upload_dataset(tmp_path / "large.zip")
        assert caught.value.status == 413

    def test_a_client_that_hangs_up_leaves_nothing(self, server: Server) -> None:
        before = server.files()
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
        connection.putrequest("POST", "/datasets")
        connection.putheader("Authorization", "Bearer key-of-alice")
        connection.putheader("Content-Type", "multipart/form-data; boundary=b")
        connection.putheader("Content-Length", "20000000")
        connection.endheaders()
        connection.send(b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + bytes(4 << 20))
        _eventually(lambda: server.files() != before)
        connection.close()
        _eventually(lambda: server.files() == before)
        assert server.files() == before

    def test_a_full_disk(self, tmp_path: Path, pets: Path) -> None:
        """While it is unpacked, and while the archive arrives: the kernel lets no file grow beyond 400 kB."""
        with zipfile.ZipFile(pets, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("cat/large.png", bytes(2_000_000))
        large = tmp_path / "large.zip"
        large.write_bytes(bytes(2_000_000))
        allowed = {name.removeprefix("TCNN_").lower(): value for name, value in SMALL.items()}
        with hosted(tmp_path / "service/home", **allowed) as server, server.client() as client, largest_file(400_000):
            before = server.files()
            for archive in (pets, large):
                answer = send(client, archive)
                assert answer.status_code == 507, answer.text
                assert "no space left" in problem(answer)["detail"]
                assert server.files() == before
                assert client.get("/datasets").json()["data"] == []


class TestOwnersAndKeys:
    def test_what_a_job_needs_stays(self, client: httpx.Client, pets: Path) -> None:
        data, other = send(client, pets).json()["id"], send(client, pets).json()["id"]
        training = {"dataset": data, "preset": "quick", "config": {"batch_size": 2, "val_split": 0.5}}
        body = {"model": "resnet18", "pretrained": False, "finetune": training}
        job = client.post("/transform", json=body)
        assert job.status_code == 202, job.text
        answer = client.delete(f"/datasets/{data}")
        assert answer.status_code == 409
        assert f"{job.json()['id']} is queued and needs it" in problem(answer)["detail"]
        assert client.delete(f"/datasets/{other}").status_code == 204
        assert client.post(f"/jobs/{job.json()['id']}/cancel").status_code == 200
        assert client.delete(f"/datasets/{data}").status_code == 204

    def test_others_see_nothing(self, client: httpx.Client, server: Server, pets: Path) -> None:
        mine = send(client, pets).json()["id"]
        with server.client("key-of-bob") as bob:
            assert bob.get("/datasets").json()["data"] == []
            for request in (bob.get, bob.delete):
                assert request(f"/datasets/{mine}").status_code == 404
                assert request("/datasets/ds_000000000000000000000000").status_code == 404
                assert request("/datasets/nonsense").status_code == 404
        with server.client("another-key") as nobody:
            assert nobody.get("/datasets").status_code == 401
            assert send(nobody, pets).status_code == 401
        assert client.get(f"/checkpoints/{mine}").status_code == 404
        assert client.delete(f"/checkpoints/{mine}").status_code == 404
        assert client.get(f"/datasets/{mine}").status_code == 200

    def test_pages(self, client: httpx.Client, pets: Path) -> None:
        ids = [send(client, pets).json()["id"] for _ in range(3)]
        first = client.get("/datasets?limit=2").json()
        assert ([row["id"] for row in first["data"]], first["has_more"]) == (ids[:0:-1], True)
        rest = client.get(f"/datasets?limit=2&after={ids[1]}").json()
        assert ([row["id"] for row in rest["data"]], rest["has_more"]) == (ids[:1], False)

    def test_the_same_key_is_the_same_data_set(self, client: httpx.Client, server: Server, pets: Path) -> None:
        first = send(client, pets, "once")
        again = send(client, pets, "once")
        assert again.status_code == 201
        assert again.json() == first.json()
        with zipfile.ZipFile(pets, "a") as archive:
            archive.writestr("cat/more.txt", "")
        answer = send(client, pets, "once")
        assert answer.status_code == 422
        assert answer.json()["type"] == "urn:tcnn:problem:idempotency-mismatch"
        with server.client("key-of-bob") as bob:  # his keys are his own
            other = send(bob, pets, "once").json()["id"]
            assert other != first.json()["id"]
            assert bob.delete(f"/datasets/{other}").status_code == 204
        assert len(client.get("/datasets").json()["data"]) == 1

    def test_the_same_key_twice_at_once(self, client: httpx.Client, server: Server, pets: Path) -> None:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: send(client, pets, "at-once"), range(4)))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert len(client.get("/datasets").json()["data"]) == 1
        assert len(list((server.home / "datasets").iterdir())) == 1


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """So many bytes of a file can be written, and Python keeps no bytecode that is cut short."""
    before, kept = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = kept


def _chunk(data: bytes, chunked: bool) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data) if chunked else data


def _eventually(condition: Callable[[], bool]) -> None:
    for _ in range(100):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never came to that")
