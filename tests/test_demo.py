"""`tcnn demo`: the whole journey, shortened."""

import importlib.util
import json
import signal
import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import pytest
from forked import processes

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.cli.main import main
from tcnn.data.image_set import open_dataset
from tcnn.demo import digits
from tcnn.demo import journey as demo
from tcnn.errors import EnvironmentFailure, OutputError

if importlib.util.find_spec("sklearn") is None:  # to load it takes a second of every test process
    pytest.skip("THE DEMO IS UNTESTED: scikit-learn is not installed", allow_module_level=True)


@pytest.fixture
def kept_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def script(code: str, arguments: list[str]) -> None:
    sys.argv = ["-c", *arguments]
    exec(code, {})


def forked(command: list[str], check: bool) -> None:
    """`python -c …` without the seconds that torch takes to load: a process of its own, forked from one that has it."""
    process = processes.Process(target=script, args=(command[2], command[3:]))
    process.start()
    process.join(300)
    assert check and process.exitcode == 0


@pytest.mark.parametrize("scenes", [(64, 36), pytest.param((1500, 900), marks=pytest.mark.slow)], ids=["few", "all"])
def test_the_journey(
    scenes: tuple[int, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kept_signals: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With few scenes nothing is said of how well they are learned."""
    write = partial(digits.write_scenes, train=scenes[0], held_out=scenes[1])
    monkeypatch.setattr(digits, "write_scenes", write)
    if scenes[0] < 1000:
        forkserver.ensure_running()  # it loads torch while the networks are trained
        monkeypatch.setattr("tcnn.demo.journey.subprocess.run", forked)
    out, epochs = tmp_path / "new" / "demo", "2" if scenes[0] > 1000 else "1"
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--epochs", epochs, "--finetune-epochs", "1", "--out", str(out), "--json"])
    printed, shown = capsys.readouterr()
    assert (ended.value.code, shown) == (0, "")
    result = json.loads(printed)

    assert result["predictions_unchanged"] is True
    assert result["held_out"] == scenes[1]
    source, cnn, converted, tuned = result["rows"]
    names = ["source CNN", "fine-tuned CNN", "converted", "fine-tuned T-CNN"]
    assert [row["model"] for row in result["rows"]] == names
    assert converted["top1"] == source["top1"], "not one prediction changes"
    assert 0 < converted["equivalence_error"] < 1e-5
    assert converted["drift_at_1"] > (1e-4 if scenes[0] < 1000 else 1e-3)
    assert cnn["parameters"] == source["parameters"] < converted["parameters"] == tuned["parameters"]
    gain = result["gain"]
    assert gain["mean"] == pytest.approx(tuned["top1"] - cnn["top1"], abs=1e-6)
    assert gain["low"] < gain["mean"] < gain["high"], "also where the two are right about the same images"
    if scenes == (1500, 900):
        assert source["top1"] > 0.15, "two epochs are enough to do better than chance"
        assert gain["high"] < gain["low"] + 0.12

    kept, fine = Path(result["checkpoint"]), Path(result["run"]) / "last.safetensors"
    assert kept.parent == out
    verification = checkpoint.read(kept).verification
    assert verification is not None and verification.passed
    held_out = open_dataset(str(out / "scenes"), "val", in_chans=1)
    assert len(held_out) == scenes[1]
    for path, row in ((kept, converted), (fine, tuned)):
        model = tcnn.load(path)
        assert sum(parameter.numel() for parameter in model.parameters()) == row["parameters"]
        assert tcnn.evaluate(model, held_out).top1 == pytest.approx(row["top1"], abs=1e-12)
    layers = [layer for layer in model.modules() if isinstance(layer, tcnn.GPSA2d)]
    assert {layer.content_heads for layer in layers} == {demo.CONTENT_HEADS}
    assert all(layer.proj.unflatten(1, (layer.heads, -1))[:, -demo.CONTENT_HEADS :].any() for layer in layers), (
        "learned"
    )


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(EnvironmentFailure, match=r"needs scikit-learn for its images: pip install 'tcnn\[demo\]'"):
        digits._split(0)


def test_scenes_are_the_same_again_and_share_no_scan(tmp_path: Path) -> None:
    digits.write_scenes(tmp_path / "a", 3, 30, 10)
    digits.write_scenes(tmp_path / "b", 3, 30, 10)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.png"))
    assert len(files) == 40
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    scans, labels, train, held_out = digits._split(3)
    assert scans.shape == (1797, 8, 8) and (scans.min(), scans.max()) == (0, 16) and sorted(set(labels)) == [*range(10)]
    assert not set(train) & set(held_out) and len(train) + len(held_out) == 1797


def test_images_of_an_earlier_demo_go(tmp_path: Path) -> None:
    """Also those of classes and numbers that are not drawn again, and those of a demo that was stopped midway."""
    for write in (partial(digits.write_scenes, train=100, held_out=20), digits.write_digits):
        write(tmp_path / "again", 0)
        (tmp_path / "again" / "train" / "0" / ".DS_Store").touch()
        again, alone = write(tmp_path / "again", 1), write(tmp_path / "alone", 1)
        assert [len(one) for one in again] == [len(one) for one in alone]
        found = [
            {path.relative_to(root): path.read_bytes() for path in root.rglob("*.png")}
            for root in (tmp_path / "again", tmp_path / "alone")
        ]
        assert found[0] == found[1]


@pytest.mark.parametrize("name", ["train/beach/00001.png", "train/3/mine.png", "notes.txt"])
def test_files_that_are_not_the_demos_are_neither_removed_nor_learned_from(tmp_path: Path, name: str) -> None:
    digits.write_scenes(tmp_path, 0, 100, 20)
    before = len([*tmp_path.rglob("*.png")])
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(OutputError, match=f"expected nothing but the demo's images, found .*{name}; choose another"):
        digits.write_scenes(tmp_path, 1, 100, 20)
    assert (tmp_path / name).read_bytes() == b"mine"
    assert len([*tmp_path.rglob("*.png")]) == before + name.endswith(".png")
