"""Models for others: `tcnn export`, what it writes and prints, and every way in which it refuses; `tcnn push`, a dry
run in words and as JSON, a hub that is asked, and what is refused.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import onnxruntime
import pytest
import tiny_runs
import torch
from hub_server import TOKEN, serving
from safetensors.torch import save_file

import tcnn as library
from tcnn.exporting import export as exporting
from tcnn.workflows.pipeline import convert_to_file

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ResNet that was converted and fine-tuned a little, to τ = 1; its residual branches, which began at zero,
    are made as large as long training would."""
    root = tmp_path_factory.mktemp("tuned")
    model = library.load(tiny_runs.run("test_resnet", tiny_runs.colours(root / "data"), root / "run").last)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(module.weight)
    return library.save(model, root / "tuned.safetensors")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., Any]) -> Path:
    """As it was converted: enough where nothing is exported."""
    return library.save(library.convert(lively()).model, tmp_path_factory.mktemp("converted") / "t.safetensors")


@pytest.mark.slow
def test_onnx_of_a_tuned_model(tcnn: Run, tuned: Path) -> None:
    done = tcnn("export", tuned, "a.onnx", "--size", "96x64", "--json")
    assert done.err == ""
    report = done.json
    assert [axis["name"] for axis in report["axes"] if axis["dynamic"]] == ["batch", "height", "width"]
    assert (report["format"], report["opset"], report["outputs"]) == ("onnx", 18, ["logits"])
    assert report["bytes"] == Path("a.onnx").stat().st_size
    session = onnxruntime.InferenceSession("a.onnx", providers=["CPUExecutionProvider"])
    (images,), (logits,) = session.get_inputs(), session.get_outputs()
    assert (images.name, images.shape) == ("images", ["batch", 3, "height", "width"])
    assert (logits.name, logits.shape) == ("logits", ["batch", 3])
    told = session.get_modelmeta().custom_metadata_map
    assert told["tcnn_version"] == library.__version__
    assert told["base_model"].startswith("test_resnet")
    assert json.loads(told["input_size"]) == [3, 96, 64]
    assert json.loads(told["label_names"]) == list(tiny_runs.COLOURS)
    assert len(json.loads(told["mean"])) == len(json.loads(told["std"])) == json.loads(told["num_classes"]) == 3
    model = library.load(tuned)
    for shape in ((1, 3, 65, 97), (4, 3, 64, 64)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        found = torch.from_numpy(session.run(None, {"images": x.numpy()})[0])
        with torch.no_grad():
            assert (found - model(x)).norm() < 1e-5 * model(x).norm()


@pytest.mark.parametrize("json_alone", [True, False])
def test_what_a_library_prints_is_no_result(
    tcnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, json_alone: bool
) -> None:
    """As onnxscript 0.6 says how many rules it has applied."""
    write = exporting.save_program

    def talkative(*given: Any, **options: Any) -> None:
        print("Applied 55 of general pattern rewrite rules.")
        write(*given, **options)

    monkeypatch.setattr(exporting, "save_program", talkative)
    library.save(library.convert(tiny_runs.seeded(tiny_runs.TwoConvs), input_size=(32, 32)).model, "t.safetensors")
    words = ("export", "t.safetensors", "t.pt2", "--module", "tiny_runs:TwoConvs", "--fixed")
    done = tcnn(*words, "--json") if json_alone else tcnn(*words)
    assert done.err == "Applied 55 of general pattern rewrite rules.\n"
    assert done.json["output"] == "t.pt2" if json_alone else done.out.startswith("takes batch")


@pytest.mark.slow
def test_a_torch_program(tcnn: Run, tuned: Path, listing: Callable[[], list[str]]) -> None:
    done = tcnn("export", tuned, "a.bin", "--format", "torch", "--size", 64, "--dynamic", "batch")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("takes batch from 1, height 64 only, width 64 only\n")
    assert "same on 2×3×64×64: relative error" in done.out
    assert "wrote a.bin (torch.export program, " in done.out
    with Path("a.bin").open("rb") as file:
        extra = {"metadata.json": ""}
        program = torch.export.load(file, extra_files=extra)
    assert json.loads(json.loads(extra["metadata.json"])["label_names"]) == list(tiny_runs.COLOURS)
    x = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), library.load(tuned)(x), rtol=1e-4, atol=1e-5)
    before = listing()
    assert "exists already" in tcnn("export", tuned, "a.bin", "--format", "torch").error(2)
    message = tcnn("export", tuned, "b.pt2", "--size", 64, "--dynamic", "batch", "--tolerance", 1e-12).error(3)
    assert "expected at most 1e-12" in message
    assert listing() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.tflite",), "expected a name that ends in .onnx or .pt2"),
        (("a.bin", "--format", "coreml"), "--format: expected onnx or torch, found 'coreml'"),
        (("a.onnx", "--size", "0x4"), "--size: expected pixels as 224 or 224x160"),
        (("a.onnx", "--size", "1x2x3"), "--size: expected pixels"),
        (("a.onnx", "--batch", 0), "batch: expected one image or more, at most 1000000, found 0"),
        (("a.onnx", "--dynamic", "batch,depth"), "dynamic axes: expected some of batch, height, width, found 'depth'"),
        (("a.onnx", "--tolerance", "nan"), "expected a relative error above 0"),
        (("a.onnx", "--opset", 0), "--opset: expected 1 to"),
        (("no/where.onnx",), "does not exist"),
    ],
)
def test_wrong_requests(
    tcnn: Run, converted: Path, arguments: tuple[object, ...], message: str, listing: Callable[[], list[str]]
) -> None:
    assert message in tcnn("export", converted, *arguments).error(2)
    assert listing() == []


def test_what_is_no_checkpoint(tcnn: Run) -> None:
    assert "found nothing" in tcnn("export", "missing.safetensors", "a.onnx").error(2)
    save_file({"weight": torch.zeros(2)}, "plain.safetensors")
    assert "not written by tcnn" in tcnn("export", "plain.safetensors", "a.pt2").error(2)


def test_a_size_that_the_model_cannot_take(tcnn: Run, lively: Callable[..., Any]) -> None:
    """A vision transformer takes one size."""
    library.save(library.convert(lively("test_vit"), target=r"patch_embed\.proj").model, "vit.safetensors")
    message = tcnn("export", "vit.safetensors", "a.pt2", "--size", 33).error(2)
    assert "does not run on an image of 3×33×33" in message
    assert message.endswith("choose another size")


@pytest.mark.slow  # what it writes is looked at in tests/dashboard/test_offline_explorer.py
def test_a_page(tcnn: Run, tuned: Path) -> None:
    done = tcnn("export", tuned, "a page", "--explorer", "--size", 64)
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[0] == "shows 2 layers on images of 64×64"
    assert lines[1].startswith("same as PyTorch: logits within ")
    assert lines[3] == "look at it: python3 -m http.server --bind 127.0.0.1 --directory 'a page'"
    told = json.loads(Path("a page/model.json").read_text())
    assert told["classes"] == list(tiny_runs.COLOURS)
    report = tcnn("export", tuned, "a page", "--explorer", "--size", 64, "--force", "--json").json
    assert set(report["files"]) == {file.name for file in Path("a page").iterdir()}


@pytest.mark.slow  # as tests/dashboard/test_offline_explorer.py has it
def test_what_cannot_be_a_page(tcnn: Run, tuned: Path, listing: Callable[[], list[str]]) -> None:
    Path("there").mkdir()
    Path("file").write_text("mine")
    before = listing()
    assert "there: exists already; replace it with --force" in tcnn("export", tuned, "there", "--explorer").error(2)
    assert "found a file" in tcnn("export", tuned, "file", "--explorer", "--force").error(2)
    assert "--size: expected pixels" in tcnn("export", tuned, "new", "--explorer", "--size", "0x4").error(2)
    assert listing() == before


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converted") / "t.safetensors"
    convert_to_file("test_resnet", path, pretrained=False)
    return path


@pytest.mark.usefixtures("no_network")
def test_a_dry_run_shows_files_and_card(tcnn: Run, file: Path) -> None:
    found = tcnn("push", file, "my-team/net", "--dry-run", "--no-pictures")
    assert found.code == 0, found
    assert "kB  model.safetensors" in found.out or "MB  model.safetensors" in found.out
    assert "# net\n" in found.out
    assert found.out.endswith("nothing was published at https://tcnn.invalid/my-team/net\n")


def test_it_is_published(tcnn: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        found = tcnn("push", file, "my-team/net", "--no-pictures", "--message", "first", "--json").json
        assert [each["summary"] for each in hub.commits] == ["first"]
    assert found["commit"].startswith(found["url"])
    assert {each["name"] for each in found["files"]} == {"README.md", "config.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("FILE", "net"), "expected a repository as ORG/NAME"),
        (("none.safetensors", "my-team/net"), "no such checkpoint"),
        (("FILE", "my-team/net", "--images", "photos", "--no-pictures"), "attention maps are pictures"),
        (("FILE", "my-team/net", "--evaluation", "none.json"), "none.json"),
        (("FILE", "my-team/net", "--license", "no such thing"), "license: expected"),
    ],
)
def test_a_wrong_request_is_one_line(tcnn: Run, file: Path, arguments: tuple[str, ...], expected: str) -> None:
    given = [str(file) if argument == "FILE" else argument for argument in arguments]
    assert expected in tcnn("push", *given, "--dry-run").error(2)
