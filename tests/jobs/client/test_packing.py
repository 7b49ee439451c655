"""What is sent: a folder as a tar that any reader takes, weights, runs and data sets on the command line; and
Server-Sent Events as they come back.
"""

import io
import shutil
import tarfile
from pathlib import Path

import httpx
import pytest
import timm
import torch
from command_and_worker import Run
from data_pictures import draw_classes
from safetensors.torch import save_file
from serving import ask_here
from tiny_runs import colours

import tcnn
from tcnn.errors import RequestError, StorageError
from tcnn_api.routes.uploads import weights
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


class TestUploads:
    def test_weights_of_ones_own_are_uploaded_and_named(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(weights, "ask", ask_here)
        cnn = timm.create_model("test_resnet", num_classes=3)
        torch.save({"arch": "test_resnet", "state_dict": cnn.state_dict()}, tmp_path / "best.pth.tar")
        save_file(cnn.state_dict(), tmp_path / "mine.safetensors")
        sent = run("upload", tmp_path / "best.pth.tar")
        assert sent.err == "92 tensors of test_resnet\n"
        made = run("submit", "transform", "test_resnet", "--weights", sent.out.strip(), "--json").json
        assert made["request"]["weights"] == sent.out.strip()
        data = run("upload", colours(tmp_path / "photos")).out.strip()
        options = "--data", data, "--set", "val_split=0.2", "--set", "batch_size=8", "--json"
        tuned = run("submit", "finetune", "test_resnet", "--weights", tmp_path / "mine.safetensors", *options).json
        assert tuned["request"]["weights"].startswith("wts_")
        options = "--data", data, "--weights", sent.out.strip(), "--json"
        measured = run("submit", "evaluate", "test_resnet", *options).json
        assert measured["request"]["weights"] == sent.out.strip()
        for job in (made, tuned, measured):
            run("cancel", job["id"])

    def test_a_run_stands_for_its_best_checkpoint_and_what_was_uploaded_is_told_before_a_refusal(
        self, run: Run, tmp_path: Path
    ) -> None:
        runs = tmp_path / "runs"
        runs.mkdir()
        tcnn.save(tcnn.convert(timm.create_model("test_resnet", num_classes=3)).model, runs / "best.safetensors")
        assert "test_resnet" in run("upload", runs).err
        refused = run("submit", "finetune", runs, "--data", colours(tmp_path / "photos"), "--set", "epoch=1")
        assert refused.code == 2
        model, data = (line.rpartition(" ")[2] for line in refused.err.splitlines()[:2])
        assert (model[:5], data[:3]) == ("ckpt_", "ds_")
        assert "epoch" in run("submit", "finetune", model, "--data", data, "--set", "epoch=1").error(2)

    def test_what_is_not_sent_or_not_kept_is_said(self, run: Run, tmp_path: Path) -> None:
        folder = colours(tmp_path / "photos", 3, ("red", "blue"))
        for name in ("blue/1.heic", "red/1.txt"):
            (folder / name).touch()
        note = "left out: 1 file without the extension of an image"
        assert run("upload", folder).err == f"6 images of 2 classes\n{note}, such as blue/1.heic\n"
        packed = shutil.make_archive(str(folder), "zip", folder)
        assert run("upload", packed).err == f"6 images of 2 classes\n{note}\n"
        assert f"{packed}: {note}\n" in run("submit", "finetune", "none", "--data", packed).err

    def test_an_upload_that_is_refused(self, run: Run, tmp_path: Path) -> None:
        assert "at least two class folders" in run("upload", colours(tmp_path / "x", 1, ("red",))).error(2)
        assert "found nothing" in run("upload", "missing.zip").error(2)
