"""`tcnn verify`: is the model in a file still the function it was made from? With `--explain`, where it departs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import nn

import tcnn as library
from tcnn.checkpoints import checkpoint
from tcnn.workflows.pipeline import convert_to_file

Run = Callable[..., Any]
Lively = Callable[..., nn.Module]


@pytest.fixture
def converted(tcnn: Run, kept: Callable[..., Path], weights: Path) -> Path:
    """`out.safetensors`, made from `weights`."""

    def convert() -> None:
        assert tcnn("convert", "test_resnet", "out.safetensors", "--weights", weights, "--num-classes", 10).code == 0

    return kept(Path("out.safetensors"), convert)


def pictures(directory: Path, mode: str = "RGB") -> Path:
    """Four small pictures of odd sizes, PNG and JPEG, one of them in a folder below."""
    (directory / "cats").mkdir(parents=True)
    draw = torch.Generator().manual_seed(0)
    for number, name in enumerate(("a.png", "b.jpg", "c.jpeg", "cats/d.png")):
        size = (90 + number, 70, 3)
        pixels = torch.randint(0, 256, size, generator=draw, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).convert(mode).save(directory / name)
    (directory / "notes.txt").write_text("no picture")
    return directory


def spoil(path: Path) -> None:
    """One weight of one layer is changed, and the file written as if that were right."""
    content = checkpoint.read(path)
    model = library.load(path)
    with torch.no_grad():
        model.layer4[0].conv2.proj[3, 7] += 0.5
    sections = {name: content.section(name) for name in ("source", "weights")}
    library.save(model, path, content.verification, sections, force=True)


def test_a_fresh_file_passes(tcnn: Run, converted: Path, weights: Path) -> None:
    done = tcnn("verify", converted, "--weights", weights)
    assert (done.code, done.err) == (0, "")
    assert "equal in float32" in done.out
    assert "equal in float64" in done.out
    assert "equal as run in float32" in done.out
    assert "drift at τ = 1" in done.out
    assert "noise 2×3×96×96" in done.out


def test_one_changed_weight_is_found_and_its_layer_named(tcnn: Run, converted: Path, weights: Path) -> None:
    spoil(converted)
    done = tcnn("verify", converted, "--weights", weights)
    assert done.code == 3
    assert "NOT EQUAL in float32" in done.out
    assert done.err.startswith("error: out.safetensors: equivalence error")
    assert "worst layer layer4.0.conv2" in done.err
    assert done.err.count("\n") == 1
    done = tcnn("verify", converted, "--weights", weights, "--json")
    assert (done.code, done.err) == (3, "")
    assert not done.json["passed"]


def test_tolerance(tcnn: Run, converted: Path, weights: Path) -> None:
    for wrong in ("0", "-1", "nan", "inf"):
        message = tcnn("verify", converted, "--weights", weights, "--tolerance", wrong).error(2)
        assert message == f"--tolerance: expected a relative error above 0, such as 1e-5, found {wrong}"
    done = tcnn("verify", converted, "--weights", weights, "--tolerance", "1e-30")
    assert done.code == 3
    assert "expected at most 1e-30" in done.err


def test_random_weights_are_drawn_again_from_the_recorded_seed(tcnn: Run) -> None:
    assert tcnn("convert", "test_resnet", "out.safetensors", "--no-pretrained", "--seed", 11).code == 0
    torch.rand(7)  # the global generator stands elsewhere now
    done = tcnn("verify", "out.safetensors", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["statistics_randomised"]
    source = checkpoint.read("out.safetensors").section("source")
    assert (source["name"], source["weights"], source["seed"]) == ("test_resnet", "random", 11)
    assert source["digest"].startswith("sha256:")


@pytest.mark.slow
def test_a_directory_is_verified_too(tcnn: Run, weights: Path) -> None:
    assert tcnn("convert", "test_resnet", "out", "--weights", weights, "--num-classes", 10).code == 0
    assert tcnn("verify", "out", "--weights", weights).code == 0


class TestAgainst:
    @pytest.mark.slow  # files of other places are compared in test_cli_convert_files.py
    def test_the_same_weights_elsewhere(self, tcnn: Run, converted: Path, local_source: str) -> None:
        assert tcnn("verify", converted, "--against", local_source).code == 0

    @pytest.mark.slow
    def test_other_weights(self, tcnn: Run, converted: Path, lively: Lively, tmp_path: Path) -> None:
        save_for_hf(lively(seed=1, num_classes=10), tmp_path / "other", safe_serialization=True)
        done = tcnn("verify", converted, "--against", "local-dir:other")
        assert done.code == 3
        assert "NOT EQUAL" in done.out

    @pytest.mark.parametrize("name", ["test_efficientnet", pytest.param("resnet10t", marks=pytest.mark.slow)])
    def test_another_architecture(self, tcnn: Run, converted: Path, lively: Lively, tmp_path: Path, name: str) -> None:
        save_for_hf(lively(name), tmp_path / "other", safe_serialization=True)
        error = tcnn("verify", converted, "--against", "local-dir:other").error(2)
        assert "layer4.0.conv1" in error or "expected an input of shape" in error

    @pytest.mark.slow
    def test_another_number_of_classes(self, tcnn: Run, converted: Path, lively: Lively, tmp_path: Path) -> None:
        save_for_hf(lively(num_classes=3), tmp_path / "other", safe_serialization=True)
        assert tcnn("verify", converted, "--against", "local-dir:other").code == 3

    def test_an_unknown_model(self, tcnn: Run, converted: Path) -> None:
        assert "did you mean" in tcnn("verify", converted, "--against", "test_resnett").error(2)

    def test_a_model_without_weights(self, tcnn: Run, converted: Path) -> None:
        assert "no pretrained weights" in tcnn("verify", converted, "--against", "test_mambaout").error(2)

    def test_a_model_that_cannot_be_downloaded(self, tcnn: Run, converted: Path, no_network: None) -> None:
        assert "could not be downloaded" in tcnn("verify", converted, "--against", "test_resnet").error(4)


class TestImages:
    def test_pictures_take_the_place_of_noise_and_json_is_the_report(
        self, tcnn: Run, converted: Path, weights: Path, tmp_path: Path
    ) -> None:
        directory = pictures(tmp_path / "pictures")
        done = tcnn("verify", converted, "--weights", weights, "--images", directory, "--json")
        assert (done.code, done.err) == (0, "")
        report = done.json
        assert report["images"] == "images 4×3×96×96"
        assert report["passed"]
        assert [layer["name"] for layer in report["passes"][0]["layers"]] == ["layer4.0.conv1", "layer4.0.conv2"]
        assert report["as_run"]["passed"] and report["as_run"]["backend"] == "auto"
        assert report["temperatures"] == dict.fromkeys(("layer4.0.conv1", "layer4.0.conv2"), 0.021739130839705467)

    @pytest.mark.slow
    def test_grey_pictures_for_a_grey_model(self, tcnn: Run, lively: Lively, tmp_path: Path) -> None:
        save_for_hf(lively(in_chans=1), tmp_path / "grey", safe_serialization=True)
        assert tcnn("convert", "local-dir:grey", "out.safetensors").code == 0
        done = tcnn("verify", "out.safetensors", "--images", pictures(tmp_path / "pictures", "L"), "--json")
        assert done.code == 0
        assert done.json["images"] == "images 4×1×96×96"

    @pytest.mark.parametrize(
        "kind", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("file", "empty")), "missing", "broken"]
    )
    def test_what_is_no_directory_of_pictures(
        self, tcnn: Run, converted: Path, weights: Path, tmp_path: Path, kind: str
    ) -> None:
        directory = tmp_path / "pictures"
        if kind == "file":
            directory.write_text("")
        elif kind != "missing":
            directory.mkdir()
        if kind == "broken":
            (directory / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nno picture")
        words = {"missing": "found nothing", "file": "found a file", "empty": "found none", "broken": "a.png: not a"}
        error = tcnn("verify", converted, "--weights", weights, "--images", directory).error(2)
        assert words[kind] in error


class TestTheSource:
    def test_that_changed_is_refused(self, tcnn: Run, local_source: str, lively: Lively, tmp_path: Path) -> None:
        assert tcnn("convert", local_source, "out.safetensors").code == 0
        assert tcnn("verify", "out.safetensors").code == 0, "it is found again"
        save_for_hf(lively(seed=1, num_classes=10), tmp_path / "source", safe_serialization=True)
        error = tcnn("verify", "out.safetensors").error(2)
        assert "weights found for" in error
        assert "--weights or --against" in error

    def test_that_was_a_file_must_be_given_again(self, tcnn: Run, converted: Path) -> None:
        assert "made from a weights file; give it again with --weights FILE" in tcnn("verify", converted).error(2)

    def test_that_is_another_file_is_refused(self, tcnn: Run, converted: Path, lively: Lively) -> None:
        save_file(lively(seed=1, num_classes=10).state_dict(), "other.safetensors")
        assert "are not those it was converted from" in tcnn(
            "verify", converted, "--weights", "other.safetensors"
        ).error(2)

    def test_that_no_file_saved_from_python_knows(self, tcnn: Run, lively: Lively) -> None:
        source = lively(num_classes=5, in_chans=1)
        library.save(library.convert(source).model, "saved.safetensors")
        error = tcnn("verify", "saved.safetensors").error(2)
        assert "saved from Python" in error
        assert "--against MODEL" in error
        assert "--weights FILE" in error
        save_file(source.state_dict(), "source.safetensors")
        assert tcnn("verify", "saved.safetensors", "--weights", "source.safetensors").code == 0

    def test_that_is_gone_is_named(self, tcnn: Run, converted: Path, weights: Path) -> None:
        weights.unlink()
        assert "found nothing" in tcnn("verify", converted, "--weights", weights).error(2)


@pytest.mark.parametrize("kind", ["missing", "directory", "text", "foreign", "cut"])
def test_what_is_no_checkpoint_is_refused(tcnn: Run, weights: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "in.safetensors"
    if kind == "directory":
        path.mkdir()
    elif kind == "text":
        path.write_text("hello")
    elif kind == "foreign":
        path.write_bytes(weights.read_bytes())
    elif kind == "cut":
        path.write_bytes(weights.read_bytes()[:-7])
    words = {"missing": "found nothing", "directory": "no model.safetensors", "foreign": "not written by tcnn"}
    assert words.get(kind, "not a whole safetensors file") in tcnn("verify", path).error(2)
    assert tcnn("verify", path, "--json").json["error"]["code"] == "CheckpointError"


def test_layers_that_hardly_reach_the_logits_are_said_to(tcnn: Run, lively: Lively) -> None:
    """A last scale near zero, as of a barely trained CNN, hides any error from the logits."""
    source = lively(num_classes=10)
    with torch.no_grad():
        source.layer4[0].bn2.weight.fill_(1e-6)
    save_file(source.state_dict(), "w.safetensors")
    for arguments, said in ((("--weights", "w.safetensors"), True), (("--no-pretrained",), False)):
        done = tcnn("convert", "test_resnet", "o.safetensors", *arguments, "--num-classes", 10, "--force")
        assert done.code == 0, done
        assert ("the converted layers hardly reach the logits" in done.out) == said


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converted") / "t.safetensors"
    convert_to_file("test_resnet", path, pretrained=False)
    return path


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two networks of one architecture that differ in their stem."""
    root = tmp_path_factory.mktemp("networks")
    torch.manual_seed(1)
    model = timm.create_model("test_resnet")
    save_for_hf(model, str(root / "one"), safe_serialization=True)
    with torch.no_grad():
        model.conv1[0].weight[0] += 0.1
    save_for_hf(model, str(root / "two"), safe_serialization=True)
    return root / "one", root / "two"


def test_a_page_of_an_equal_model(tcnn: Run, file: Path) -> None:
    Path("why.html").write_text("another")
    assert "exists" in tcnn("verify", file, "--explain", "why.html").error(2)
    found = tcnn("verify", file, "--explain", "why.html", "--force")
    assert found.code == 0, found
    assert found.out.endswith("explained in why.html\n")
    assert "The models compute the same function." in Path("why.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_page_of_another_model(tcnn: Run, file: Path, directories: tuple[Path, Path]) -> None:
    found = tcnn("verify", file, "--against", f"local-dir:{directories[0]}", "--explain", "why.html")
    assert found.code == 3
    assert "conv1.0" in Path("why.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_two_models_of_which_none_was_converted(tcnn: Run, directories: tuple[Path, Path]) -> None:
    one, two = (f"local-dir:{directory}" for directory in directories)
    same = tcnn("verify", one, "--against", one)
    assert same.code == 0, same
    assert same.out.startswith("The models compute the same function.")
    other = tcnn("verify", two, "--against", one, "--json")
    assert other.code == 3
    assert other.json["passes"][1]["first"] == "conv1.0"
    assert "conv1.0 (Conv2d → Conv2d) is the first to depart" in tcnn("verify", two, "--against", one).err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("FILE", "--force"), "--force: there is no --explain page to replace"),
        (("test_resnet",), "test_resnet"),
        (("FILE", "--explain", "no/such/folder/why.html"), "no/such/folder"),
    ],
)
def test_a_wrong_request_is_one_line(tcnn: Run, file: Path, arguments: tuple[str, ...], expected: str) -> None:
    given = [str(file) if argument == "FILE" else argument for argument in arguments]
    assert expected in tcnn("verify", *given).error(2)
