"""Weights of one's own over HTTP: whatever wrote them they are kept as safetensors, and nothing is unpickled."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from serving import Server

import tcnn
from tcnn.errors import WeightsError
from tcnn_jobs.confined.model_files import keep


@pytest.fixture(scope="module")
def cnn() -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=3)


def same(file: Path, cnn: torch.nn.Module) -> bool:
    """Whether a file has the model's tensors, to the last bit."""
    kept, own = load_file(file), cnn.state_dict()
    return kept.keys() == own.keys() and all(torch.equal(kept[key], own[key]) for key in own)


@pytest.fixture(params=["here", pytest.param("process", marks=pytest.mark.slow)])
def looked_at(request: pytest.FixtureRequest) -> None:
    """By a thread of the server, or by a process of its own as with checkpoints."""
    if request.param == "here":
        request.getfixturevalue("looked_at_here")


@pytest.mark.usefixtures("looked_at")
def test_weights_are_accepted_and_kept_as_safetensors(
    client: httpx.Client, server: Server, cnn: torch.nn.Module, tmp_path: Path
) -> None:
    torch.save({"arch": "test_resnet", "epoch": 7, "state_dict": cnn.state_dict()}, tmp_path / "file")
    before = server.files()
    answer = client.post("/weights", files={"file": ("model_best.pth.tar", (tmp_path / "file").read_bytes())})
    assert answer.status_code == 201, answer.text
    body = answer.json()
    kept = server.home / "checkpoints" / f"{body['id']}.safetensors"
    assert same(kept, cnn)
    assert (body["name"], body["architecture"]) == ("model_best.pth.tar", "test_resnet")
    assert body["size"] == kept.stat().st_size
    assert body["sha256"] == hashlib.sha256(kept.read_bytes()).hexdigest()
    assert body["parameters"] == sum(tensor.numel() for tensor in cnn.state_dict().values())
    assert body["dtypes"] == {"float32": 77, "int64": 15}
    assert body["shapes"][0] == ["conv1.0.weight", list(cnn.state_dict()["conv1.0.weight"].shape)]
    assert client.get(f"/weights/{body['id']}").json() == body
    (line,) = client.get("/weights").json()["data"]
    assert body == line | {"shapes": body["shapes"]}
    assert client.get(f"/checkpoints/{body['id']}").status_code == 404
    with server.client("key-of-bob") as bob:
        assert bob.get(f"/weights/{body['id']}").status_code == 404
        assert bob.post("/transform", json={"model": "test_resnet", "weights": body["id"]}).status_code == 422
    job = client.post("/transform", json={"model": "test_resnet", "weights": body["id"]}).json()
    assert "needs it" in client.delete(f"/weights/{body['id']}").json()["detail"]
    client.post(f"/jobs/{job['id']}/cancel")
    assert client.delete(f"/weights/{body['id']}").status_code == 204
    assert server.files() == before


@pytest.mark.slow
def test_what_is_no_state_dict_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(b"no weights at all")
    assert "not readable as safetensors or as PyTorch weights" in refused("/weights", tmp_path / "x.pth")


Make = Callable[[Path, torch.nn.Module], Any]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path, cnn: torch.save(cnn, path), "without pickled code (it needs "),
        (lambda path, cnn: save_file({"x": torch.tensor([1.0, float("nan")])}, path), "mine: x: 1 of 2 values is NaN"),
        (lambda path, cnn: tcnn.save(tcnn.convert(cnn)[0], path), "send it as one (POST /checkpoints)"),
        (
            lambda path, cnn: path.write_bytes((9).to_bytes(8, "little") + b'{"a": 1}x' + b"y"),
            "not a whole safetensors",
        ),
        (lambda path, cnn: path.write_bytes(b""), "not readable"),
        (lambda path, cnn: torch.save({"x": torch.eye(3).to_sparse()}, path), "x: expected a dense tensor"),
        (lambda path, cnn: torch.save([1, 2], path), "expected a state dict, found list"),
    ],
    ids=["pickle", "NaN", "a checkpoint", "damaged", "empty", "sparse", "no dict"],
)
def test_each_refusal_says_what_is_wrong(make: Make, words: str, cnn: torch.nn.Module, tmp_path: Path) -> None:
    made = tmp_path / "made.safetensors"
    make(made, cnn)
    made.rename(tmp_path / "file")  # as it lies when it has been received
    with pytest.raises(WeightsError) as refused:
        keep(str(tmp_path / "file"), "mine", str(tmp_path / "kept"))
    assert words in str(refused.value)
    assert str(tmp_path) not in str(refused.value)
    assert not (tmp_path / "kept").exists()


def test_what_shares_memory_is_written_once_each(tmp_path: Path) -> None:
    whole = torch.arange(1000.0)
    torch.save({"model": {"a": whole[:3], "b": whole[:3], "c": whole.view(10, 100).T}}, tmp_path / "file")
    found = keep(str(tmp_path / "file"), "mine", str(tmp_path / "kept"))
    assert found["kept"]["size"] < 4 * (3 + 3 + 1000) + 500
    assert torch.equal(load_file(tmp_path / "kept")["c"], whole.view(10, 100).T)
