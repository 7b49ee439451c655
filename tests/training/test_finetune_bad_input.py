"""What cannot be done is one line with the right exit code, before anything is trained, made or removed; so is a
CUDA graph where none can be captured: what they compute is tested on a GPU, in tests/gpu.
"""

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_runs import TwoConvs, colours, run, seeded, tiny

import tcnn
from tcnn.data.image_set import open_dataset
from tcnn.errors import OutputError, RequestError, TcnnError, WeightsError
from tcnn.training.distributed import Processes
from tcnn.training.preparing.inputs import training_loader
from tcnn.training.preparing.prepare import prepare
from tcnn.training.preparing.settings import check_run
from tcnn.training.runs.rundir import RunDirectory
from tcnn.training.updates.cuda_graph import check_graph

RUN = "out"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("colours"))


def refused(model: Any, data: Any, place: Path, code: int = 2, **options: Any) -> str:
    """The one line; nothing was made."""
    before = sorted(place.rglob("*"))
    with pytest.raises(TcnnError) as caught:
        run(model, data, place / RUN, **options)
    message = str(caught.value)
    assert caught.value.exit_code == code
    assert "\n" not in message
    assert len(message) < 600
    assert sorted(place.rglob("*")) == before
    return message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"batch_size": 26},
            "batch_size: 26 is more than the data set's 24 training images; give --batch-size 24 or less",
        ),
        ({"opt": "adamx"}, "opt: 'adamx' is no optimizer that timm can make here"),
        ({"auto_augment": "strong"}, "timm cannot make the transforms"),
        ({"tensorboard": True}, "tensorboard: not installed"),
        ({"teacher": "source"}, "teacher: expected 3 classes, as the data set has, found 1000; choose a teacher"),
        pytest.param({"teacher": "resnet5"}, "resnet5: no timm model of this name", marks=pytest.mark.slow),
        ({"val": "nosuch", "val_split": None}, "nosuch: no such data set"),
        ({"conversion": {"target": "nothing"}}, "nothing"),
        ({"conversion": {"stage": 9}}, "stage"),
    ],
)
def test_settings(data: Path, tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    if "tensorboard" in options and find_spec("tensorboard"):
        pytest.skip("NOT TESTED: TensorBoard is installed here")
    code = 4 if "tensorboard" in options else 2
    model = "test_resnet" if options.keys() & {"teacher", "conversion"} else seeded(TwoConvs)
    assert expected in refused(model, data, tmp_path, code, **options)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("resnet5", "resnet5"),
        ("test_vit", "no k×k convolution to convert"),
        ("missing.safetensors", "expected a tcnn checkpoint, found nothing"),
        ("local-dir:nowhere", "expected a directory with config.json"),
    ],
)
def test_models(data: Path, tmp_path: Path, model: str, expected: str) -> None:
    assert expected in refused(model, data, tmp_path, size=160)


def test_a_checkpoint_of_another_kind(data: Path, tmp_path: Path) -> None:
    save_file(seeded(TwoConvs).state_dict(), tmp_path / "w.safetensors")
    assert "not written by tcnn" in refused(tmp_path / "w.safetensors", data, tmp_path)


def test_weights_of_another_model(data: Path, tmp_path: Path) -> None:
    save_file(seeded(TwoConvs).state_dict(), tmp_path / "w.safetensors")
    message = refused("test_resnet", data, tmp_path, weights=tmp_path / "w.safetensors")
    assert "does not fit test_resnet" in message


def test_weights_that_are_not_there(data: Path, tmp_path: Path) -> None:
    """A plan says so before the run does; one that is resumed has them in its resume point."""
    for ask in (tcnn.plan, tcnn.finetune):
        with pytest.raises(WeightsError, match=r"w\.pth: expected a weights file, found nothing"):
            ask("test_resnet", data, weights=str(tmp_path / "w.pth"))
    check_run("test_resnet", weights=tmp_path / "w.pth", resume=True)


def test_stochastic_depth_where_there_is_none(data: Path, tmp_path: Path) -> None:
    message = refused("dla46_c", data, tmp_path, drop_path=0.1, convert=False)
    assert message == "drop_path: dla46_c has no stochastic depth; set drop_path to 0"


def test_a_t_cnn_without_attention(data: Path, tmp_path: Path) -> None:
    tcnn.save(tcnn.convert(seeded(TwoConvs)).model, tmp_path / "t.safetensors")
    assert "timm does not know" in refused(tmp_path / "t.safetensors", data, tmp_path, convert=False)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        ("nothing", "no such data set"),
        ("empty", "expected a folder of images for every class, found nothing"),
        ("flat", "found 1 image that lies in no class folder"),
        ("empty class", "no images in class folder violet; fill it or remove it"),
        ("one each", "no class has two images, so none can be held out"),
        (
            "only train",
            "has no split 'validation'; it has train; to validate on, hold a part of the training images out",
        ),
    ],
)
def test_data_sets(tmp_path: Path, make: str, expected: str) -> None:
    root = tmp_path / "data"
    options: dict[str, Any] = {}
    if make != "nothing":
        root.mkdir()
    if make == "flat":
        (colours(tmp_path / "other", 1, ("red",)) / "red" / "0.png").rename(root / "0.png")
    if make == "empty class":
        (colours(root, 3) / "violet").mkdir()
    if make == "one each":
        colours(root, 1)
        options = {"batch_size": 2}
    if make == "only train":
        colours(root / "train", 3)
        options = {"val_split": None}
    assert expected in refused("test_resnet", root, tmp_path, **options)


def test_a_validation_set_of_other_classes(data: Path, tmp_path: Path) -> None:
    val = colours(tmp_path / "val", 2, ("red", "gray"))
    assert "unknown class gray" in refused("test_resnet", data, tmp_path, val=str(val), val_split=None)


def test_a_device_that_is_not_there(data: Path, tmp_path: Path) -> None:
    assert "--device cuda:77: not usable here" in refused("test_resnet", data, tmp_path, 4, device="cuda:77")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_in_another_dtype(data: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    message = refused(seeded(TwoConvs).to(dtype), data, tmp_path)
    found = str(dtype).removeprefix("torch.")
    assert message.startswith(f"TwoConvs: expected weights in float32 to fine-tune, found stem.weight in {found}; give")


def test_a_teacher_needs_to_know_how_images_are_normalised(data: Path, tmp_path: Path) -> None:
    message = refused(seeded(TwoConvs), data, tmp_path, teacher="source", size=16)
    assert message.startswith("teacher: TwoConvs has no pretrained_cfg")


def test_bad_requests_do_not_cost_the_run_that_is_replaced(data: Path, tmp_path: Path) -> None:
    run(seeded(TwoConvs), data, tmp_path / RUN, epochs=1, size=16)
    before = {path: path.read_bytes() for path in (tmp_path / RUN).rglob("*") if path.is_file()}
    for options in ({"opt": "adamx"}, {"auto_augment": "strong"}, {"batch_size": 26}):
        refused(seeded(TwoConvs), data, tmp_path, force=True, size=16, **options)
    assert "holds a run already" in refused(seeded(TwoConvs), data, tmp_path, size=16)
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_is_not_replaced_by_one_that_needs_its_models(data: Path, tmp_path: Path) -> None:
    """It was removed first, and the new run could neither be resumed nor compared with what it began with."""
    out, best, link = tmp_path / RUN, tmp_path / RUN / "best.safetensors", tmp_path / "link"
    run(seeded(TwoConvs), data, out, epochs=1, size=16)
    (out / "baseline").mkdir()
    beside = shutil.copy(best, out / "baseline" / "last.safetensors")
    link.symlink_to(out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    begun: list[tuple[Any, dict[str, Any]]] = [(model, {}) for model in (str(out), out, best, beside, link)]
    for model, options in (*begun, ("test_resnet", {"weights": best}), ("test_resnet", {"teacher": str(out)})):
        message = refused(model, data, tmp_path, force=True, size=16, **options)
        assert message.startswith(f"{out}: cannot be replaced, as the new run needs "), (model, options)
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(OutputError, match="needs local-dir:"):
        RunDirectory(out).check(force=True, needed=[f"local-dir:{out}"])
    RunDirectory(tmp_path / "other").check(force=True, needed=[best])


def test_out_is_a_file(data: Path, tmp_path: Path) -> None:
    (tmp_path / RUN).write_text("")
    assert "expected a directory for the run, found a file" in refused("test_resnet", data, tmp_path)


def test_out_has_a_name_that_is_too_long(data: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r": cannot be used as a directory \(file name too long\); choose another"):
        RunDirectory(tmp_path / ("x" * 300)).check(force=False)


def test_mixup_needs_pairs_on_every_device(data: Path) -> None:
    config = tiny(mixup=0.8, batch_size=6)
    images = open_dataset(str(data))
    start = prepare(seeded(TwoConvs), config, images.class_names)
    with pytest.raises(RequestError, match="mixup needs an even number on each of 2 devices, found 6 over all of them"):
        training_loader(start, images, config, Processes(0, 2), torch.device("cpu"))
    assert training_loader(start, images, config, Processes(0, 3), torch.device("cpu")).share == 2


@pytest.mark.parametrize(("mixup", "devices", "largest"), [(0.0, 1, 30), (0.8, 1, 30), (0.0, 4, 28), (0.8, 7, 28)])
def test_the_batch_that_is_proposed_is_taken(data: Path, mixup: float, devices: int, largest: int) -> None:
    """The largest that can be had, and the example; one more of a device's share is refused again."""
    images, of_all = open_dataset(str(data)), Processes(0, devices)
    start = prepare(seeded(TwoConvs), tiny(), images.class_names)

    def taken(batch: int) -> int:
        config = tiny(mixup=mixup, batch_size=batch)
        return training_loader(start, images, config, of_all, torch.device("cpu")).steps

    with pytest.raises(RequestError, match="is more than the data set's 30 training images") as caught:
        taken(10 * largest)
    said = re.search(r"--batch-size (\d+) or less.*; with (\d+), an epoch has (\d+) updates?$", str(caught.value))
    assert said is not None
    allowed, example, updates = map(int, said.groups())
    assert (allowed, taken(allowed)) == (largest, 1)
    assert taken(example) == updates
    with pytest.raises(RequestError):
        taken(largest + devices * (2 if mixup else 1))
    with pytest.raises(RequestError, match="a batch has at least 32 here; give more images"):
        training_loader(start, images, tiny(batch_size=64), Processes(0, 32), torch.device("cpu"))


def test_without_a_gpu_it_says_so_before_anything_is_written(tmp_path: Path) -> None:
    config = tiny(cuda_graph=True)
    with pytest.raises(RequestError, match=r"^cuda_graph: expected a GPU, found device cpu; leave it out$"):
        tcnn.finetune(TwoConvs(), str(colours(tmp_path / "data")), config=config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_processes_are_refused() -> None:
    check_graph(torch.device("cuda"), 1)
    with pytest.raises(RequestError, match=r"^cuda_graph: expected one process, found 2; leave it out$"):
        check_graph(torch.device("cuda"), 2)


@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({"compile": True}, "compile"),
        ({"amp": "float16"}, "amp=float16"),
        ({"matching": 0.5, "anneal": "warmup"}, "matching"),
    ],
    ids=str,
)
def test_it_is_not_combined_with_what_it_cannot_hold(options: dict[str, object], other: str) -> None:
    with pytest.raises(RequestError, match=f"cuda_graph: cannot be combined with {other}; choose one of them"):
        tiny(cuda_graph=True, **options)
