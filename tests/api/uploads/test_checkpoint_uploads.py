"""Checkpoints over HTTP: one that tcnn wrote is accepted, and files that only look like one are not."""

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import timm
import torch
from safetensors.torch import save_file
from safetensors_parts import parts, rewrite, tensor
from serving import Server

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.errors import CheckpointError
from tcnn_jobs.confined.model_files import LONGEST_HEADER, check

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `tcnn.save` writes for a tiny model."""
    model, _ = tcnn.convert(timm.create_model("test_resnet", num_classes=3))
    model.pretrained_cfg["label_names"] = ["cat", "cow", "dog"]
    return tcnn.save(model, tmp_path_factory.mktemp("checkpoint") / "t_test.safetensors")


def resigned(path: Path, written: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], None]) -> Path:
    """A changed copy with a digest that is right again: the digest guards against damage, not against malice."""
    found = checkpoint.read(written)
    tensors, metadata = dict(found.tensors), dict(found.metadata)
    change(tensors, metadata)
    metadata["digest"] = checkpoint.digest(tensors, metadata)
    save_file(tensors, path, metadata)
    return path


@pytest.mark.usefixtures("looked_at_here")
def test_a_checkpoint_is_accepted(client: httpx.Client, server: Server, written: Path) -> None:
    before = server.files()
    headers = {"Idempotency-Key": "the-checkpoint"}
    answers = [
        client.post("/checkpoints", files={"file": ("mine.safetensors", written.read_bytes())}, headers=headers)
        for _ in range(2)
    ]
    body = answers[0].json()
    assert [answer.status_code for answer in answers] == [201, 201], answers
    assert answers[1].json() == body
    assert body["base_model"].startswith("test_resnet")
    assert (body["num_classes"], body["label_names"]) == (3, ["cat", "cow", "dog"])
    assert (body["name"], body["trained"]) == ("mine.safetensors", False)
    assert body["sha256"] == hashlib.sha256(written.read_bytes()).hexdigest()
    assert answers[0].headers["location"] == f"/checkpoints/{body['id']}"
    assert client.get(f"/checkpoints/{body['id']}").json() == body
    assert client.get("/checkpoints").json()["data"] == [body]
    kept = server.home / "checkpoints" / f"{body['id']}.safetensors"
    assert kept.read_bytes() == written.read_bytes()
    with server.client("key-of-bob") as bob:
        assert bob.get(f"/checkpoints/{body['id']}").status_code == 404
        assert bob.delete(f"/checkpoints/{body['id']}").status_code == 404
        assert bob.get("/checkpoints").json()["data"] == []
    assert client.delete(f"/checkpoints/{body['id']}").status_code == 204
    assert client.get(f"/checkpoints/{body['id']}").status_code == 404
    assert server.files() == before


@pytest.mark.slow  # it loads torch; processes and their bounds are in `test_confined.py`
def test_it_is_looked_at_by_a_process_of_its_own(client: httpx.Client, written: Path) -> None:
    """Which loads torch and the model within the memory that it may take."""
    answer = client.post("/checkpoints", files={"file": ("mine.safetensors", written.read_bytes())})
    assert answer.status_code == 201, answer.text
    assert (answer.json()["num_classes"], answer.json()["label_names"]) == (3, ["cat", "cow", "dog"])
    assert client.delete(f"/checkpoints/{answer.json()['id']}").status_code == 204


def refused_here(path: Path) -> str:
    """The check without the server around it, and without a process of its own."""
    with pytest.raises(CheckpointError) as caught:
        check(str(path))
    assert str(path.parent) not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("looked_at_here")
class TestHeaders:
    """Refused before torch is loaded."""

    @pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.5, 0.999])
    def test_a_truncated_file(self, written: Path, tmp_path: Path, share: float) -> None:
        raw = written.read_bytes()
        (tmp_path / "m.safetensors").write_bytes(raw[: int(share * len(raw))])
        assert "not a whole safetensors file" in refused_here(tmp_path / "m.safetensors")

    def test_a_shorter_and_a_longer_file(self, refused: Refused, written: Path, tmp_path: Path) -> None:
        (tmp_path / "m.safetensors").write_bytes(written.read_bytes()[:-1000])
        assert "its tensors need" in refused("/checkpoints", tmp_path / "m.safetensors")
        (tmp_path / "m.safetensors").write_bytes(written.read_bytes() + b"\0")
        assert "found" in refused("/checkpoints", tmp_path / "m.safetensors")

    def test_a_huge_header(self, refused: Refused, tmp_path: Path) -> None:
        path = rewrite(tmp_path / "m.safetensors", b"[" * (LONGEST_HEADER + 1))
        assert f"at most {LONGEST_HEADER} are read" in refused("/checkpoints", path)
        path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
        assert "ends within its header" in refused("/checkpoints", path)
        assert "not JSON" in refused("/checkpoints", rewrite(path, b"[" * 1_000_000))

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"data_offsets": [0, 4]}, "its dtype and shape need"),
            ({"shape": [1 << 62, 1 << 62]}, "its dtype and shape need"),
            ({"shape": [-1]}, "can be read"),
            ({"shape": [True]}, "can be read"),
            ({"shape": "9"}, "can be read"),
            ({"dtype": "OBJECT"}, "can be read"),
            ({"dtype": ["F32"]}, "can be read"),
            ({"data_offsets": [0]}, "can be read"),
            ({"data_offsets": [0.5, 8]}, "can be read"),
        ],
    )
    def test_a_tensor_that_is_not_what_it_says(
        self, written: Path, tmp_path: Path, change: dict[str, object], words: str
    ) -> None:
        header, data = parts(written)
        name = next(name for name in header if name != "__metadata__")
        header[name] |= change
        assert words in refused_here(rewrite(tmp_path / "m.safetensors", header, data))

    def test_overlaps_and_holes(self, refused: Refused, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        overlap = {"a": tensor(0, 8), "b": tensor(4, 12)}
        assert "overlaps another" in refused("/checkpoints", rewrite(path, overlap, bytes(12)))
        hole = {"a": tensor(0, 4), "b": tensor(8, 12)}
        assert "leaves 4 bytes unused" in refused("/checkpoints", rewrite(path, hole, bytes(12)))
        beyond = {"a": tensor(0, 4000)}
        assert "need 4000 bytes, found 12" in refused("/checkpoints", rewrite(path, beyond, bytes(12)))

    @pytest.mark.parametrize(
        "header", [b"", b"[]", b"{", b"\xff", b'{"a":1}', b'{"a":null,"a":null}', b'{"__metadata__":{"x":1}}', b"NaN"]
    )
    def test_no_header_at_all(self, tmp_path: Path, header: bytes) -> None:
        assert "not a whole safetensors file" in refused_here(rewrite(tmp_path / "m.safetensors", header))

    def test_a_pickle_in_disguise(self, refused: Refused, tmp_path: Path) -> None:
        class Evil:
            def __reduce__(self) -> tuple[Any, ...]:
                return Path.touch, (tmp_path / "executed",)

        path = tmp_path / "m.safetensors"
        path.write_bytes(pickle.dumps(Evil()))
        assert "not a whole safetensors file" in refused("/checkpoints", path)
        torch.save({"x": Evil()}, path)
        assert "not a whole safetensors file" in refused("/checkpoints", path)
        assert not (tmp_path / "executed").exists()

    def test_a_foreign_file(self, refused: Refused, tmp_path: Path) -> None:
        save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "m.safetensors", {"format": "pt"})
        assert "not written by tcnn; convert its model first" in refused("/checkpoints", tmp_path / "m.safetensors")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"base_model": "my_net"}, "names two base models"),
            ({"conversion": "{}"}, "records cannot be read"),
            ({"conversion": "[" * 100_000}, "records cannot be read"),
            ({"label_names": "{"}, "records cannot be read"),
        ],
    )
    def test_metadata_that_make_no_sense(
        self, written: Path, tmp_path: Path, change: dict[str, str], words: str
    ) -> None:
        path = resigned(tmp_path / "m.safetensors", written, lambda _, metadata: metadata.update(change))
        assert words in refused_here(path)

    @pytest.mark.parametrize(
        ("base", "arguments", "words"),
        [
            ("my_net", {}, "which timm does not know"),
            ("hf-hub:evil/net", {}, "which timm does not know"),
            ("local-dir:/etc", {}, "which timm does not know"),
            ("test_resnet", {"checkpoint_path": "/etc/passwd"}, "not allowed in a file"),
            ("test_resnet", {"pretrained_cfg": {"url": "http://evil"}}, "not allowed in a file"),
            ("test_resnet", {"cache_dir": "/tmp"}, "not allowed in a file"),
        ],
    )
    def test_models_and_arguments_that_reach_out(
        self, written: Path, tmp_path: Path, base: str, arguments: dict[str, Any], words: str
    ) -> None:
        path = resigned(tmp_path / "m.safetensors", written, lambda _, metadata: rename(metadata, base, arguments))
        assert words in refused_here(path)


def rename(metadata: dict[str, str], base: str, arguments: dict[str, Any]) -> None:
    report = json.loads(metadata["conversion"])
    report |= {"base_model": base, "model_args": report["model_args"] | arguments}
    metadata |= {"base_model": base, "conversion": json.dumps(report)}


class TestLoading:
    """Refused by a strict load; in a process that may not take all memory, as the last one shows."""

    def test_a_flipped_bit(self, written: Path, tmp_path: Path) -> None:
        raw = bytearray(written.read_bytes())
        raw[-100] ^= 1
        (tmp_path / "m.safetensors").write_bytes(raw)
        assert "altered since it was written" in refused_here(tmp_path / "m.safetensors")

    def test_other_tensors(self, written: Path, tmp_path: Path) -> None:
        def shrink(tensors: dict[str, torch.Tensor], _: dict[str, str]) -> None:
            tensors["layer4.0.conv2.proj"] = tensors["layer4.0.conv2.proj"][:, :-1].contiguous()

        assert "does not fit" in refused_here(resigned(tmp_path / "m.safetensors", written, shrink))

    @pytest.mark.slow
    def test_a_model_that_fills_the_memory(self, refused: Refused, written: Path, tmp_path: Path) -> None:
        path = resigned(
            tmp_path / "m.safetensors", written,
            lambda _, metadata: rename(metadata, "test_resnet", {"num_classes": 1 << 33}),
        )  # fmt: skip
        assert "memory" in refused("/checkpoints", path)
