"""What a run has held out is measured, and nothing that it has learned from."""

import copy
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from data_pictures import as_mixed_shard, draw_classes
from tiny_runs import tiny
from torch import nn
from torchvision.datasets import ImageFolder

import tcnn
from tcnn.checkpoints.checkpoint import read
from tcnn.config.evaluation import EvaluationConfig
from tcnn.data.image_set import open_dataset, split_off
from tcnn.errors import RequestError
from tcnn.evaluation.comparing.comparison import compare
from tcnn.evaluation.comparing.paired import measure_on
from tcnn.evaluation.held_out import measured_by_default, trainings_of
from tcnn.training.single_run import FinetuneResult
from tcnn.workflows.pipeline import convert_to_file

CPU = EvaluationConfig(device="cpu")
CLASSES = ["ant", "bee", "cat"]
CONFIG = tiny(convert=False, epochs=1, size=32, device="cpu", val_split=0.25)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undivided data set, one with splits, and runs on them."""
    root = tmp_path_factory.mktemp("held_out")
    draw_classes(root / "photos", CLASSES, 8)
    for split, number in (("train", 0), ("val", 50)):
        draw_classes(root / "divided" / split, CLASSES, 4, number)
    run(root, "tenth", "photos", val_split=0.25)
    run(root, "other", "photos", val_split=0.25, seed=1)
    run(root, "apart", "divided", val_split=None)
    run(root, "elsewhere", "photos", val=str(root / "divided"))
    return root


def run(
    root: Path, name: str, data: str, val: str | None = None, source: str = "test_resnet", **options: object
) -> FinetuneResult:
    say = options.pop("say", print)
    config = tiny(**{"convert": False, "epochs": 1, "size": 32, "device": "cpu", "val_split": None, **options})
    where = data if data.startswith("wds/") else str(root / data)
    return tcnn.finetune(source, where, val=val, config=config, out=root / name, pretrained=False, say=say)  # type: ignore[arg-type]


def checkpoint(place: Path, run: str) -> str:
    return str(place / run / "last.safetensors")


def test_the_part_that_was_held_out_is_measured(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, held_out = split_off(open_dataset(str(place / "photos"), "train"), 0.25, 0)
    monkeypatch.chdir(place)
    for data in (str(place / "photos"), "./photos/"):
        result = compare([checkpoint(place, "tenth")], data, CPU)
        assert (result.held_out, result.trained_on, result.images) == (True, [], len(held_out)) == (True, [], 6)
    recorded = read(checkpoint(place, "tenth")).section("training")["metrics"]["val"]
    assert result.rows[0].clean and result.rows[0].clean.top1 == recorded["top1"]


def test_pruning_is_measured_on_the_part_that_was_held_out(place: Path, tmp_path: Path) -> None:
    model = tcnn.load(checkpoint(place, "tenth"))
    found = measure_on(checkpoint(place, "tenth"), str(place / "photos"), 32)(model, model)
    assert (found.held_out, found.trained_on, found.images) == (True, False, 6)
    found = measure_on(checkpoint(place, "elsewhere"), str(place / "photos"), 32)(model, model)
    assert (found.held_out, found.trained_on, found.images) == (False, True, 24)


def test_a_run_that_knew_the_data_by_another_name(place: Path, tmp_path: Path) -> None:
    """Jobs record the id of an upload; where it lies is another text on every host."""
    shutil.copytree(place / "photos", tmp_path / "upload")
    data, recorded = str(tmp_path / "upload"), str(place / "photos")
    result = compare([checkpoint(place, "tenth")], data, CPU, known_as=recorded)
    assert (result.held_out, result.trained_on, result.images) == (True, [], 6)
    assert compare([checkpoint(place, "elsewhere")], data, CPU, known_as=recorded).trained_on != []


def test_a_folder_that_was_copied_is_known_by_its_images(place: Path, tmp_path: Path) -> None:
    """As on another machine: its training images under another name, whole or as a folder of their own."""
    copy = tmp_path / "copied"
    shutil.copytree(place / "photos", copy)
    result = compare([checkpoint(place, "tenth")], str(copy), CPU)
    assert (result.held_out, result.trained_on, result.images) == (True, [], 6)
    assert compare([checkpoint(place, "elsewhere")], str(copy), CPU).trained_on != []

    learned, other = tmp_path / "learned", tmp_path / "other"
    shutil.copytree(place / "divided" / "train", learned)
    draw_classes(other, CLASSES, 5)
    assert compare([checkpoint(place, "apart")], str(learned), CPU).trained_on == [checkpoint(place, "apart")]
    assert compare([checkpoint(place, "apart")], str(other), CPU).trained_on == []

    next(file for file in copy.rglob("*") if file.is_file()).unlink()
    changed = compare([checkpoint(place, "tenth")], str(copy), CPU)
    assert (changed.held_out, changed.trained_on) == (False, []), "another set, of which nothing is recorded"


def test_its_images_in_another_order_are_known(place: Path, tmp_path: Path) -> None:
    """Nothing tells there which were held out; they were measured whole, without a word."""
    mixed = as_mixed_shard(place / "photos", tmp_path / "mixed.tar")
    for name in ("tenth", "elsewhere"):
        found = compare([checkpoint(place, name)], mixed, CPU)
        assert (found.held_out, found.trained_on, found.images) == (False, [checkpoint(place, name)], 24)
    said: list[str] = []
    run(tmp_path, "again", mixed, val_split=0.25, source=checkpoint(place, "tenth"), say=said.append)
    assert any(line.startswith(f"the model was trained on {mixed} before") for line in said)


def test_a_part_has_the_fingerprint_of_the_whole(place: Path) -> None:
    whole = open_dataset(str(place / "photos"), "train")
    part, held_out = split_off(whole, 0.25, 0)
    assert part.subset([0, 1]).fingerprint() == held_out.fingerprint() == whole.fingerprint()
    assert open_dataset(str(place / "divided"), "train").fingerprint() != whole.fingerprint()
    grey = open_dataset(str(place / "photos"), "train", in_chans=1)
    assert grey.fingerprint() != whole.fingerprint()


def test_a_split_of_its_own_is_measured_whole(place: Path) -> None:
    for split, seen in (("val", []), ("train", [checkpoint(place, "apart")])):
        config = EvaluationConfig(device="cpu", split=split)
        result = compare([checkpoint(place, "apart")], str(place / "divided"), config)
        assert (result.held_out, result.trained_on, result.images, result.split) == (False, seen, 12, split)


def test_a_model_that_has_seen_all_of_it_is_named(place: Path) -> None:
    one = checkpoint(place, "elsewhere")
    result = compare([one], str(place / "photos"), CPU)
    assert (result.held_out, result.trained_on, result.images, result.split) == (False, [one], 24, None)
    assert compare([one], str(place / "divided"), CPU).trained_on == []


def test_what_a_model_learned_from_before_its_last_training_is_not_forgotten(place: Path) -> None:
    for name, after, options, expected in (
        ("moved", "elsewhere", {"data": "divided"}, (False, True, 24)),
        ("other part", "tenth", {"data": "photos", "val_split": 0.25, "seed": 1}, (False, True, 24)),
        ("same part", "tenth", {"data": "photos", "val_split": 0.25}, (True, False, 6)),
    ):
        result = run(place, name, source=checkpoint(place, after), **options)
        assert any("was trained on" in note and "before" in note for note in result.notes) == (name == "other part")
        measured = compare([checkpoint(place, name)], str(place / "photos"), CPU)
        assert (measured.held_out, bool(measured.trained_on), measured.images) == expected, name
    run(place, "third", "divided", source=checkpoint(place, "moved"))
    assert len(trainings_of(checkpoint(place, "third"))) == 3
    assert compare([checkpoint(place, "third")], str(place / "photos"), CPU).trained_on


def test_weights_that_a_run_trained_say_what_they_learned_from(place: Path, tmp_path: Path) -> None:
    """Also where they are loaded into a model that is named beside them."""
    file, photos = Path(checkpoint(place, "tenth")), str(place / "photos")
    result = compare(["test_resnet"], photos, CPU, weights=file)
    assert (result.held_out, result.trained_on, result.images) == (True, [], 6)
    assert measured_by_default(["test_resnet"], file)[0] == photos
    convert_to_file("test_resnet", tmp_path / "t.safetensors", weights=file)
    assert trainings_of(str(tmp_path / "t.safetensors")) == trainings_of(str(file)) != ()
    config = tiny(convert=False, epochs=1, size=32, device="cpu", val_split=0.25, seed=1)
    told = tcnn.finetune("test_resnet", photos, config=config, out=tmp_path / "run", weights=file)
    assert any("was trained on" in note and "before" in note for note in told.notes)


@pytest.mark.parametrize("change", [lambda model: model, lambda model: tcnn.convert(model, input_size=(32, 32)).model])
def test_a_model_that_is_loaded_and_saved_again_says_what_it_learned_from(
    place: Path, tmp_path: Path, change: Callable[[nn.Module], nn.Module]
) -> None:
    """Or is converted on the way; what was measured before may not be true of it any more, and is left behind."""
    first, photos = checkpoint(place, "tenth"), str(place / "photos")
    again = tcnn.save(change(tcnn.load(first)), tmp_path / "again.safetensors")
    assert trainings_of(str(again)) == trainings_of(first) != ()
    assert "training" not in read(again).metadata and "metrics" not in read(again).section("learned_from")
    assert compare([str(again)], photos, CPU).held_out
    assert trainings_of(str(tcnn.save(tcnn.load(again), tmp_path / "third.safetensors"))) == trainings_of(first)


def test_a_model_that_is_loaded_and_trained_says_what_it_learned_from_before(place: Path, tmp_path: Path) -> None:
    config = tiny(convert=False, epochs=1, size=32, device="cpu", val_split=0.25, seed=1)
    model = tcnn.load(checkpoint(place, "tenth"))
    result = tcnn.finetune(model, str(place / "photos"), config=config, out=tmp_path / "run")
    assert any("was trained on" in note and "before" in note for note in result.notes)
    assert len(trainings_of(str(result.last))) == 2


def test_models_with_other_parts_are_not_set_side_by_side(place: Path) -> None:
    one, other = checkpoint(place, "tenth"), checkpoint(place, "other")
    with pytest.raises(RequestError, match="were trained on different parts of it; measure them apart, or on images"):
        compare([one, other], str(place / "photos"), CPU)


def test_what_a_run_was_validated_on_is_the_default(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured_by_default([checkpoint(place, "tenth")])[0] == str(place / "photos")
    monkeypatch.chdir(place)
    tcnn.finetune("test_resnet", "photos", config=CONFIG, out="near", pretrained=False)
    assert measured_by_default(["near"])[0] == "photos"
    monkeypatch.chdir(place / "photos")
    assert measured_by_default(["../near"])[0] == str(place / "photos"), "as seen from where the run began"
    assert measured_by_default(["resnet18", checkpoint(place, "elsewhere")])[0] == str(place / "divided")
    with pytest.raises(RequestError, match=r"--data: expected a data set to measure on, for resnet18 does not say"):
        measured_by_default(["resnet18"])
    assert trainings_of("resnet18") == trainings_of(str(place / "tenth" / "config.json")) == ()


def test_modules_are_compared_as_the_runs_that_they_come_from(place: Path) -> None:
    one, other = checkpoint(place, "tenth"), checkpoint(place, "other")
    model = tcnn.load(one).train()
    by_name, found = (tcnn.compare(given, config=CPU, quiet=True) for given in (one, model))
    assert model.training
    assert (found.held_out, found.images, found.data) == (True, 6, str(place / "photos"))
    assert found.rows[0].clean is not None
    assert by_name.rows[0].clean is not None
    assert found.rows[0].clean.top1 == by_name.rows[0].clean.top1
    with pytest.raises(RequestError, match="test_resnet and test_resnet 2 were trained on different parts of it"):
        tcnn.compare([model, tcnn.load(other)], place / "photos", CPU)
    both = tcnn.compare([one, model, tcnn.load(one)], config=CPU, quiet=True)
    assert [row.model for row in both.rows] == [one, "test_resnet", "test_resnet 2"]
    with pytest.raises(RequestError, match="data: expected a data set to measure on, for ResNet does not say"):
        tcnn.compare(_without_a_record(model), config=CPU)


def test_a_run_is_evaluated_by_its_name(place: Path) -> None:
    with pytest.warns(UserWarning, match="learned from 18 of these 24 images"):
        by_name = tcnn.evaluate(Path(checkpoint(place, "tenth")), place / "photos", quiet=True)
    module = tcnn.evaluate(tcnn.load(checkpoint(place, "tenth")), place / "photos", warn=False)
    assert (by_name.top1, by_name.loss) == (module.top1, module.loss)


def _without_a_record(model: nn.Module) -> nn.Module:
    bare = copy.deepcopy(model)
    del bare.training_record
    bare.pretrained_cfg = None  # type: ignore[assignment]
    return bare


def test_in_python_a_model_says_that_it_learned_from_what_it_is_measured_on(place: Path, tmp_path: Path) -> None:
    """By the same rule as on the command line; it was measured without a word."""
    photos = open_dataset(str(place / "photos"), "val")
    learned, held_out = split_off(photos, 0.25, 0)
    mixed = open_dataset(as_mixed_shard(place / "photos", tmp_path / "mixed.tar"), "val")
    turned = open_dataset(str(place / "photos"), "val", class_names=CLASSES[::-1])
    for run, data, said in (
        ("tenth", photos, r"learned from 18 of these 24 images, .* what it has not is split_off\(data, 0.25, 0\)\[1\]"),
        ("tenth", learned, "learned from 18 of these 18 images"),
        ("tenth", turned, "learned from 18 of these 24 images"),
        (
            "tenth",
            mixed,
            "learned from up to 24 of these 24 images, so this tells nothing about others; measure it on others",
        ),
        ("elsewhere", held_out, "learned from 6 of these 6 images"),
    ):
        with pytest.warns(UserWarning, match=said) as told:
            tcnn.evaluate(tcnn.load(checkpoint(place, run)), data)
        assert [one.filename for one in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tcnn.evaluate(tcnn.load(checkpoint(place, "tenth")), held_out)
        tcnn.evaluate(tcnn.load(checkpoint(place, "tenth")), photos, warn=False)
        compare([checkpoint(place, "elsewhere")], str(place / "photos"), CPU)  # its result tells
        tcnn.evaluate(tcnn.load(checkpoint(place, "elsewhere")), open_dataset(str(place / "divided"), "val"))
        model = tcnn.load(checkpoint(place, "tenth"))
        tcnn.finetune(model, str(place / "photos"), config=CONFIG, out=tmp_path / "run")  # has a note of its own


def test_of_a_run_on_an_opened_set_the_data_is_asked_for(place: Path, tmp_path: Path) -> None:
    """Its record has no name by which the images are found again."""
    opened = ImageFolder(str(place / "photos"))
    config = tiny(convert=False, epochs=1, size=32, device="cpu")
    tcnn.finetune("test_resnet", opened, config=config, out=tmp_path / "run", pretrained=False, quiet=True)
    asked = r"expected a data set to measure on, by its name or folder, for .*run was validated on one that was opened"
    with pytest.raises(RequestError, match=f"^data: {asked}"):
        tcnn.compare(tmp_path / "run")
    with pytest.raises(RequestError, match=f"^data: {asked.replace('.*run', 'test_resnet')}"):
        tcnn.compare(tcnn.load(tmp_path / "run"))
    with pytest.raises(RequestError, match=r"^data: expected the name or folder of a data set, found .* ImageFolder;"):
        tcnn.compare(tmp_path / "run", opened)  # type: ignore[arg-type]
    assert tcnn.compare(tmp_path / "run", place / "photos", device="cpu", quiet=True).held_out
