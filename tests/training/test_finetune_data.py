"""The images of a run: where they come from, how crops are resized, and those that cannot be read."""

import json
import shutil
from pathlib import Path

import pytest
import timm
import torch
from data_pictures import as_mixed_shard, as_tar, draw, draw_classes, plain_transform
from PIL import Image
from timm.models import save_for_hf
from tiny_runs import COLOURS, TwoConvs, colours, run, seeded, tiny
from torchvision.datasets import ImageFolder

import tcnn
from tcnn.data.image_set import open_dataset, split_off
from tcnn.errors import RequestError
from tcnn.models.trace import input_settings, input_shape
from tcnn.training.distributed import Processes
from tcnn.training.finetune import finetune
from tcnn.training.preparing.inputs import data_sets, open_data_sets, training_loader
from tcnn.training.preparing.prepare import in_chans, prepare
from tcnn.training.record import trained_on_too
from tcnn.training.runs.callbacks import Progress
from tcnn.training.runs.rundir import RunDirectory


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("colours"))


@pytest.mark.parametrize(
    ("ways", "choice"),
    [
        (["BICUBIC"], {}),
        (["BILINEAR"], {"train_interpolation": "bilinear"}),
        (["BICUBIC", "BILINEAR"], {"train_interpolation": "random"}),
    ],
)
def test_how_crops_are_resized(tmp_path: Path, ways: list[str], choice: dict[str, str]) -> None:
    """A crop that is the whole image, against Pillow's own resizing."""
    for number in range(16):
        draw(tmp_path / "ab"[number % 2] / f"{number}.png", number, width=24, height=24)
    images = open_dataset(str(tmp_path))
    config = tiny(batch_size=16, scale=(1, 1), ratio=(1, 1), hflip=0, **choice)
    start = prepare(seeded(lambda: TwoConvs(2)), config, images.class_names)
    (batch,) = training_loader(start, images, config, Processes(), torch.device("cpu")).epoch(0)
    settings = input_settings(start.model)
    plain = {
        way: plain_transform(size=(32, 32), crop_pct=1, interpolation=way.lower(), mean=settings["mean"],
                                  std=settings["std"])
        for way in ("BICUBIC", "BILINEAR")
    }  # fmt: skip
    expected = {way: [transform(images.load(i)[0]) for i in range(16)] for way, transform in plain.items()}
    used = [
        [way for way, others in expected.items() if any(image.equal(other) for other in others)]
        for image in batch.images
    ]
    assert all(len(found) == 1 for found in used)
    assert sorted({found[0] for found in used}) == ways


@pytest.mark.parametrize("packed", [False, True])
def test_validation_images_that_are_training_images(
    tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of them, under other names; it was noted where all of them are."""
    learned, val = draw_classes(tmp_path / "learned", "ab", 8), draw_classes(tmp_path / "val", "ab", 4, first=50)
    for number in (1, 3):
        shutil.copy(learned / "a" / f"{number}.jpg", val / "b" / f"copy {number}.jpg")
    (val / "a" / "linked.jpg").hardlink_to(learned / "b" / "5.jpg")
    for empty in (learned / "a" / "empty.jpg", val / "a" / "none.jpg"):
        empty.touch()  # these have the same bytes as well
    longer = (val / "b" / "50.jpg").read_bytes()
    (learned / "a" / "as long.jpg").write_bytes(longer[:-1] + b"\0")
    given = as_tar(val) if packed else str(val)
    network = seeded(lambda: TwoConvs(2))
    result = run(network, learned, tmp_path / "run", val=given, epochs=1, val_split=None, quiet=True)
    assert result.val_trained_on == 3
    (note,) = (note for note in result.notes if "validation images" in note)
    assert note.startswith("3 of 12 validation images are also training images, such as ")
    assert Path(note.partition("such as ")[2].partition(": ")[0]).name == "linked.jpg"

    whole, other = open_dataset(str(learned)), open_dataset(given)
    assert trained_on_too(*split_off(whole, 0.2, 0)) == [], "parts of one set"
    assert trained_on_too(whole, open_dataset(draw_classes(tmp_path / "others", "ab", 2, first=70))) == []
    monkeypatch.setattr("tcnn.training.record.COMPARED", 10)
    assert trained_on_too(whole, other) is None
    assert trained_on_too(whole.subset(range(12)), whole.subset([14, 3, 15, 11])) == [1, 3], "no file is read"


def test_paths_are_data_sets_as_well(data: Path, tmp_path: Path) -> None:
    """A validation set that was named by one was passed over for the default."""
    val = colours(tmp_path / "val", 4)
    result = tcnn.finetune(seeded(TwoConvs), data, val, config=tiny(epochs=1, val_split=None), out=tmp_path / "run")
    assert (result.train_images, result.val_images) == (30, 12)
    record = RunDirectory(tmp_path / "run").record()
    assert (record["data"], record["val"]) == (str(data), str(val))
    for given, what in (({"data": 5}, "data"), ({"data": data, "val": [data]}, "val")):
        with pytest.raises(RequestError, match=rf"^{what}: expected the name of a data set, .* found "):
            tcnn.finetune(seeded(TwoConvs), **given, config=tiny(), out=tmp_path / "other")


def test_half_of_the_data_twice_as_often(data: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    result = run(seeded(TwoConvs), data, tmp_path / "run", fraction=0.5, batch_size=6, epochs=1, report=seen.append)
    assert (result.train_images, result.epochs, result.updates) == (12, 2, 4)
    assert result.val_images == 6, "of the whole set"
    assert seen[-1].percent == 100
    assert RunDirectory(tmp_path / "run").record()["config"]["epochs"] == 1, "as it was asked for"


def test_a_validation_set_of_its_own(data: Path, tmp_path: Path) -> None:
    """One class is missing in it; the indices stay."""
    val = colours(tmp_path / "val", 4, ("green", "red"))
    result = run(seeded(TwoConvs), data, tmp_path / "run", val=str(val), val_split=None, epochs=1)
    assert (result.train_images, result.val_images, result.classes) == (30, 8, 3)


def test_a_validation_set_that_was_opened_in_another_order(data: Path, tmp_path: Path) -> None:
    """It was scored by the numbers of its own classes; one that lacks a class was refused after the first epoch."""
    train = open_dataset(str(data), class_names=COLOURS[::-1])
    own = colours(tmp_path / "own", 4, ("green", "red"))
    for val in (own, open_dataset(str(own)), ImageFolder(str(own))):
        _, opened, _ = open_data_sets(*data_sets(train, val), tiny())
        assert opened.class_names == train.class_names == COLOURS[::-1]
        names = [Path(opened.filename(place)).parent.name for place in range(len(opened))]
        assert [COLOURS[::-1][target] for target in opened.targets] == names == ["green"] * 4 + ["red"] * 4
    pink = open_dataset(str(colours(tmp_path / "more", 1, ("green", "pink"))))
    with pytest.raises(RequestError, match=r"^val: unknown class pink; it must have classes that were trained \(3 of"):
        run(seeded(TwoConvs), train, tmp_path / "run", val=pink, val_split=None)
    assert open_data_sets(train, pink.subset([0]), tiny())[1].targets.tolist() == [COLOURS[::-1].index("green")]


def test_split_folders_and_opened_sets(data: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    colours(both / "train")
    colours(both / "val", 2)
    result = run(seeded(TwoConvs), both, tmp_path / "a", val_split=None, epochs=1)
    assert (result.train_images, result.val_images) == (30, 6)
    train, held_out = split_off(open_dataset(str(data)), 0.2, seed=0)
    result = run(seeded(TwoConvs), train, tmp_path / "b", val=held_out, val_split=None, epochs=1, size=16)
    assert (result.train_images, result.val_images) == (24, 6)
    with pytest.raises(tcnn.errors.CheckpointError, match="timm does not know"):
        tcnn.load(result.best)


def spoil(root: Path, names: list[str]) -> list[str]:
    for name in names:
        (root / name).write_bytes(b"no image")
    return [str(root / name) for name in names]


def test_unreadable_images_are_told_once(tmp_path: Path) -> None:
    root = colours(tmp_path / "data")
    bad = spoil(root, ["blue/3.png", "red/0.png", "green/9.png"])
    said: list[str] = []
    result = run(seeded(TwoConvs), root, tmp_path / "run", say=said.append, max_unreadable=3)
    assert sorted(result.unreadable) == sorted(bad)
    assert sorted(line for line in said if "unreadable" in line) == sorted(f"unreadable, left out: {n}" for n in bad)
    assert result.updates == 6


def test_too_many_unreadable_images(tmp_path: Path) -> None:
    root = colours(tmp_path / "data")
    spoil(root, ["blue/3.png", "red/0.png", "green/9.png"])
    with pytest.raises(RequestError, match=r"3 images are unreadable, at most 2 may be \(max_unreadable\); the first"):
        run(seeded(TwoConvs), root, tmp_path / "run", max_unreadable=2)


def test_unreadable_images_of_the_validation_count_all(data: Path, tmp_path: Path) -> None:
    """An evaluation names twenty and counts them all."""
    val = colours(tmp_path / "val", 11)
    spoil(val, [f"{name}/{number}.png" for name in ("blue", "red", "green") for number in range(10)])
    with pytest.raises(RequestError, match="30 images are unreadable, at most 25 may be"):
        run(seeded(TwoConvs), data, tmp_path / "run", val=str(val), val_split=None, epochs=1, max_unreadable=25)
    result = run(seeded(TwoConvs), data, tmp_path / "other", val=str(val), val_split=None)
    rows = RunDirectory(tmp_path / "other").rows("epoch")
    assert ([row["unreadable"] for row in rows], len(result.unreadable), result.unreadable_count) == ([30, 30], 20, 30)
    assert "30 images could not be read" in str(result)


def test_images_of_every_shape_and_mode(tmp_path: Path) -> None:
    root = colours(tmp_path / "data", 8)
    for place, (mode, size) in enumerate([("L", (3, 90)), ("RGBA", (90, 3)), ("P", (1, 1)), ("CMYK", (33, 31))]):
        suffix = "jpg" if mode == "CMYK" else "png"
        Image.new(mode, size, 0).save(root / "red" / f"odd{place}.{suffix}")
    assert run(seeded(TwoConvs), root, tmp_path / "run", epochs=1).unreadable == []


def test_without_a_validation_set_a_tenth_is_held_out_and_said(tmp_path: Path) -> None:
    data = colours(tmp_path / "data")
    result = run(seeded(TwoConvs), data, tmp_path / "run", val_split=None, epochs=1)
    assert (result.train_images, result.val_images) == (27, 3)
    assert result.notes[0] == "no validation split, so 10% of the images of every class are held out"
    record = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert record["config"]["val_split"] == 0.1, "so that `tcnn evaluate` finds the same images, and --resume"
    again = run(seeded(TwoConvs), data, tmp_path / "run", val_split=None, epochs=1, resume=True)
    assert again.updates == result.updates


@pytest.mark.slow
def test_a_grey_model(tmp_path: Path) -> None:
    source = timm.create_model("test_resnet", in_chans=1, num_classes=3)
    result = run(source, colours(tmp_path / "colours", images=4), tmp_path / "run", epochs=1)
    assert tcnn.load(result.best).pretrained_cfg["input_size"][0] == 1


@pytest.mark.parametrize("convert", [False, True])
def test_a_grey_model_in_a_directory_of_timms(tmp_path: Path, convert: bool) -> None:
    """It was given images in colour, which ended in its first convolution."""
    grey, place = timm.create_model("test_resnet", in_chans=1, num_classes=3), tmp_path / "grey"
    if convert:
        tcnn.save_directory(tcnn.convert(grey, input_size=(32, 32)).model, place)
    else:
        save_for_hf(grey, place, safe_serialization=True, model_args={"in_chans": 1})
    train, _, _ = open_data_sets(str(colours(tmp_path / "colours")), None, tiny(), in_chans(f"local-dir:{place}"))
    assert train.mode == "L"
    begun = prepare(f"local-dir:{place}", tiny(), train.class_names).model
    assert input_shape(begun, (32, 32)) == (1, 32, 32)
    assert [in_chans(name) for name in ("t_test_resnet", "test_resnet.r160_in1k", "timm/test_resnet")] == [3] * 3


def test_validation_images_that_are_the_training_images_are_noted(data: Path, tmp_path: Path) -> None:
    """Under another name, in another order, and with other names of files, too, as `tcnn evaluate` says it."""
    copy, apart = shutil.copytree(data, tmp_path / "copy"), colours(tmp_path / "apart", images=11)
    renamed, mixed = shutil.copytree(data, tmp_path / "renamed"), as_mixed_shard(data, tmp_path / "0.tar")
    for file in list(renamed.glob("*/*")):
        file.rename(file.with_name(f"z{file.name}"))
    for val, noted in ((data, True), (copy, True), (mixed, True), (renamed, True), (apart, False)):
        result = run(seeded(TwoConvs), data, tmp_path / "run", val=str(val), val_split=None, epochs=1, force=True)
        said = [note for note in result.notes if note.startswith("the images that it is validated on are those that ")]
        assert len(said) == noted, val


def test_a_data_set_that_has_grown_is_refused(tmp_path: Path) -> None:
    """Another part of it would be held out, with images that the run has learned from."""
    own = colours(tmp_path / "own")
    run(seeded(TwoConvs), own, tmp_path / "run", epochs=1)
    colours(own, images=11)
    with pytest.raises(RequestError, match=r"other settings \(images in the data set: 30 → 33\); give the same ones"):
        run(seeded(TwoConvs), own, tmp_path / "run", epochs=1, resume=True)
    said: list[str] = []
    run(seeded(TwoConvs), own, tmp_path / "run", epochs=1, resume=True, allow_changes=True, say=said.append)
    assert "changed: images in the data set: 30 → 33" in said


def test_a_data_set_of_which_images_were_exchanged_is_noted(tmp_path: Path) -> None:
    """As many as before, so that the same places are held out, where now stands what the run has learned from."""
    own = colours(tmp_path / "own")
    said: list[str] = []
    run(seeded(TwoConvs), own, tmp_path / "run", epochs=1)
    run(seeded(TwoConvs), own, tmp_path / "run", epochs=1, resume=True, say=said.append)
    assert not [line for line in said if "images are others" in line]
    first, *_, last = sorted(own.rglob("*.png"))
    first.write_bytes(last.read_bytes())
    run(seeded(TwoConvs), own, tmp_path / "run", epochs=1, resume=True, say=said.append)
    assert len([line for line in said if line.startswith("note: the images are others")]) == 1


@pytest.mark.parametrize("kind", ["folder", "wds"])
@pytest.mark.parametrize("seen_from", ["there", "here"])
def test_a_run_goes_on_from_another_working_directory(
    kind: str, seen_from: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its data as they were called there, or as they are called here; neither was found, or taken for the same."""
    there = shutil.copytree(data, tmp_path / "there" / "photos").parent
    (there / "shards").mkdir()
    as_mixed_shard(data, there / "shards" / "0.tar")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(there)
    name = {"folder": "photos", "wds": "wds/shards"}[kind]
    run(seeded(TwoConvs), name, tmp_path / "run", epochs=1)
    monkeypatch.chdir(tmp_path / "elsewhere")
    if seen_from == "here":
        name = {"folder": "../there/photos/", "wds": "wds/../there/shards"}[kind]
    said: list[str] = []
    result = run(seeded(TwoConvs), name, tmp_path / "run", epochs=1, resume=True, say=said.append)
    assert result.epochs == 1 and "the run is finished already" in said
    assert not [line for line in said if line.startswith("changed")]


def test_what_is_known_by_other_names_tells_no_path(data: Path, tmp_path: Path) -> None:
    """As the service trains: what it gives out of a run must not say where it lies."""
    names = {"model": "ckpt_1", "data": "ds_1"}
    finetune(seeded(TwoConvs), str(data), config=tiny(epochs=1), out=tmp_path / "run", pretrained=False, names=names)
    told = (tmp_path / "run" / "config.json").read_text()
    assert '"ds_1"' in told
    assert not [place for place in (tmp_path, data, Path.cwd()) if str(place) in told]
