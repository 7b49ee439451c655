"""Uploads take no more of the disk than their tenant may still store, and leave free what is to stay free; nothing of
one that was refused remains.
"""

import asyncio
import gzip
import http.client
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
import torch
from houses import wait_for
from serving import SMALL, Server, hosted, problem

from tcnn.errors import StorageError
from tcnn_api.settings import load
from tcnn_api.uploading.archives import Limits, unpack
from tcnn_api.uploading.datasets import unpack_and_describe
from tcnn_jobs.confined.model_files import keep
from tcnn_jobs.confined.process import ask
from tcnn_jobs.confined.room import Bounds, Rooms
from tcnn_jobs.errors import BytesExceeded
from tcnn_jobs.store import Store

MIB = 1 << 20
ROUTES = ("/datasets", "/checkpoints", "/weights")
HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
END = b"\r\n--b--\r\n"
Leave = Callable[[int | None], None]


@pytest.fixture
def leave(server: Server) -> Iterator[Leave]:
    """Leaves so many bytes of alice's quota, or all that she wants."""
    with closing(Store(load(home=server.home).database)) as store:

        def leave(left: int | None) -> None:
            tenants = store.tenants("alice")
            store.set_quotas("alice", stored=left and left + (tenants[0].use.stored if tenants else 0))

        yield leave
        leave(None)


def photos(size: int, stored: bool = True) -> bytes:
    """A zip of two images of so many bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED) as archive:
        for label in ("cat", "dog"):
            archive.writestr(zipfile.ZipInfo(f"{label}/1.png"), bytes(size))
    return packed.getvalue()


@contextmanager
def begun(server: Server, route: str, length: int | None, *pieces: bytes) -> Iterator[http.client.HTTPConnection]:
    """An upload of which so much was announced and sent, or as much as was taken."""
    host = server.url.removeprefix("http://")
    with closing(http.client.HTTPConnection(host, timeout=60)) as connection:
        connection.putrequest("POST", route)
        connection.putheader("Authorization", "Bearer key-of-alice")
        connection.putheader("Content-Type", "multipart/form-data; boundary=b")
        connection.putheader(*(("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))))
        connection.endheaders()
        try:
            for piece in pieces:
                connection.send(b"%x\r\n%s\r\n" % (len(piece), piece) if length is None else piece)
        except OSError:
            pass  # it hung up on us
        yield connection


def refused(connection: http.client.HTTPConnection, status: int) -> str:
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("connection")) == (status, "close")
    return str(json.loads(answer.read())["detail"])


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_announced_and_cannot_fit_is_not_received(server: Server, leave: Leave, route: str) -> None:
    leave(MIB)
    before = server.files()
    with begun(server, route, 20 * MIB) as connection:
        told = refused(connection, 403)
    assert told.startswith("you may store 1,048,576 bytes more") and told.endswith(
        "delete jobs, data sets or checkpoints"
    )
    assert server.files() == before


@pytest.mark.parametrize(("route", "most"), list(zip(ROUTES, (5, 1, 5), strict=True)))
def test_what_comes_unannounced_is_cut_off(server: Server, leave: Leave, route: str, most: int) -> None:
    """A checkpoint is stored as it comes; of other files a part is."""
    leave(MIB)
    before, sizes = server.files(), []

    def pieces() -> Iterator[bytes]:
        yield HEAD
        for _ in range(25):
            yield bytes(MIB)
            sizes.append(sum(path.stat().st_size for path in (server.home / "incoming").rglob("*") if path.is_file()))

    with begun(server, route, None, *pieces()) as connection:
        refused(connection, 403)
    assert max(sizes) <= (most + 2) * MIB
    wait_for(lambda: server.files() == before)


@pytest.mark.usefixtures("looked_at_here")
def test_no_more_is_unpacked_than_may_be_stored(client: httpx.Client, server: Server, leave: Leave) -> None:
    """What counts is what comes out, not how it is packed: here a hundredth, there more."""
    leave(3 * MIB)
    before = server.files()
    answer = client.post("/datasets", files={"file": photos(2 * MIB, stored=False)})
    assert answer.status_code == 403, answer.text
    assert problem(answer)["type"] == "urn:tcnn:problem:bytes-exceeded"
    assert server.files() == before
    packed = io.BytesIO(photos(MIB))
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("readme.txt", bytes(6 * MIB))
    accepted = client.post("/datasets", files={"file": packed.getvalue()})
    assert accepted.status_code == 201, accepted.text
    assert client.delete(f"/datasets/{accepted.json()['id']}").status_code == 204


@pytest.mark.parametrize("kind", ["zip", "tar", "gz"])
@pytest.mark.parametrize(
    ("bounds", "error"), [(Bounds(1000), BytesExceeded), (Bounds(10**9, 10**18), StorageError), (Bounds(2000, 1), None)]
)
def test_bounds_of_what_comes_out(tmp_path: Path, kind: str, bounds: Bounds, error: type[Exception] | None) -> None:
    """Nothing is written that is beyond them."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("a/1.png", "b/1.png", "b/notes.txt"):
            member = tarfile.TarInfo(name)
            member.size = 1000
            archive.addfile(member, io.BytesIO(bytes(1000)))
    content = {"zip": photos(1000), "tar": packed.getvalue(), "gz": gzip.compress(packed.getvalue())}[kind]
    (tmp_path / "archive").write_bytes(content)
    limits = Limits(100, 10**6, 1000.0, bounds)
    target = tmp_path / "target"
    if error is None:
        assert unpack_and_describe(str(tmp_path / "archive"), str(target), json.dumps(limits))["bytes"] == 2000
        return
    with pytest.raises(error):
        unpack(tmp_path / "archive", target, limits)
    assert sum(path.stat().st_size for path in target.rglob("*.png")) == (1000 if bounds.left == 1000 else 0)


def test_weights_that_would_be_larger_than_their_file(tmp_path: Path) -> None:
    """A tensor that repeats itself is short in a file of PyTorch's."""
    torch.save({"a.weight": torch.ones(1).expand(1000, 1000)}, tmp_path / "file")
    arguments = str(tmp_path / "file"), "mine.pth", str(tmp_path / "kept")
    for bounds, error in ((Bounds(3_999_999), BytesExceeded), (Bounds(None, 10**18), StorageError)):
        with pytest.raises(error):
            keep(*arguments, json.dumps(bounds))
    assert not (tmp_path / "kept").exists()
    assert keep(*arguments, json.dumps(Bounds(4_000_000, 1)))["kept"]["size"] > 4_000_000


def test_the_process_that_unpacks_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(photos(1000))
    arguments = str(tmp_path / "archive"), str(tmp_path / "target"), json.dumps(Limits(9, 10**6, 9.0, Bounds(1999)))
    with pytest.raises(BytesExceeded, match="you may store 1,999 bytes more, and these are more; delete"):
        asyncio.run(ask("tcnn_api.uploading.datasets", "unpack_and_describe", *arguments, memory=1 << 30, seconds=60))


def test_uploads_at_once_share_what_is_left(server: Server, leave: Leave) -> None:
    """One that is under way keeps what it has announced, and gives it back when it breaks off."""
    leave(10 * MIB)
    before = server.files()
    with begun(server, "/checkpoints", 8 * MIB, HEAD, bytes(2 * MIB)):
        wait_for(lambda: server.files() != before)
        with begun(server, "/checkpoints", 6 * MIB) as second:
            assert "beside your uploads under way" in refused(second, 403)
        with begun(server, "/checkpoints", None, HEAD, bytes(2 * MIB), bytes(2 * MIB)) as third:
            refused(third, 403)
    wait_for(lambda: server.files() == before)
    content = HEAD + bytes(6 * MIB) + END
    with begun(server, "/checkpoints", len(content), content) as fourth:
        assert fourth.getresponse().status == 422, "it is no checkpoint, for which there would have been room"
    wait_for(lambda: server.files() == before)


def test_the_room_of_a_tenant(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path, 0)
    with rooms.enter("ann", "checkpoint") as first, rooms.enter("ann", "dataset") as second:
        first.left = second.left = 10 * MIB
        first.receive(6 * MIB)
        assert second.bounds == Bounds(4 * MIB, 0)
        second.receive(13 * MIB)
        with pytest.raises(BytesExceeded, match="beside your uploads under way and send 4 times as much"):
            second.receive(30 * MIB)
        first.leave()
        second.receive(41 * MIB)
        with pytest.raises(BytesExceeded, match="bytes more, and this is more"):
            second.keep(10 * MIB + 1)
        second.keep(MIB)
        with rooms.enter("bob", "weights") as third:
            third.receive(10**15)
            assert third.rest is None
        assert rooms.taken == {"ann": MIB}
    assert not rooms.taken


def test_space_that_is_to_stay_free_stays_free(tmp_path: Path) -> None:
    """With a disk as it is: more is to stay free than there is, so whatever comes would cut into it."""
    allowed = {name.removeprefix("TCNN_").lower(): value for name, value in SMALL.items()}
    with hosted(tmp_path / "home", min_free_gb=1e6, **allowed) as server:
        before = server.files()
        for route in ROUTES:
            for length in (MIB, None):
                with begun(server, route, length, HEAD, bytes(MIB)) as connection:
                    assert "expected 1e+06 GB of the server's disk to stay free" in refused(connection, 507)
        wait_for(lambda: server.files() == before)
