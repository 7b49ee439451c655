"""What is sent: a folder as a tar that any reader takes, and Server-Sent Events as they come back."""

import io
import tarfile
from pathlib import Path

import httpx
import pytest
from data_pictures import draw_classes

from tcnn.errors import RequestError, StorageError
from tcnn_jobs.client import Client
from tcnn_jobs.client.packing import tar_folder


class TestTar:
    def test_every_image_and_every_folder_is_in_it(self, tmp_path: Path) -> None:
        folder = draw_classes(tmp_path / "pets", ["cat", "кошка", "x" * 150 + "/deep"])
        (folder / "empty").mkdir()
        (folder / "cat/notes.txt").write_text("no image")
        raw = b"".join(tar_folder(folder))
        assert len(raw) % tarfile.BLOCKSIZE == 0
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            found = {member.name: archive.extractfile(member) for member in archive}
        contents = {name: file.read() for name, file in found.items() if file}
        assert contents == {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jpg") if path.is_file()
        }
        assert "empty" in found

    def test_the_same_folder_gives_the_same_bytes(self, tmp_path: Path) -> None:
        first = b"".join(tar_folder(draw_classes(tmp_path / "a", ["cat", "dog"])))
        assert b"".join(tar_folder(draw_classes(tmp_path / "b", ["dog", "cat"]))) != first  # other pictures
        assert b"".join(tar_folder(draw_classes(tmp_path / "c", ["cat", "dog"]))) == first

    def test_a_folder_without_images(self, tmp_path: Path) -> None:
        with pytest.raises(RequestError, match="found no image"):
            next(tar_folder(tmp_path))

    def test_a_file_that_shrinks_meanwhile(self, tmp_path: Path) -> None:
        folder = draw_classes(tmp_path / "pets", ["cat"], 1)
        chunks = tar_folder(folder)
        next(chunks)  # the folder's header
        next(chunks)  # the file's
        (folder / "cat/0.jpg").write_bytes(b"short")
        with pytest.raises(StorageError, match="changed while it was sent"):
            list(chunks)


class TestMessages:
    STREAM = (
        ": ping\r\n\r\n"
        'id: 7\r\nevent: epoch\r\ndata: {"text": "a\u2028b"}\r\n\r\n'
        ": ping\r\n\r\n"
        "event: progress\ndata: one\ndata:two\n\n"
        "id: 8\nevent: done\ndata: cut"
    ).encode()
    EXPECTED = (("epoch", '{"text": "a\u2028b"}', "7"), ("progress", "one\ntwo", "7"))

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
    def test_whole_messages_come_out_however_the_bytes_come_in(self, size: int) -> None:
        """Signs of life are none, nor is what was cut off; JSON may hold what ends lines elsewhere."""

        def answer(request: httpx.Request) -> httpx.Response:
            assert request.headers["last-event-id"] == "6"
            pieces = (self.STREAM[start : start + size] for start in range(0, len(self.STREAM), size))
            return httpx.Response(200, headers={"content-type": "text/event-stream; charset=utf-8"}, content=pieces)

        with Client("http://server", "key-of-alice") as client:
            client._server.http = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server")
            found = tuple((said.event, said.data, said.id) for said in client.stream("job_1", after=6))
        assert found == self.EXPECTED
