"""Files and runs of networks that timm does not know, with `--module`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import tcnn as library
from tcnn.analysis.images import pictures_of
from tcnn.checkpoints.checkpoint import load
from tcnn.zoo.own_network import network, network_named

Run = Callable[..., Any]
NAME = "tiny_runs:TwoConvs"
OWN = ("--module", NAME)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a network of one's own on 32×32 images, and its data."""
    place = tmp_path_factory.mktemp("own")
    data = tiny_runs.colours(place / "data")
    torch.manual_seed(0)
    tiny_runs.run(tiny_runs.TwoConvs(), data, place / "run", epochs=1)
    return place / "run"


def test_it_is_measured_asked_and_looked_into(tcnn: Run, trained: Path) -> None:
    found = tcnn("evaluate", trained, *OWN, "--json").json
    row = found["rows"][0]
    assert (found["images"], row["height"], row["width"]) == (6, 32, 32)  # what it held out, at its own size
    image = trained.parent / "data" / "red" / "3.png"
    guesses = tcnn("predict", trained, image, *OWN, "--json").json["models"][0]["images"][0]["guesses"]
    assert {guess["name"] for guess in guesses} == set(tiny_runs.COLOURS)
    looked = tcnn("inspect", trained, *OWN, "--images", image, "--json").json
    assert (looked["size"], looked["images"]) == ([32, 32], 1)
    told = tcnn("report", trained, *OWN, "--images", image, "--out", "r.html", "--json").json
    assert told["missing"] == []


def test_it_is_folded_and_exported(tcnn: Run, tmp_path: Path) -> None:
    library.save(library.convert(tiny_runs.TwoConvs(), input_size=(32, 32)).model, "t.safetensors")
    assert tcnn("fold", "t.safetensors", "cnn.safetensors", *OWN).code == 0
    with safe_open(tmp_path / "cnn.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(tiny_runs.TwoConvs().state_dict())
    assert tcnn("export", "t.safetensors", "t.pt2", *OWN, "--fixed", "--json").json["checks"][0]["shape"][-1] == 32


def test_its_name_is_printed_as_it_is(tcnn: Run, tmp_path: Path) -> None:
    """`:End:` was a picture of an arrow."""
    (tmp_path / "nets_of_mine.py").write_text("from tiny_runs import TwoConvs as End\n", encoding="utf-8")
    done = tcnn("convert", "t.safetensors", "--module", "nets_of_mine:End", "--size", 32)
    assert done.out.startswith("nets_of_mine:End: stage"), done


def test_beside_it_an_error_of_the_words_is_told_where_results_are(tcnn: Run) -> None:
    """The command has not begun, and a network has nothing to print yet."""
    done = tcnn("export", *OWN, "--json")
    assert (done.code, done.err) == (2, "")
    assert "Missing argument 'CKPT'" in done.json["error"]["message"]


FLAT = """
import torch
from torch import nn

class Flat(nn.Module):
    "One that runs on 16×16 pixels alone, and prints what it does."

    def __init__(self) -> None:
        super().__init__()
        print("built")
        self.a, self.b, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(2048, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("runs")
        return self.fc(self.b(self.a(x).relu()).flatten(1))
"""


def test_one_of_a_single_size_that_prints(tcnn: Run, trained: Path, tmp_path: Path) -> None:
    """It is measured and asked at the size that is given, beside its T-CNN, and stdout has the result alone."""
    (tmp_path / "flat_net.py").write_text(FLAT, encoding="utf-8")
    own, sized = ("--module", "flat_net:Flat"), ("--size", 16)
    data = trained.parent / "data"
    image = data / "red" / "3.png"
    assert tcnn("convert", "t.safetensors", *own, *sized, "--json").json["conversion"]["layers"]
    alone = tcnn("evaluate", *own, "--data", data, *sized, "--json").json
    both = tcnn("evaluate", "flat_net:Flat", "t.safetensors", *own, "--data", data, *sized, "--json").json
    assert [(row["height"], row["outputs"]) for row in (*alone["rows"], *both["rows"])] == [(16, 3)] * 3
    for words in (("flat_net:Flat", image), ("t.safetensors", image, "--compare", "flat_net:Flat")):
        asked = tcnn("predict", *words, *own, *sized, "--json")
        assert all(len(model["images"][0]["guesses"]) == 3 for model in asked.json["models"])
        assert "runs" in asked.err
    assert tcnn("finetune", *own, "--data", data, "--print-config").out.startswith("convert: true")
    needed = "--data: expected a data set to measure on, for flat_net:Flat does not say what it was trained on"
    assert tcnn("evaluate", *own, *sized).error(2) == needed


def test_one_that_does_not_run_in_float64_is_compared_in_float32(tcnn: Run) -> None:
    """With a note; the options of the commands have no precision."""
    own = ("--module", "tiny_runs:Linear32")
    made = tcnn("convert", "t.safetensors", *own, "--size", 32, "--json")
    assert made.code == 0, made
    note = "not compared in float64: Linear32 does not run in float64 (mat1 and mat2 must have the same dtype, but got "
    for report in (made.json["verification"], tcnn("verify", "t.safetensors", *own, "--json").json):
        assert [one["dtype"] for one in report["passes"]] == ["float32"] and report["passes"][0]["note"].startswith(
            note
        )
    assert note in tcnn("verify", "t.safetensors", *own, "--explain", "e.html").out
    folded = tcnn("fold", "t.safetensors", "cnn.safetensors", *own, "--json").json["fold"]
    assert folded["complete"] and not folded["float64"]


def test_pictures_are_of_the_models_own_size(tmp_path: Path) -> None:
    """They were of 224×224, 49 times as many pixels, whatever the model was converted at."""
    model = library.convert(tiny_runs.TwoConvs(), input_size=(32, 48)).model
    image = tiny_runs.colours(tmp_path / "data", 1, ("red",)) / "red" / "0.png"
    pictures = pictures_of(model, image)
    assert pictures is not None
    assert pictures.tensors.shape == (1, 3, 32, 48)


def test_of_the_working_directory_it_imports_what_is_named(
    tcnn: Run, trained: Path, tmp_path: Path, left_alone: None
) -> None:
    (tmp_path / "my_nets").mkdir()
    (tmp_path / "my_nets" / "own.py").write_text(
        "from tiny_runs import TwoConvs\nWIDE = 7\ndef build(): return TwoConvs()\ndef needs(it): ...\n"
    )
    (tmp_path / "json.py").write_text("raise RuntimeError('in the place of the one that is installed')")
    path = list(sys.path)
    assert tcnn("inspect", trained, "--module", "my_nets.own:build").code == 0
    assert sys.path == path
    for name, message in (
        ("my_nets.own", "--module: expected PACKAGE.MODULE:NAME, as nets.small:build, found 'my_nets.own'"),
        ("my_nets.own:wide", "AttributeError: module 'my_nets.own' has no attribute 'wide'"),
        ("my_nets.own:WIDE", "--module my_nets.own:WIDE: expected a torch.nn.Module, or a function that returns one, "
         "found int"),
        ("no_nets:build", "--module no_nets:build: ModuleNotFoundError: No module named 'no_nets'"),
        ("my_nets.own:needs", "my_nets.own:needs: TypeError: needs() missing 1 required positional argument: 'it'"),
        ("torch.nn:Identity", "does not fit Identity: last: expected a convolution in TwoConvs, found none"),
    ):  # fmt: skip
        assert message in tcnn("inspect", trained, "--module", name).error(2)


@pytest.fixture
def left_alone() -> Iterator[None]:
    """Modules that the test has imported are forgotten."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "my_nets":
            del sys.modules[name]


def test_it_is_the_network_of_one_command(tcnn: Run, trained: Path) -> None:
    assert tcnn("inspect", trained, *OWN).code == 0
    assert network() is None
    advice = "which timm does not know; name what builds it with --module PACKAGE.MODULE:NAME"
    assert tcnn("inspect", trained).error(2).endswith(f"made from TwoConvs, {advice}")
    with pytest.raises(library.TcnnError, match="in Python, give its module as `source`"):
        load(trained)


def test_it_is_measured_itself(tcnn: Run, trained: Path, tmp_path: Path) -> None:
    """It had to be converted first, or trained: a CNN with weights of its own could not be compared with its T-CNN."""
    cnn = tiny_runs.seeded(tiny_runs.TwoConvs, 5)
    save_file(cnn.state_dict(), tmp_path / "cnn.safetensors")
    data, size = trained.parent / "data", ("--size", 32)
    expected = library.evaluate(cnn, data, size=32, batch_size=8)
    row = tcnn("evaluate", *OWN, "--weights", "cnn.safetensors", "--data", data, *size, "--json").json["rows"][0]
    assert (row["model"], row["clean"]["top1"]) == (NAME, expected.top1)
    assert row["clean"]["loss"] == pytest.approx(expected.loss, rel=1e-5)
    assert tcnn("convert", *OWN, "t.safetensors", *size).code == 0
    with network_named(NAME):
        untrained = library.evaluate(NAME, data, size=32)
    found = tcnn("evaluate", NAME, "t.safetensors", *OWN, "--data", data, *size, "--json").json["rows"]
    assert [row["model"] for row in found] == [NAME, "t.safetensors"]
    assert [row["clean"]["loss"] for row in found] == pytest.approx([untrained.loss] * 2, rel=1e-5)
    answers = tcnn("predict", "t.safetensors", data / "red" / "3.png", "--compare", NAME, *OWN, *size, "--json").json
    one, other = (model["images"][0]["guesses"][0] for model in answers["models"])
    assert one["probability"] == pytest.approx(other["probability"], rel=1e-4)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("evaluate", "resnet18", "--data", "."), "applies to files and runs, and to the network itself by this name"),
        (("predict", "resnet18", "."), "applies to files and runs, and to the network itself by this name"),
        (("fold", "absent.safetensors", "out.safetensors"), "applies to files and runs, and none is given"),
    ],
)
def test_without_a_file_it_has_no_effect(tcnn: Run, command: tuple[str, ...], message: str) -> None:
    assert tcnn(*command, *OWN).error(2) == f"--module: {message}; timm builds other models"


@pytest.mark.parametrize("name", ["nets:build", "nets.small:Net.build"])
def test_its_name_alone_is_told_where_it_belongs(tcnn: Run, trained: Path, name: str) -> None:
    """timm's own line was "Unknown model source 'nets'"."""
    data = trained.parent / "data"
    kinds = "expected one of timm's, hf-hub:ORG/NAME or local-dir:PATH"
    message = f"{name}: no model's name; {kinds}; what builds a network of your own is given with --module {name}"
    for words in (("convert", name, "o.safetensors"), ("evaluate", name, "--data", data), ("verify", name)):
        assert tcnn(*words).error(2) == message
    with pytest.raises(library.TcnnError, match=r"no model's name; .*; give a network of your own itself, a torch\.nn"):
        library.evaluate(name, data)


def test_a_report_without_images_loads_nothing(tcnn: Run, trained: Path) -> None:
    assert tcnn("report", trained, *OWN).error(2) == "--module: nothing is loaded without --images"
