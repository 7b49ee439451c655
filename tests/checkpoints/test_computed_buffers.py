"""Buffers that are in no state dict: computed when the architecture is built, in the dtype that they were saved in."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import PlainNet
from torch import Tensor, nn

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.errors import CheckpointError

Lively = Callable[..., nn.Module]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


class Tabled(PlainNet):
    """A network with a table in float32, and one in float64, before its convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(0.5, 1.5, 16), persistent=False)
        self.register_buffer("fine", torch.linspace(0.5, 1.5, 16, dtype=torch.float64), persistent=False)
        self.register_buffer("places", torch.arange(16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scale: Any = self.table * self.fine.to(self.table)
        return super().forward(x * scale[self.places])


def tables(model: nn.Module) -> dict[str, torch.dtype]:
    return {name: buffer.dtype for name, buffer in model.named_buffers() if name in ("table", "fine", "places")}


def image(dtype: torch.dtype, size: int = 16) -> Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0)).to(dtype)


def as_before(model: nn.Module, path: Path, section: str | None = None) -> Path:
    """The file of a model without the record of its buffers, as older releases wrote it, or with another."""
    tensors, metadata = checkpoint.contents(model)
    recorded = json.loads(metadata.pop("buffer_dtypes"))
    assert recorded.keys() <= {"table", "fine"} or all(name.endswith("filt") for name in recorded)
    metadata |= {} if section is None else {"buffer_dtypes": section}
    metadata["digest"] = checkpoint.digest(tensors, metadata)
    return checkpoint.write((tensors, metadata), path / "m.safetensors")


@pytest.fixture
def default_of_double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("older", [False, True], ids=["recorded", "older file"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_timm_filters_have_the_dtype_of_the_weights(
    dtype: torch.dtype, older: bool, lively: Lively, tmp_path: Path
) -> None:
    """They were in float32, which no convolution takes beside an image of another dtype."""
    small: Any = {"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16], "num_classes": 3}
    model = tcnn.convert(lively("resnetblur18", **small).to(dtype), input_size=32).model
    file = as_before(model, tmp_path) if older else tcnn.save(model, tmp_path / "m.safetensors")
    loaded = tcnn.load(file)
    assert {one.dtype for one in (*loaded.parameters(), *loaded.buffers()) if one.is_floating_point()} == {dtype}
    x = image(dtype, 32)
    assert torch.equal(loaded(x), model(x))


@pytest.mark.usefixtures("default_of_double")
def test_the_default_dtype_of_whoever_loads_has_no_effect(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    model = tcnn.convert(Tabled().eval(), input_size=16).model
    file, older = tcnn.save(model, tmp_path / "n.safetensors"), as_before(model, tmp_path)
    torch.set_default_dtype(torch.float64)
    for written in (file, older):
        loaded = tcnn.load(written, source=Tabled())
        assert loaded(image(torch.float32)).dtype == torch.float32
        assert loaded.get_buffer("table").dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_buffer_has_its_own_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    model: Any = tcnn.convert(Tabled().eval().to(dtype), input_size=16).model
    model.fine = model.fine.float()
    loaded = tcnn.load(tcnn.save(model, tmp_path / "m.safetensors"), source=Tabled())
    assert tables(loaded) == tables(model) == {"table": dtype, "fine": torch.float32, "places": torch.int64}


def test_in_older_files_a_buffer_of_another_dtype_than_the_weights_stays(tmp_path: Path) -> None:
    file = as_before(tcnn.convert(Tabled().eval().bfloat16(), input_size=16).model, tmp_path)
    found = tables(tcnn.load(file, source=Tabled()))
    assert found == {"table": torch.bfloat16, "fine": torch.float64, "places": torch.int64}


@pytest.mark.parametrize("section", ["[]", "{", '{"table": "load"}', '{"table": "int8"}', '{"table": 3}'])
def test_dtypes_that_nobody_wrote_so_are_refused(section: str, tmp_path: Path) -> None:
    file = as_before(tcnn.convert(Tabled().eval(), input_size=16).model, tmp_path, section)
    with pytest.raises(CheckpointError, match=r"m\.safetensors: what it says of its buffers is damaged"):
        tcnn.load(file, source=Tabled())
