"""What is truncated, altered, foreign or of another architecture is refused in one line."""

import json
import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from safetensors_parts import parts, rewrite, tensor
from torch import nn

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.errors import CheckpointError

Lively = Callable[..., nn.Module]


def assert_refused(path: Path, words: str = "") -> None:
    with pytest.raises(CheckpointError) as caught:
        tcnn.load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


class TestDamage:
    @pytest.mark.parametrize("share", [0, 4, 8, 9, 0.001, 0.01, 0.3, 0.9, -1])
    def test_a_truncated_file_is_refused(self, written: Path, tmp_path: Path, share: float) -> None:
        raw = written.read_bytes()
        path = tmp_path / "cut.safetensors"
        path.write_bytes(raw[: int(share * len(raw)) if 0 < share < 1 else int(share)])
        assert_refused(path, "not a whole safetensors file")

    def test_a_longer_file_is_refused(self, written: Path, tmp_path: Path) -> None:
        path = tmp_path / "long.safetensors"
        path.write_bytes(written.read_bytes() + b"\0")
        assert_refused(path, "not a whole safetensors file")

    @pytest.mark.parametrize("part", ["length", "header", "tensors"])
    def test_a_single_flipped_bit_is_noticed(self, written: Path, tmp_path: Path, part: str) -> None:
        raw = bytearray(written.read_bytes())
        end = 8 + int.from_bytes(raw[:8], "little")
        where = {"length": range(8), "header": range(8, end), "tensors": range(end, len(raw))}[part]
        draw = random.Random(part)
        path = tmp_path / "flipped.safetensors"
        for _ in range(20):
            byte, bit = draw.choice(where), draw.randrange(8)
            raw[byte] ^= 1 << bit
            path.write_bytes(raw)
            try:
                checkpoint.read(path)
            except CheckpointError as error:
                assert "\n" not in str(error)
            else:
                pytest.fail(f"bit {bit} of byte {byte} was flipped and nobody noticed")
            raw[byte] ^= 1 << bit
        path.write_bytes(raw)
        checkpoint.read(path)

    def test_changed_metadata_is_noticed(self, written: Path, tmp_path: Path) -> None:
        header, data = parts(written)
        path = rewrite(tmp_path / "m.safetensors", header, data)
        checkpoint.read(path)  # written by other means, the same content is accepted
        conversion = json.loads(header["__metadata__"]["conversion"])
        conversion["config"]["temperature"] = 1.0
        header["__metadata__"]["conversion"] = json.dumps(conversion)
        digest = header["__metadata__"].pop("digest")
        assert_refused(rewrite(path, header, data), "expected none…")
        header["__metadata__"]["digest"] = digest
        assert_refused(rewrite(path, header, data), f"expected {digest[:19]}…")

    def test_swapped_and_relabelled_tensors_are_noticed(self, written: Path, tmp_path: Path) -> None:
        header, data = parts(written)
        path = tmp_path / "m.safetensors"
        a, b = "layer4.0.conv1.query", "layer4.0.conv1.key"
        assert_refused(rewrite(path, {**header, a: header[b], b: header[a]}, data), "altered since it was written")
        half = {**header[a], "dtype": "I32"}
        assert_refused(rewrite(path, {**header, a: half}, data), "altered since it was written")

    def test_what_is_no_checkpoint_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        assert_refused(path, "expected a tcnn checkpoint, found nothing")
        named = Path("hf-hub:my-team/net")
        assert_refused(
            named, 'is opened by timm.create_model("hf-hub:my-team/net", pretrained=True), with tcnn imported'
        )
        for raw in (b"", b"\x80\x04pickle", (2**62).to_bytes(8, "little") + b"{}", b"\xff" * 64):
            path.write_bytes(raw)
            assert_refused(path, "not a whole safetensors file")
        for header in (
            {"a": tensor(0, 8), "b": tensor(4, 12)},
            {"a": tensor(0, 8), "b": tensor(12, 20)},
            {"a": tensor(0, 4000)},
            {"__metadata__": {"tcnn_version": 5}},
        ):
            assert_refused(rewrite(path, header, bytes(12)), "not a whole safetensors file")
        (tmp_path / "empty").mkdir()
        assert_refused(tmp_path / "empty", "found no model.safetensors")

    def test_a_foreign_file_is_told_how_to_become_ours(self, lively: Lively, tmp_path: Path) -> None:
        save_file(lively().state_dict(), tmp_path / "m.safetensors", {"format": "pt"})
        assert_refused(tmp_path / "m.safetensors", "not written by tcnn; convert its model first: tcnn convert")

    def test_a_resume_point_is_not_called_foreign(self, lively: Lively, tmp_path: Path) -> None:
        written = {"tcnn_version": "0.2.0", "position": "{}", "scalars": "{}"}
        save_file(lively().state_dict(), tmp_path / "m.safetensors", written)
        assert_refused(tmp_path / "m.safetensors", "a resume point of a run, not a model; name the run's directory")


SAID = {
    "missing": 'Missing key(s) in state_dict: "',
    "extra": 'Unexpected key(s) in state_dict: "',
    "shape": "size mismatch for ",
}
"""The second line of PyTorch's error, whose first names a class alone."""


class TestMisfits:
    """The digest is right, the content is not what the architecture needs."""

    @pytest.mark.parametrize("other", ["test_efficientnet", "resnet10t"])
    def test_another_architecture_is_refused(self, written: Path, other: str) -> None:
        with pytest.raises(CheckpointError, match="does not fit") as caught:
            tcnn.load(written, source=timm.create_model(other))
        assert str(written) in str(caught.value)

    @pytest.mark.parametrize("change", SAID)
    def test_other_tensors_are_refused(self, converted: nn.Module, tmp_path: Path, change: str) -> None:
        tensors, metadata = checkpoint.contents(converted)
        name = "layer4.0.conv2.proj"
        if change == "missing":
            del tensors[name]
        elif change == "extra":
            tensors["layer4.0.conv2.weight"] = torch.zeros(1)
        else:
            tensors[name] = tensors[name][:, :-1].contiguous()
        metadata["digest"] = checkpoint.digest(tensors, metadata)
        save_file(tensors, tmp_path / "m.safetensors", metadata)
        assert_refused(tmp_path / "m.safetensors", f"does not fit test_resnet.r160_in1k: {SAID[change]}layer4.0.conv2.")

    def test_records_of_another_version_are_refused(self, converted: nn.Module, tmp_path: Path) -> None:
        tensors, metadata = checkpoint.contents(converted)
        metadata |= {"tcnn_version": "99.0", "conversion": '{"layers": "of a later format"}'}
        metadata["digest"] = checkpoint.digest(tensors, metadata)
        save_file(tensors, tmp_path / "m.safetensors", metadata)
        assert_refused(tmp_path / "m.safetensors", "written by tcnn 99.0, this is")


@pytest.mark.parametrize(
    "arguments",
    [{"checkpoint_path": "weights.pth"}, {"pretrained_cfg": {"file": "weights.pth"}}, {"block_args": [{"x_fn": "f"}]}],
)
def test_a_file_cannot_have_others_opened(written: Path, tmp_path: Path, arguments: dict[str, object]) -> None:
    """A checkpoint that names another file could have that one unpickled; its digest is right, so only this refuses."""
    found = checkpoint.read(written)
    report = found.conversion.model_copy(update={"model_args": {**found.conversion.model_args, **arguments}})
    metadata = {**found.metadata, "conversion": report.model_dump_json()}
    metadata["digest"] = checkpoint.digest(found.tensors, metadata)
    path = tmp_path / "reaching.safetensors"
    save_file(found.tensors, path, metadata)
    assert_refused(path, f"the model argument '{next(iter(arguments))}' is not allowed in a file")


def test_what_a_layer_refuses_in_one_line_is_told(tmp_path: Path) -> None:
    """PyTorch's own errors have more; its quantised layers raise a KeyError of one."""

    class Quantised(nn.Linear):
        def _load_from_state_dict(self, *arguments: Any) -> None:
            raise KeyError("head.scale")

    source = nn.Sequential(OrderedDict(layer=nn.Conv2d(3, 4, 3, padding=1), head=nn.Linear(16, 1)))
    tcnn.save(tcnn.convert(source, target="layer", input_size=(16, 16)).model, tmp_path / "m.safetensors")
    source.head = Quantised(16, 1)
    with pytest.raises(CheckpointError, match=r"m\.safetensors: does not fit Sequential: 'head\.scale'$"):
        tcnn.load(tmp_path / "m.safetensors", source=source)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"stride": 1}, r"layer2: expected stride \(2, 2\), as it was converted, found \(1, 1\)"),
        ({"dilation": 2, "padding": 2}, r"layer2: expected dilation \(1, 1\), as it was converted, found \(2, 2\)"),
        ({"padding": 0}, r"layer2: expected padding \(1, 1, 1, 1\), as it was converted, found \(0, 0, 0, 0\)"),
        ({"padding_mode": "reflect"}, r"layer2: expected padding_mode zeros, as it was converted, found reflect"),
    ],
)
def test_a_source_of_another_geometry_is_refused(argument: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Its weights have the same shapes, so nothing else would tell."""

    def source(**own: Any) -> nn.Module:
        last = nn.Conv2d(4, 4, 3, **{"stride": 2, "padding": 1} | own)
        return nn.Sequential(OrderedDict(layer1=nn.Conv2d(3, 4, 3, padding=1), layer2=last))

    tcnn.save(tcnn.convert(source(), target="layer2", input_size=(16, 16)).model, tmp_path / "m.safetensors")
    tcnn.load(tmp_path / "m.safetensors", source=source())
    with pytest.raises(CheckpointError, match=f"m.safetensors: does not fit Sequential: {said}"):
        tcnn.load(tmp_path / "m.safetensors", source=source(**argument))
