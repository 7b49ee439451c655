"""Commands that begin with a network that timm does not know: `--module` in the place of MODEL."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from safetensors import safe_open

from tcnn.checkpoints.checkpoint import read
from tcnn.zoo.own_network import network

Run = Callable[..., Any]
OWN = ("--module", "tiny_runs:TwoConvs")
SHORT = ("--preset", "quick", "--epochs", 1, "--batch-size", 8, "--val-split", 0.2, "--workers", 0, "--device", "cpu")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Weights of the network, in a file of PyTorch's."""
    torch.save({"state_dict": tiny_runs.seeded(tiny_runs.TwoConvs, 7).state_dict()}, tmp_path / "own.pth")
    return tmp_path / "own.pth"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.colours(tmp_path_factory.mktemp("own") / "data")


def test_it_is_converted_as_it_is_built_and_built_again_to_be_verified(tcnn: Run, tmp_path: Path) -> None:
    """What it draws at random is drawn with the recorded seed, in another process too."""
    torch.manual_seed(123)
    done = tcnn("convert", *OWN, "t.safetensors", "--size", "32x48", "--seed", 5, "--json").json
    assert (done["model"], done["verification"]["passed"]) == ("tiny_runs:TwoConvs", True)
    source = read(tmp_path / "t.safetensors").section("source")
    assert (source["name"], source["weights"], source["seed"]) == ("tiny_runs:TwoConvs", "module", 5)
    torch.manual_seed(321)
    again = tcnn("verify", "t.safetensors", *OWN)
    assert again.code == 0
    assert "noise 2×3×32×48" in again.out
    assert network() is None
    assert "name what builds it with --module" in tcnn("verify", "t.safetensors").error(2)


def test_a_file_has_the_weights(tcnn: Run, weights: Path, tmp_path: Path) -> None:
    assert tcnn("convert", *OWN, "t.safetensors", "--weights", weights, "--size", 32).code == 0
    with safe_open(tmp_path / "t.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("stem.weight"), tiny_runs.seeded(tiny_runs.TwoConvs, 7).stem.weight)
    message = "t.safetensors: made from a weights file; give it again with --weights FILE, or --against MODEL"
    assert tcnn("verify", "t.safetensors", *OWN).error(2) == message
    assert tcnn("verify", "t.safetensors", *OWN, "--weights", weights).code == 0
    torch.save(tiny_runs.TwoConvs(5).state_dict(), weights)
    unlike = "own.pth does not fit tiny_runs:TwoConvs: head.weight: expected (3, 8), found (5, 8)"
    assert tcnn("convert", *OWN, "u.safetensors", "--weights", weights).error(2).endswith(unlike)


def test_a_module_is_taken_as_it_is_and_stays_so(tcnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_runs.seeded(tiny_runs.TwoConvs, 3)
    monkeypatch.setattr(tiny_runs, "MADE", made, raising=False)
    before = made.stem.weight.clone()
    other = tiny_runs.seeded(tiny_runs.TwoConvs, 4).state_dict()
    torch.save(other, tmp_path / "other.pth")
    named = ("--module", "tiny_runs:MADE", "--size", 32)
    assert tcnn("convert", *named, "t.safetensors", "--weights", "other.pth").code == 0
    assert torch.equal(made.stem.weight, before)


def test_what_its_import_draws_is_drawn_again(tcnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's module is imported before the seed is set with which its network was converted."""
    (tmp_path / "draws_as_it_is_imported.py").write_text("import tiny_runs\nNET = tiny_runs.TwoConvs()\n")
    named = ("--module", "draws_as_it_is_imported:NET")
    for words in (("convert", "t.safetensors", "--size", 32), ("verify", "t.safetensors")):
        assert tcnn(*words, *named).code == 0
        monkeypatch.delitem(sys.modules, "draws_as_it_is_imported")


def test_other_weights_than_those_that_it_was_converted_from(
    tcnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_runs, "make", lambda: tiny_runs.seeded(tiny_runs.TwoConvs, 1), raising=False)
    assert tcnn("convert", "--module", "tiny_runs:make", "t.safetensors", "--size", 32).code == 0
    said = tcnn("verify", "t.safetensors", *OWN).error(2)
    assert "the weights found for tiny_runs:TwoConvs are not those it was converted from; name the right ones" in said


def test_it_is_planned_and_trained_with_its_cnn(tcnn: Run, data: Path, tmp_path: Path) -> None:
    asked = (*OWN, "--data", data, *SHORT, "--size", 32)
    planned = tcnn("plan", *asked, "--seconds", 0, "--json").json
    assert (planned["model"], planned["baseline"], planned["problems"]) == ("tiny_runs:TwoConvs", None, [])
    done = tcnn("finetune", *asked, "--baseline", "--json").json
    assert done["layers"] == planned["result"]["layers"] == 1
    run = tmp_path / "runs" / "TwoConvs"
    assert Path(done["out"]) == run.relative_to(tmp_path)
    assert json.loads((run / "config.json").read_text())["model"] == "tiny_runs:TwoConvs"
    rows = {row["role"]: row["missing"] for row in json.loads((run / "before-after.json").read_text())["rows"]}
    assert rows == {"cnn": None, "tuned_cnn": None, "converted": None, "t_cnn": None}
    assert "the run is finished already" in tcnn("finetune", *asked, "--baseline", "--out", run, "--resume").err
    message = "model: tiny_runs:TwoConvs → tiny_runs:Normed"
    assert message in tcnn("finetune", "--module", "tiny_runs:Normed", *asked[2:], "--out", run, "--resume").error(2)


def test_its_files_and_runs_are_trained_further(
    tcnn: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the size at which it was converted; it was 224 pixels."""
    monkeypatch.setattr(tiny_runs, "Moved", tiny_runs.TwoConvs, raising=False)
    assert tcnn("convert", *OWN, "t.safetensors", "--size", 32, "--content-heads", 4).code == 0
    asked = (*OWN, "--data", data, *SHORT)
    moved = ("--module", "tiny_runs:Moved", *asked[2:])  # the network is what is named now, not what is recorded
    assert tcnn("verify", "t.safetensors", *moved[:2]).code == 0
    done = tcnn("finetune", "t.safetensors", *moved, "--baseline", "--out", "run", "--json")
    assert done.json["layers"] == 1
    assert json.loads((tmp_path / "run" / "config.json").read_text())["size"] == [32, 32]
    assert tcnn("finetune", "run", *asked, "--out", "again").code == 0
    assert tcnn("finetune", *asked, "--size", 32, "--no-convert", "--out", "cnn").code == 0
    assert tcnn("convert", "cnn", "c.safetensors", *OWN).code == 0
    assert tcnn("verify", "c.safetensors", "--against", "cnn", *OWN).code == 0
    planned = tcnn("convert", "cnn", *OWN, "--dry-run", "--json").json
    assert planned["model"] == "cnn"


class WithClasses(tiny_runs.TwoConvs):
    """It says how many classes it has, and takes another number, as timm's models do."""

    def __init__(self) -> None:
        super().__init__(7)
        self.num_classes = 7

    def reset_classifier(self, classes: int) -> None:
        self.head, self.num_classes = torch.nn.Linear(8, classes), classes


def test_a_run_has_the_classes_that_it_was_trained_for(tcnn: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_runs, "WithClasses", WithClasses, raising=False)
    own = ("--module", "tiny_runs:WithClasses")
    done = tcnn("finetune", *own, "--data", data, *SHORT, "--size", 32, "--baseline", "--out", "run", "--json")
    assert done.json["classes"] == 3
    found = tcnn("evaluate", "run", *own, "--json").json["rows"][0]["clean"]
    assert found["top1"] == done.json["top1"]
    assert tcnn("fold", "run", "folded.safetensors", *own).code == 0
    assert tcnn("verify", "run", "--against", "run/baseline", *own).code == 3


@pytest.mark.slow  # three processes of torch
def test_every_process_of_a_run_builds_it(
    tcnn: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets.py").write_text(Path(tiny_runs.__file__).read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = ("--module", "nets:TwoConvs", "--data", data, *SHORT, "--size", 32, "--nproc", 2, "--out", "run")
    assert tcnn("finetune", *asked, "--json").json["model"] == "nets:TwoConvs"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("convert", "resnet18"), "--module: builds the network, and resnet18 names another one; leave one of the two"),
        (("convert", "resnet18", "o.safetensors"), "--module: builds the network, and resnet18 names another one"),
        (("convert", "own.pth"), "own.pth: weights, whose network --module names; give them with --weights own.pth"),
        (("finetune", "own.pth", "--data", "."), "own.pth: weights, whose network --module names"),
        (("finetune", "resnet18", "--data", "."), "--module: builds the network, and resnet18 names another one"),
        (("plan", "resnet18", "--data", "."), "--module: builds the network, and resnet18 names another one"),
        (("verify", "resnet18"), "--module: applies to files and runs, and none is given"),
        (("convert",), "OUT: missing; name a .safetensors file"),
        (("convert", "o.pth"), "o.pth: expected a name that ends in .safetensors, or a directory, found '.pth'"),
        (("convert", "hub"), "TwoConvs is no timm model: write one .safetensors file instead of a directory"),
        (("convert", "o.safetensors", "--no-pretrained"), "--no-pretrained: the network of --module has the weights"),
        (("finetune", "--data", ".", "--no-pretrained"), "--no-pretrained: the network of --module has the weights"),
        (("plan", "--data", ".", "--pretrained"), "--pretrained: the network of --module has the weights that it is"),
        (("convert", "o.safetensors", "--num-classes", "3"), "--num-classes: --module builds the network, without "),
        (("convert", "o.safetensors", "--model-kwargs", "a=3"), "--model-kwargs: --module builds the network, without"),
        (("convert", "--dry-run", "--num-classes", "3"), "is built without arguments, so num_classes would have no"),
    ],
)
def test_what_contradicts_it_is_refused(tcnn: Run, weights: Path, words: tuple[str, ...], message: str) -> None:
    assert message in tcnn(*words, *OWN).error(2)


def test_without_it(tcnn: Run, tmp_path: Path) -> None:
    missing = "MODEL: missing; name a model, or what builds it with --module"
    for words in (("convert",), ("finetune", "--data", "."), ("plan", "--data", ".")):
        assert missing in tcnn(*words).error(2)
    given = (
        "nets.small:build: no model's name; expected one of timm's, hf-hub:ORG/NAME or local-dir:PATH; what builds a "
        "network of your own is given with --module nets.small:build"
    )
    assert tcnn("convert", "nets.small:build", "o.safetensors").error(2) == given
    assert (
        tcnn("convert", "resnet18", "o.safetensors", "--size", 32)
        .error(2)
        .startswith("--size: applies to a network of --module only")
    )
    assert tcnn("convert", *OWN, "t.safetensors", "--size", 32).code == 0
    said = tcnn("push", "t.safetensors", "you/t", "--dry-run").error(2)
    assert said.startswith("t.safetensors: made from TwoConvs, which timm does not know, so that nobody could load it")
