"""`tcnn convert`: a verified file, or a directory, from which the very same model comes back."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import tcnn as library
from tcnn.checkpoints import checkpoint
from tcnn.layers import GPSA2d
from tcnn.workflows import pipeline

Run = Callable[..., Any]
Lively = Callable[..., nn.Module]
AssertSame = Callable[[nn.Module, nn.Module], None]


def test_writes_a_file_from_which_the_model_comes_back(
    tcnn: Run, lively: Lively, assert_same_state: AssertSame, listing: Callable[[], list[str]]
) -> None:
    """From weights as PyTorch writes them."""
    torch.save(lively(num_classes=10).state_dict(), "weights.pth")
    done = tcnn("convert", "test_resnet", "out.safetensors", "--weights", "weights.pth", "--num-classes", 10)
    assert (done.code, done.err) == (0, "")
    assert "layer4.0.conv1" in done.out
    assert "equal in float32" in done.out
    assert "equal in float64" in done.out
    assert "equal as run in float32" in done.out
    assert "drift at τ = 1" in done.out
    assert "wrote out.safetensors" in done.out
    assert listing() == ["out.safetensors", "weights.pth"]

    expected = library.convert(lively(num_classes=10)).model
    loaded = library.load("out.safetensors")
    assert_same_state(loaded, expected)
    image = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        assert torch.equal(loaded(image), expected(image))
    assert library.verify(lively(num_classes=10), loaded).passed


def test_json_is_one_object_that_tells_the_truth(tcnn: Run, weights: Path) -> None:
    """Of a file that takes the place of another, once it is told to."""
    Path("out.safetensors").write_text("old")
    arguments = ("convert", "test_resnet", "out.safetensors", "--weights", weights, "--num-classes", 10)
    assert "exists already; replace it with --force" in tcnn(*arguments).error(2)
    assert Path("out.safetensors").read_text() == "old"
    done = tcnn(*arguments, "--force", "--json")
    assert (done.code, done.err) == (0, "")
    result = done.json
    raw = Path("out.safetensors").read_bytes()
    assert result["model"] == "test_resnet"
    assert result["output"] == "out.safetensors"
    assert result["bytes"] == len(raw)
    assert result["sha256"] == hashlib.sha256(raw).hexdigest()
    assert [layer["name"] for layer in result["conversion"]["layers"]] == ["layer4.0.conv1", "layer4.0.conv2"]
    model = library.load("out.safetensors")
    assert result["conversion"]["parameters_after"] == sum(p.numel() for p in model.parameters())
    verification = result["verification"]
    assert verification["passed"]
    assert [(p["dtype"], p["tolerance"]) for p in verification["passes"]] == [("float32", 1e-5), ("float64", 1e-10)]
    assert 0 < verification["passes"][1]["logits"]["relative"] < verification["passes"][0]["logits"]["relative"] < 1e-5
    assert verification["drift"]["logits"]["relative"] > 0.01
    assert not verification["statistics_randomised"]
    content = checkpoint.read("out.safetensors")
    assert content.verification is not None
    assert content.verification.model_dump(mode="json") == verification


def test_a_directory_gets_timms_layout_and_keeps_foreign_files(
    tcnn: Run, weights: Path, lively: Lively, assert_same_state: AssertSame, listing: Callable[[], list[str]]
) -> None:
    Path("out").mkdir()
    Path("out/notes.txt").write_text("mine")
    arguments = ("convert", "test_resnet", "out", "--weights", weights, "--num-classes", 10)
    assert "exists already; replace it with --force" in tcnn(*arguments).error(2)
    done = tcnn(*arguments, "--force", "--json")
    assert done.code == 0
    assert done.json["sha256"] == hashlib.sha256(Path("out/model.safetensors").read_bytes()).hexdigest()
    weights.unlink()
    assert listing() == ["out", "out/README.md", "out/config.json", "out/model.safetensors", "out/notes.txt"]
    assert Path("out/notes.txt").read_text() == "mine"
    assert json.loads(Path("out/config.json").read_text())["architecture"] == "t_test_resnet"
    expected = library.convert(lively(num_classes=10)).model
    assert_same_state(timm.create_model("local-dir:out", pretrained=True), expected)
    assert_same_state(library.load("out"), expected)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["pth", "nested.pth"])
def test_pytorch_weights_are_the_same_weights(
    tcnn: Run, lively: Lively, assert_same_state: AssertSame, suffix: str
) -> None:
    state = lively(num_classes=10).state_dict()
    torch.save({"state_dict": state, "epoch": 3} if "nested" in suffix else state, suffix)
    assert tcnn("convert", "test_resnet", "out.safetensors", "--weights", suffix, "--num-classes", 10).code == 0
    assert_same_state(library.load("out.safetensors"), library.convert(lively(num_classes=10)).model)


@pytest.mark.slow  # tests/cli/test_cli_verify.py has one that changes
def test_a_local_directory_is_a_source(
    tcnn: Run, local_source: str, lively: Lively, assert_same_state: AssertSame
) -> None:
    assert tcnn("convert", local_source, "out.safetensors").code == 0
    assert_same_state(library.load("out.safetensors"), library.convert(lively(num_classes=10)).model)
    assert tcnn("verify", "out.safetensors").code == 0


@pytest.mark.slow
def test_a_weights_file_takes_the_place_of_a_local_directorys(
    tcnn: Run, local_source: str, lively: Lively, assert_same_state: AssertSame
) -> None:
    save_file(lively(seed=1, num_classes=10).state_dict(), "other.safetensors")
    done = tcnn("convert", local_source, "out.safetensors", "--weights", "other.safetensors")
    assert (done.code, done.err) == (0, "")
    assert_same_state(library.load("out.safetensors"), library.convert(lively(seed=1, num_classes=10)).model)


@pytest.mark.slow
def test_the_current_directory_can_be_the_output(tcnn: Run, weights: Path) -> None:
    assert tcnn("convert", "test_resnet", ".", "--weights", weights, "--num-classes", 10, "--force").code == 0
    assert library.load(".").num_classes == 10
    assert weights.exists()


def test_each_option_reaches_the_conversion(tcnn: Run) -> None:
    """What they do then is in tests/conversion, and slow below."""
    options = ("--target", r"layer3\..*conv2", "--head-dim", 4, "--num-classes", 7, "--temperature", 0.5)
    shown = tcnn("convert", "test_resnet", "--dry-run", "--json", *options).json["conversion"]
    assert [layer["name"] for layer in shown["layers"]] == ["layer3.0.conv2"]
    assert (shown["config"]["head_dim"], shown["config"]["temperature"]) == (4, 0.5)
    assert shown["model_args"]["num_classes"] == 7
    shown = tcnn("convert", "test_resnet", "--dry-run", "--json", "--stage", 3).json["conversion"]
    assert shown["stage"] == "layer3"


class TestOptions:
    """Each on random weights, whose statistics are randomised for the comparison."""

    def converted(self, tcnn: Run, *options: object, name: str = "test_resnet") -> tuple[Any, nn.Module]:
        done = tcnn("convert", name, "out.safetensors", "--no-pretrained", "--json", *options)
        assert (done.code, done.err) == (0, "")
        assert done.json["verification"]["passed"]
        assert done.json["verification"]["statistics_randomised"]
        return done.json, library.load("out.safetensors")

    @pytest.mark.slow
    def test_stage(self, tcnn: Run) -> None:
        result, _ = self.converted(tcnn, "--stage", 3)
        assert result["conversion"]["stage"] == "layer3"
        assert all(layer["name"].startswith("layer3.") for layer in result["conversion"]["layers"])

    @pytest.mark.slow
    def test_target(self, tcnn: Run) -> None:
        result, model = self.converted(tcnn, "--target", r"layer4\..*conv2")
        assert [layer["name"] for layer in result["conversion"]["layers"]] == ["layer4.0.conv2"]
        assert isinstance(model.layer4[0].conv1, nn.Conv2d)
        assert isinstance(model.layer4[0].conv2, GPSA2d)

    @pytest.mark.slow
    def test_stride_remove(self, tcnn: Run) -> None:
        result, model = self.converted(tcnn, "--stride", "remove")
        assert {tuple(layer["stride"]) for layer in result["conversion"]["layers"]} == {(1, 1)}
        assert model.forward_features(torch.zeros(1, 3, 64, 64)).shape[-1] == 4
        assert tcnn("verify", "out.safetensors").code == 0

    @pytest.mark.slow
    def test_temperature_one_is_still_proven_at_the_hard_limit(self, tcnn: Run) -> None:
        result, model = self.converted(tcnn, "--temperature", 1)
        assert model.layer4[0].conv1.position_temperature == 1
        assert result["verification"]["temperature"] == pytest.approx(1 / 46)
        assert result["verification"]["drift"]["temperature"] == 1
        assert result["verification"]["drift"]["logits"]["relative"] > 0.01
        assert result["verification"]["written"] is None

    @pytest.mark.slow
    def test_another_temperature_states_its_own_drift(self, tcnn: Run) -> None:
        result, _ = self.converted(tcnn, "--temperature", 0.5)
        drift, written = result["verification"]["drift"], result["verification"]["written"]
        assert written["temperature"] == 0.5
        assert 0 < written["logits"]["relative"] < drift["logits"]["relative"]

    @pytest.mark.slow
    def test_head_dim(self, tcnn: Run) -> None:
        _, model = self.converted(tcnn, "--head-dim", 4)
        assert model.layer4[0].conv1.query.shape == (9 * 4, 192)

    @pytest.mark.slow
    def test_content(self, tcnn: Run) -> None:
        result, model = self.converted(tcnn, "--content", "pooled:2")
        assert result["conversion"]["config"]["content"] == "pooled:2"
        assert {layer["content"] for layer in result["conversion"]["layers"]} == {"pooled:2"}
        assert model.layer4[0].conv1.content == "pooled:2"
        shown = tcnn("convert", "test_resnet", "--dry-run", "--content", "window:900").out
        assert "content attention: window:900\n" in shown
        assert "note: content window:900 acts as global: the map is " in shown

    @pytest.mark.slow
    def test_num_classes(self, tcnn: Run) -> None:
        _, model = self.converted(tcnn, "--num-classes", 7)
        assert model.num_classes == 7
        _, model = self.converted(tcnn, "--num-classes", 0, "--force")
        assert isinstance(model.fc, nn.Identity)

    @pytest.mark.slow
    def test_seed_decides_every_random_number(self, tcnn: Run, assert_same_state: AssertSame) -> None:
        _, first = self.converted(tcnn, "--seed", 5)
        _, again = self.converted(tcnn, "--seed", 5, "--force")
        assert_same_state(again, first)
        _, other = self.converted(tcnn, "--seed", 6, "--force")
        assert not torch.equal(other.conv1[0].weight, first.conv1[0].weight)
        assert not torch.equal(other.layer4[0].conv1.query, first.layer4[0].conv1.query)

    @pytest.mark.slow
    def test_tolerance_is_what_the_errors_are_held_to(self, tcnn: Run, listing: Callable[[], list[str]]) -> None:
        error = tcnn("convert", "test_resnet", "out.safetensors", "--no-pretrained", "--tolerance", "1e-12").error(3)
        assert "equivalence error" in error
        assert "expected at most 1e-12" in error
        assert "worst layer layer4.0.conv" in error
        assert listing() == []
        result, _ = self.converted(tcnn, "--tolerance", "1e-3")
        assert result["verification"]["passes"][0]["tolerance"] == 1e-3

    @pytest.mark.slow
    def test_a_pretrained_tag_is_part_of_the_name(self, tcnn: Run) -> None:
        result, model = self.converted(tcnn, name="test_resnet.r160_in1k")
        assert result["conversion"]["base_model"] == "test_resnet.r160_in1k"
        assert model.pretrained_cfg["tag"] == "r160_in1k"
        assert tcnn("verify", "out.safetensors").code == 0


@pytest.mark.parametrize("name", ["test_resnet", "vit_tiny_patch16_224"])
def test_dry_run_needs_no_weights_and_writes_nothing(
    tcnn: Run, no_network: None, listing: Callable[[], list[str]], name: str
) -> None:
    done = tcnn("convert", name, "out.safetensors", "--dry-run", "--json")
    if name == "test_resnet":
        assert done.code == 0
        assert done.json["output"] is None
        assert done.json["verification"] is None
        assert done.json["conversion"]["parameters_after"] > done.json["conversion"]["parameters_before"]
        assert "layer4.0.conv1" in tcnn("convert", name, "--dry-run").out
    else:
        assert done.code == 2
        assert done.json["error"]["code"] == "NothingToConvertError"
    assert listing() == []


@pytest.mark.slow
def test_progress_names_every_step_it_announces(tmp_path: Path) -> None:
    steps: list[str] = []
    pipeline.convert_to_file("test_resnet", tmp_path / "a.safetensors", pretrained=False, progress=steps.append)
    assert len(steps) == pipeline.STEPS
    assert steps[0] == "building the source"
    assert steps[-2:] == ["verifying the written file", "done"]
    assert "verifying float64" in steps
