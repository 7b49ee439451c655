"""A run that is resumed with other settings, or from another directory: what it says of itself from then on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_runs import colours, run

import tcnn
from tcnn.checkpoints.checkpoint import digest
from tcnn.config import ConversionConfig, finetune_config
from tcnn.errors import RequestError
from tcnn.evaluation.comparing.comparison import compare
from tcnn.evaluation.held_out import trainings_of
from tcnn.training.single_run import FinetuneResult

NETWORK: dict[str, Any] = {"convert": False, "micro_batch": 8}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, a network of the same classes, and a run of one epoch that held a fifth of the images out."""
    root = tmp_path_factory.mktemp("resumed")
    colours(root / "data")
    run("test_resnet", root / "data", root / "run", epochs=1, **NETWORK)
    return root


@pytest.fixture
def here(home: Path, tmp_path: Path) -> Path:
    return shutil.copytree(home, tmp_path / "here")


def go_on(here: Path, epochs: int, data: Path | None = None, **options: Any) -> FinetuneResult:
    given = {**NETWORK, "allow_changes": True, "quiet": True, **options}
    return run("test_resnet", data or here.with_name("data"), here / "run", epochs=epochs, resume=True, **given)


def told(model: str | Path, data: Path) -> tuple[bool, bool, int]:
    """Whether a held-out part was measured, whether the model is told to have learned from it, how many images."""
    found = compare([str(model)], str(data), device="cpu", quiet=True)
    return found.held_out, bool(found.trained_on), found.images


@pytest.fixture
def data(home: Path, here: Path) -> Path:
    """The images, which both the run and its copy know by the same name as text."""
    record = json.loads((here / "run" / "config.json").read_text())
    place = shutil.copytree(home / "data", here.with_name("data"))
    (here / "run" / "config.json").write_text(json.dumps(record | {"data": str(place)}))
    return place


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 5}, pytest.param({"val_split": 0.4}, marks=pytest.mark.slow),
        pytest.param({"val_split": None, "val": "other"}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_what_was_learned_from_before_another_part_was_held_out(
    here: Path, data: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """It was called held out: the record said what the run went on with, and nothing of what it had begun with."""
    if "val" in options:
        options = options | {"val": str(colours(tmp_path / "other", 5))}
    went_on = go_on(here, 2, **options)
    assert told(went_on.last, data) == (False, True, 30)
    again = go_on(here, 3, **options)
    assert told(again.last, data) == (False, True, 30), "also after the same settings were gone on with"
    assert len(trainings_of(again.last)) == 2
    back = go_on(here, 4)
    assert told(back.last, data) == (False, True, 30), "also with the first ones again"


def test_the_images_that_a_run_began_with(here: Path, data: Path, tmp_path: Path) -> None:
    """Of which it holds a part out no more, once it goes on with others."""
    other = colours(tmp_path / "other", 12)
    result = go_on(here, 2, other)
    assert told(result.last, data) == (True, False, 6), "as the run held it out while it learned from them"
    assert told(result.last, other) == (True, False, 6)
    result = go_on(here, 3)
    assert [Path(one.data).name for one in trainings_of(result.last)] == ["data", "other", "data"]
    assert told(result.last, data) == (True, False, 6)


def test_a_data_set_that_has_grown(here: Path, data: Path) -> None:
    colours(data, 12)
    assert told(go_on(here, 2).last, data) == (False, True, 36)


def test_images_of_other_classes_than_before(here: Path, data: Path) -> None:
    """Noted and not refused; others are held out of them, which the run has learned from."""
    one, other = data / "blue" / "7.png", data / "red" / "7.png"  # among those that make the fingerprint
    blue = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(blue)
    assert told(go_on(here, 2).last, data) == (False, True, 30)
    assert told(go_on(here, 3).last, data) == (False, True, 30)


def test_a_label_that_was_corrected(here: Path, data: Path) -> None:
    """Another part is held out from then on, which the run has learned from; it went on without a word."""
    (data / "blue" / "9.png").rename(data / "green" / "10.png")
    with pytest.raises(
        RequestError, match=r"\(epochs: 1 → 2; images in the data set: another class, file name, order or part of it"
    ):
        go_on(here, 2, allow_changes=False)
    assert told(go_on(here, 2).last, data) == (False, True, 30)
    record = json.loads((here / "run" / "config.json").read_text())
    assert record["changes"][0]["best_from"] == 1
    assert go_on(here, 2, allow_changes=False).epochs == 2, "the next resume is compared with the new list"


def test_a_training_that_an_earlier_release_recorded_is_listed_once(here: Path, data: Path) -> None:
    """It recorded no list of the images, so that the same training looked like another."""
    go_on(here, 2, seed=5)
    file = here / "run" / "config.json"
    record = json.loads(file.read_text())
    first = {key: value for key, value in record["earlier"][0].items() if key != "listing"}
    before = {key: value for key, value in record.items() if key != "listing"} | {"earlier": [first]}
    before["config"]["seed"] = 0
    file.write_text(json.dumps(before))
    go_on(here, 3, seed=7)
    assert len(json.loads(file.read_text())["earlier"]) == 1


def test_the_record_says_what_changed_and_the_next_resume_is_compared_with_it(here: Path, data: Path) -> None:
    """config.json and the report had the first settings for ever."""
    go_on(here, 2, seed=5)
    record = json.loads((here / "run" / "config.json").read_text())
    assert (record["config"]["seed"], record["config"]["epochs"]) == (5, 2)
    assert record["changes"] == [{"updates": 3, "changed": ["epochs: 1 → 2", "seed: 0 → 5"], "best_from": 1}]
    with pytest.raises(RequestError, match=r"run: ran with other settings \(seed: 5 → 0\); give the same ones, or"):
        go_on(here, 2, allow_changes=False)
    assert go_on(here, 2, allow_changes=False, seed=5).epochs == 2
    go_on(here, 3, seed=5)
    changes = json.loads((here / "run" / "config.json").read_text())["changes"]
    assert [(one["updates"], one.get("best_from")) for one in changes] == [(3, 1), (6, None)]
    page = str(tcnn.report(here / "run"))
    for line in ("Changed when it was resumed", "epochs: 1 → 2", "seed: 0 → 5", "epochs: 2 → 3"):
        assert line in page


@pytest.mark.parametrize(
    ("options", "anew"),
    [
        ({"weight_decay": 0.1}, False), ({"size": 48}, True),
        pytest.param({}, False, marks=pytest.mark.slow), pytest.param({"seed": 5}, True, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_best_epoch_is_one_of_those_measured_on_the_same_images(
    here: Path, data: Path, options: dict[str, Any], anew: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """An epoch that had all of some other images right was the best one for ever."""
    point = max((here / "run" / "resume").glob("*.safetensors"))
    tensors, metadata = load_file(point), safe_open(point, "pt").metadata()
    position = json.loads(metadata["position"]) | {"best": 2.0}  # which no epoch reaches
    save_file(tensors, point, metadata | {"position": json.dumps(position)})
    result = go_on(here, 2, quiet=False, **options)
    assert ("the best epoch is chosen anew" in capsys.readouterr().err) == anew
    assert (result.best_epoch, result.best_top1) == ((1, result.top1) if anew else (0, 2.0))
    assert (go_on(here, 3, **options).best_epoch > 0) == anew  # also when it is resumed once more


def test_where_nothing_is_learned_nothing_is_changed(here: Path, data: Path) -> None:
    """A run that has ended is what it was; one that begins anew, as it has no resume point, has learned nothing."""
    before = (here / "run" / "config.json").read_bytes()
    go_on(here, 1, seed=5)
    assert (here / "run" / "config.json").read_bytes() == before
    for point in (here / "run" / "resume").glob("*"):
        point.unlink()
    result = go_on(here, 1, seed=5)
    record = json.loads((here / "run" / "config.json").read_text())
    assert (record["config"]["seed"], record["earlier"], record.get("changes")) == (5, [], None)
    assert told(result.last, data) == (True, False, 6)


@pytest.mark.parametrize("seen_from", ["there", pytest.param("here", marks=pytest.mark.slow)])
def test_a_teacher_in_another_directory(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen_from: str
) -> None:
    """By its relative path, which was not found, or by where it lies, which was called another setting."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(here)
    options = {**NETWORK, "teacher": "run/last.safetensors", "quiet": True}
    run("test_resnet", "data", tmp_path / "taught", epochs=1, **options)
    monkeypatch.chdir(tmp_path / "elsewhere")
    if seen_from == "here":
        options["teacher"] = str(here / "run" / "last.safetensors")
    result = run("test_resnet", "data", tmp_path / "taught", epochs=1, resume=True, **options)
    assert result.epochs == 1
    options["allow_changes"] = True
    run("test_resnet", "data", tmp_path / "taught", epochs=2, resume=True, **options)
    record = json.loads((tmp_path / "taught" / "config.json").read_text())
    assert (record["data"], record["config"]["teacher"]) == ("data", "run/last.safetensors")
    assert record["directory"] == str(here), "from which both are seen"
    monkeypatch.chdir(tmp_path)
    assert compare(["taught"], device="cpu", quiet=True).held_out


def test_weights_in_another_directory(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the run had not begun to learn: they are needed, by the relative path by which they were given."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(here)
    weights = Path("run/last.safetensors")
    first = run("test_resnet", "data", tmp_path / "own", epochs=1, weights=weights, **NETWORK)
    for point in (tmp_path / "own" / "resume").glob("*"):
        point.unlink()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = run("test_resnet", "data", tmp_path / "own", epochs=1, weights=weights, resume=True, **NETWORK)
    assert (again.updates, again.top1) == (first.updates, first.top1)


def test_what_a_run_began_with_is_known_without_the_file_that_it_began_with(
    here: Path, tmp_path: Path, data: Path
) -> None:
    """A resume needs no weights: without them it was forgotten what these had learned from."""
    weights, options = here / "run" / "last.safetensors", {**NETWORK, "val_split": 0.4, "quiet": True}
    run("test_resnet", data, tmp_path / "own", epochs=1, weights=weights, **options)
    result = run("test_resnet", data, tmp_path / "own", epochs=2, resume=True, allow_changes=True, **options)
    assert len(trainings_of(result.last)) == 2
    assert told(result.last, data) == (False, True, 30)


def test_a_run_of_an_earlier_release_has_a_stage_beside_its_target(home: Path, tmp_path: Path) -> None:
    """Its files are loaded, it goes on without a word of a change, and another run takes its settings."""
    settings = {"convert": True, "conversion": {"target": "layer4.*", "head_dim": 8}, "epochs": 1}
    first = run("test_resnet", home / "data", tmp_path / "run", **settings)
    kept = tmp_path / "run" / "config.json"
    record = json.loads(kept.read_text(encoding="utf-8"))
    record["config"]["conversion"]["stage"] = 3
    kept.write_text(json.dumps(record), encoding="utf-8")
    with safe_open(first.best, "pt") as file:  # type: ignore[no-untyped-call]
        metadata = file.metadata()
    conversion = json.loads(metadata["conversion"])
    conversion["config"]["stage"] = 3
    tensors, metadata["conversion"] = load_file(first.best), json.dumps(conversion)
    save_file(tensors, first.best, metadata | {"digest": digest(tensors, metadata)})

    assert tcnn.load(first.best).conversion_report.config.target == "layer4.*"
    assert run("test_resnet", home / "data", tmp_path / "run", resume=True, **settings).updates == first.updates
    assert finetune_config(file=kept).conversion == ConversionConfig(target="layer4.*", head_dim=8)
    (tmp_path / "own.yaml").write_text("conversion: {target: layer4.*, stage: 3}\n", encoding="utf-8")
    with pytest.raises(
        RequestError, match=r"^conversion\.target: names the convolutions, so that stage 3 has no effect"
    ):
        finetune_config(file=tmp_path / "own.yaml")
