"""`tcnn init`: what it writes and prints, and options that have no effect."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open

from tcnn.analysis.reading.info import info
from tcnn.errors import RequestError
from tcnn.vit.initialise import initialise_file

VIT = "test_vit"


def test_a_directory_that_tcnn_and_timm_build(tcnn: Any, tmp_path: Path) -> None:
    result = tcnn("init", VIT, "vit", "--size", 32, "--patch-size", 8, "--num-classes", 3, "--seed", 1)
    assert result.code == 0, result
    *layers, made, wrote = result.out.splitlines()
    assert len(layers) == 6 and all("hit 100.0%" in line for line in layers)
    assert (made, wrote) == (f"{VIT}: impulse, 4×4 patches, positions fourier", "wrote vit")
    assert timm.create_model(f"local-dir:{tmp_path / 'vit'}", pretrained=True).patch_embed.grid_size == (4, 4)
    assert "exists already" in tcnn("init", VIT, "vit", "--size", 32, "--patch-size", 8).error(2)


def test_as_json(tcnn: Any) -> None:
    found = tcnn(
        "init", "test_vit", "a.safetensors", "--init", "mimetic", "--size", 32, "--patch-size", 8, "--json"
    ).json
    assert (found["model"], found["initialisation"], found["grid"], found["layers"]) == (
        "test_vit",
        "mimetic",
        [4, 4],
        [],
    )


@pytest.mark.parametrize("model", [pytest.param("vit_tiny_patch16_224", marks=pytest.mark.slow), "convit_tiny"])
def test_pixels_that_no_patch_holds(tcnn: Any, model: str) -> None:
    sizes = ("--init", "default", "--size", 33, "--patch-size", 4)
    note = "patches of 4×4 pixels do not fill 33×33: the model sees 32×32 of them; choose a size that is a multiple"
    assert f"note: {note}" in tcnn("init", model, "a.safetensors", *sizes).out.splitlines()
    assert tcnn("init", model, "b.safetensors", *sizes, "--json").json["notes"] == [note]


def test_patches_that_take_any_size_that_they_fill(tcnn: Any) -> None:
    said = tcnn("init", VIT, "a.safetensors", "--size", 33, "--patch-size", 4).error(2)
    assert "img_size: patches of 4×4 pixels do not fill 33×33, which this model asks for" in said


def test_what_only_impulse_has(tcnn: Any, tmp_path: Path) -> None:
    for option, value in (("--window", 5), ("--peak", 0.4)):
        said = tcnn("init", VIT, "a.safetensors", "--init", "mimetic", option, value).error(2)
        assert said == f"{option}: only --init impulse has offsets, and --init mimetic was asked for"
    assert "expected a timm vision transformer" in tcnn("init", "resnet18", "a.safetensors").error(2)
    assert list(tmp_path.iterdir()) == []


def test_files_are_timms_own(tmp_path: Path) -> None:
    """A file as checkpoint_path, a directory as local-dir: the same network, and it says how it began."""
    arguments: dict[str, object] = {"img_size": 64, "num_classes": 3, "depth": 2}
    file, folder = tmp_path / "vit.safetensors", tmp_path / "vit"
    report = initialise_file("vit_tiny_patch16_224", file, model_args=arguments, seed=5)
    initialise_file("vit_tiny_patch16_224", folder, model_args=arguments, seed=5)
    one = timm.create_model("vit_tiny_patch16_224", **arguments, checkpoint_path=str(file)).eval()
    two = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert two.patch_embed.grid_size == (4, 4)
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(one(x), two(x))
    with safe_open(file, "pt") as opened:
        assert json.loads(opened.metadata()["tcnn_init"]) == json.loads(report.model_dump_json())
    with pytest.raises(RequestError, match="exists already"):
        initialise_file("vit_tiny_patch16_224", file)


def test_info_tells_what_was_built_and_not_what_is_published(tmp_path: Path) -> None:
    """Random weights have no tag and no licence; size and parameters are the file's."""
    initialise_file("vit_tiny_patch16_224", tmp_path / "vit", "mimetic", model_args={"img_size": 64, "depth": 2})
    model = timm.create_model(f"local-dir:{tmp_path / 'vit'}", pretrained=True)
    found = info(str(tmp_path / "vit"))
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (found.input_size, found.license, found.flops) == ((3, 64, 64), None, None)
    assert not model.pretrained_cfg.get("tag")
