"""What a model learned from before its last training counts: under another name, in grey, of more or fewer images."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
from data_pictures import as_mixed_shard, draw_classes, latin_tar
from tiny_runs import tiny

import tcnn
from tcnn.config.evaluation import EvaluationConfig
from tcnn.data.image_set import ImageSet, class_balanced, open_dataset, split_off
from tcnn.errors import RequestError
from tcnn.evaluation.comparing.comparison import compare
from tcnn.evaluation.held_out import trainings_of, unseen

CPU = EvaluationConfig(device="cpu")
CLASSES = ["ant", "bee", "cat"]
SHARE = 0.25


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that held a quarter of `photos` beside it out."""
    root = tmp_path_factory.mktemp("before")
    draw_classes(root / "photos", CLASSES, 8)
    return train("test_resnet", root / "photos", root / "first")


def train(
    source: str | Path,
    data: str | Path | ImageSet,
    out: Path,
    say: Callable[[str], None] | None = None,
    **options: object,
) -> Path:
    config = tiny(**{"convert": False, "epochs": 1, "size": 32, "device": "cpu", "val_split": SHARE, **options})
    given = data if isinstance(data, ImageSet) else str(data)
    result = tcnn.finetune(str(source), given, config=config, out=out, pretrained=False, quiet=say is None, say=say)
    return Path(result.last)


def measured(model: Path, data: str | Path, split: str = "val") -> tuple[bool, bool, int]:
    """Whether a held-out part was measured, whether the model is told to have learned from it, how many images."""
    found = compare([str(model)], str(data), CPU.model_copy(update={"split": split}), quiet=True)
    return found.held_out, found.trained_on == [str(model)], found.images


@pytest.mark.parametrize(
    ("copied", "options", "expected"),
    [
        (shutil.copytree, {"seed": 1}, (False, True, 24)),
        pytest.param(shutil.copytree, {"val_split": 0.5}, (False, True, 24), marks=pytest.mark.slow),
        (shutil.copytree, {}, (True, False, 6)),
        (as_mixed_shard, {}, (False, True, 24)),
    ],
)
def test_under_another_name(
    first: Path, tmp_path: Path, copied: Callable[[Path, Path], str | Path], options: dict[str, object],
    expected: tuple[bool, bool, int],
) -> None:  # fmt: skip
    """It was the name alone that told, if one training had it: what another had learned from was called held out."""
    photos = first.parent.parent / "photos"
    copy = copied(photos, tmp_path / "copy.tar")
    again = train(first, copy, tmp_path / "again", **options)
    assert measured(again, copy) == measured(again, photos) == expected
    with pytest.warns(UserWarning, match=f"learned from {'18' if expected[0] else '(up to )?24'} of these 24 images"):
        tcnn.evaluate(tcnn.load(again), open_dataset(str(photos), "val"), quiet=True)


def test_a_set_of_the_same_name_that_has_grown(first: Path, tmp_path: Path) -> None:
    """Others are held out of it by the same seed, which the model has learned from."""
    photos = tmp_path / "photos"
    shutil.copytree(first.parent.parent / "photos", photos)
    own = train("test_resnet", photos, tmp_path / "own")
    assert measured(own, photos) == (True, False, 6)
    draw_classes(photos, CLASSES, 9)
    assert measured(own, photos) == (False, True, 27)
    again = train(own, photos, tmp_path / "again")
    copy = shutil.copytree(photos, tmp_path / "copy")
    assert measured(again, photos) == measured(again, copy) == (False, True, 27)


def test_a_split_that_is_a_folder_of_its_own_elsewhere(tmp_path: Path) -> None:
    """Learned from as such, it is no part that training has seen nothing of."""
    for split, number in (("train", 0), ("val", 50)):
        draw_classes(tmp_path / "divided" / split, CLASSES, 4, number)
    copy = shutil.copytree(tmp_path / "divided" / "val", tmp_path / "copy")
    run = train("test_resnet", copy, tmp_path / "run")
    assert measured(run, tmp_path / "divided") == measured(run, copy) == (True, False, 3)
    assert measured(run, tmp_path / "divided", "train") == (False, False, 12)


def test_images_that_were_seen_in_grey(first: Path, tmp_path: Path) -> None:
    """They have other fingerprints, by which a copy was not known."""
    photos = first.parent.parent / "photos"
    copy = shutil.copytree(photos, tmp_path / "copy")
    config = tiny(convert=False, epochs=1, size=32, device="cpu", val_split=SHARE)
    module = timm.create_model("test_resnet", in_chans=1)
    run = Path(tcnn.finetune(module, str(photos), config=config, out=tmp_path / "run", quiet=True).last)
    assert measured(run, photos) == measured(run, copy) == (True, False, 6)


def test_names_of_another_encoding(first: Path, tmp_path: Path) -> None:
    """All images had one name, so all were measured as held out."""
    archive = latin_tar(first.parent.parent / "photos", tmp_path)
    assert measured(train("test_resnet", archive, tmp_path / "run"), archive) == (True, False, 6)


def files_of(data: ImageSet) -> set[str]:
    return {data.filename(place) for place in range(len(data))}


def test_classes_that_were_numbered_in_another_order(first: Path, tmp_path: Path) -> None:
    """It is by their numbers that a part is drawn: half of what was called held out had been learned from."""
    photos = str(first.parent.parent / "photos")
    turned = open_dataset(photos, class_names=CLASSES[::-1])
    held_out = split_off(turned, SHARE, 0)[1]
    other = train("test_resnet", turned, tmp_path / "other")
    assert files_of(held_out) != files_of(split_off(open_dataset(photos), SHARE, 0)[1])
    assert measured(other, photos) == (True, False, 6)
    mask = unseen([str(other)], photos, lambda: open_dataset(photos)).mask
    assert mask is not None and files_of(open_dataset(photos).subset(mask)) == files_of(held_out)
    with pytest.raises(RequestError, match="were trained on different parts of it"):
        compare([str(first), str(other)], photos, CPU, quiet=True)
    said = r"has learned from 18 of these 24 images, .* where data has the class_names of the training set$"
    with pytest.warns(UserWarning, match=said):
        tcnn.evaluate(tcnn.load(other), open_dataset(photos), quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tcnn.evaluate(tcnn.load(other), held_out, quiet=True)


def test_another_order_of_the_classes_in_the_next_training(first: Path, tmp_path: Path) -> None:
    """The part that is held out then, the model has learned from."""
    photos = str(first.parent.parent / "photos")
    said: list[str] = []
    again = train(first, open_dataset(photos, class_names=CLASSES[::-1]), tmp_path / "again", say=said.append)
    assert [line for line in said if "with another part held out or none" in line]
    assert measured(again, photos) == (False, True, 24)
    assert [one.class_names for one in trainings_of(str(again))] == [CLASSES[::-1], CLASSES]


@pytest.mark.parametrize(
    "part_of", [lambda data: data.subset(range(0, 24, 2)), lambda data: class_balanced(data, 0.5, 3)]
)
def test_a_part_that_was_chosen_in_python(first: Path, tmp_path: Path, part_of: Callable[[ImageSet], ImageSet]) -> None:
    """It was recorded as if it were the whole set, of which another part was then called held out."""
    photos = str(first.parent.parent / "photos")
    part = part_of(open_dataset(photos))
    run = train("test_resnet", part, tmp_path / "run")
    assert measured(run, photos) == (False, True, 24)
    assert compare([str(run)], photos, CPU, quiet=True).part_lost == [str(run)]
    model, (learned, held_out) = tcnn.load(run), split_off(part_of(open_dataset(photos)), SHARE, 0)
    for data, said in (
        (open_dataset(photos), "up to 24 of these 24 images"),
        (part_of(open_dataset(photos)), "9 of these 12 images"),
        (learned.subset([1, 2]), "2 of these 2 images"),
    ):
        with pytest.warns(UserWarning, match=f"has learned from {said}"):
            tcnn.evaluate(model, data, quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tcnn.evaluate(model, held_out, quiet=True)


def test_a_run_goes_on_with_the_part_that_it_began_with(first: Path, tmp_path: Path) -> None:
    """Another one of as many images was taken for it."""
    photos = open_dataset(str(first.parent.parent / "photos"))
    even, odd = (photos.subset(range(begin, 24, 2)) for begin in (0, 1))
    train("test_resnet", even, tmp_path / "run")
    config = tiny(convert=False, epochs=1, size=32, device="cpu", val_split=SHARE)
    with pytest.raises(
        RequestError, match=r"other settings \(images in the data set: another class, file name, order or part"
    ):
        tcnn.finetune(
            "test_resnet", odd, config=config, out=tmp_path / "run", pretrained=False, resume=True, quiet=True
        )
    again = photos.subset(range(0, 24, 2))
    tcnn.finetune("test_resnet", again, config=config, out=tmp_path / "run", pretrained=False, resume=True, quiet=True)


def test_parts_that_share_images(first: Path, tmp_path: Path) -> None:
    photos = open_dataset(str(first.parent.parent / "photos"))
    config = tiny(convert=False, epochs=1, size=32, device="cpu", val_split=None)
    for begin, shared in ((12, 4), (16, 0)):
        parts = photos.subset(range(16)), photos.subset(range(begin, 24))
        result = tcnn.finetune(
            "test_resnet", *parts, config=config, out=tmp_path / str(begin), pretrained=False, quiet=True
        )
        noted = [note for note in result.notes if f"{shared} of 12 validation images are also training images" in note]
        assert (result.val_trained_on, len(noted)) == (shared, shared > 0)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            tcnn.evaluate(tcnn.load(result.last), parts[1].subset([1, 2]), quiet=True)
        assert ["has learned from up to 2 of these 2" in str(one.message) for one in said] == [True] * (shared > 0)
