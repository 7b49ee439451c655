"""What is said to a caller in Python names its arguments, and no option of the command line."""

import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from nets import PlainNet
from pydantic import BaseModel
from tiny_runs import TwoConvs, colours, tiny
from torch import Tensor

import tcnn
from tcnn.analysis.pages.page import FILTERS
from tcnn.checkpoints import hub
from tcnn.checkpoints.checkpoint import save
from tcnn.cli.commands.checkpoints import info
from tcnn.config import FinetuneConfig
from tcnn.errors import OutOfMemoryError, OutputError, RequestError, TcnnError
from tcnn.folding.degenerate import nothing_left, nothing_to_prune
from tcnn.formatting import are, plural, share, some
from tcnn.planning.report import PlannedMemory, short_of_memory
from tcnn.wording import asked_in_python, in_python
from tcnn_jobs.cli.watch import event_line


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("go on with it (--resume), replace it (--force), or choose another --out",
         "go on with it (resume=True), replace it (force=True), or choose another out"),
        ("stopped; go on with --resume --out runs/my run", "stopped; go on with resume=True, out='runs/my run'"),
        ("go on with --resume --set micro_batch=4", "go on with resume=True, micro_batch=4"),
        ("give --batch-size 128 or less", "give batch_size=128 or less"),
        ("give --weights FILE, or --no-pretrained for random ones",
         "give weights=FILE, or pretrained=False for random ones"),
        ("--allow-changes: nothing to differ from; give --resume as well",
         "allow_changes: nothing to differ from; give resume=True as well"),
        ("--device cuda:1: not usable here", "device='cuda:1': not usable here"),
        ("use --anneal hold, as --preset quick does", "use anneal='hold', as preset='quick' does"),
        ("give --content-heads 4 (a CNN: --set conversion.content_heads=4)",
         "give content_heads=4 (a CNN that is converted on the way: conversion={'content_heads': 4})"),
        ("--val-split: --val names the images", "val_split: val names the images"),
        ("tcnn convert MODEL OUT --weights FILE", "tcnn convert MODEL OUT --weights FILE"),
        ("make it: tcnn finetune vit --no-convert; or give --no-convert",
         "make it: tcnn finetune vit --no-convert; or give convert=False"),
        ("an em--dash, a - b", "an em--dash, a - b"),
    ],
)  # fmt: skip
def test_options_become_arguments(said: str, told: str) -> None:
    assert in_python(said) == told


def test_the_top_level_says_what_to_pass(tmp_path: Path) -> None:
    model, file = tcnn.convert(PlainNet(), input_size=(32, 32)).model, tmp_path / "model.safetensors"
    tcnn.save(model, file)
    with pytest.raises(OutputError, match="replace it with force=True"):
        tcnn.save(model, file)
    with pytest.raises(OutputError, match="replace it with --force"):
        save(model, file)
    with pytest.raises(RequestError, match=r"^force: with resume=True no run is replaced"):
        tcnn.finetune(model, tmp_path, out=tmp_path / "run", resume=True, force=True)


def test_timm_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_network(*args: object, **kwargs: object) -> None:
        raise RequestError("give --weights FILE")

    monkeypatch.setattr("tcnn.conversion.surgery.convert", without_network)
    with pytest.raises(RequestError, match="give weights=FILE"):
        timm.create_model("t_test_resnet")


def test_a_function_of_the_top_level_is_one_object_by_its_name() -> None:
    assert tcnn.finetune is tcnn.finetune
    assert pickle.loads(pickle.dumps(tcnn.finetune)) is tcnn.finetune
    assert isinstance(tcnn.GPSA2d, type)


def test_a_wrong_keyword_is_one_error_of_python() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'split'") as error:
        tcnn.evaluate(PlainNet(), "photos", split="val")  # type: ignore[call-arg]
    assert "During handling" not in "".join(traceback.format_exception(error.value))


def test_all_that_raises_is_told_once() -> None:
    with pytest.raises(TcnnError) as error:
        tcnn.inspect(PlainNet(), device="cuda:99" if torch.cuda.is_available() else "cuda")
    assert "--" not in str(error.value)


class _Report(BaseModel):
    notes: tuple[str, ...] = ()
    problems: list[str] = []
    baseline: "_Report | None" = None
    count: int = 0


def test_notes_of_results_and_what_is_said_name_arguments() -> None:
    heard: list[str] = []

    def plan(*, say: Callable[[str], None]) -> _Report:
        say("go on with --resume")
        return _Report(notes=("give --size 8",), count=2, baseline=_Report(problems=["choose another --out"]))

    found = asked_in_python(plan)(say=heard.append)
    assert heard == ["go on with resume=True"]
    own = _Report(problems=["choose another out"])
    assert found == _Report(notes=("give size=8",), count=2, baseline=own)


def test_a_run_and_its_plan_name_arguments(tmp_path: Path) -> None:
    """By the note on τ, which advises `anneal`."""
    data, heard = colours(tmp_path / "data"), []  # type: ignore[var-annotated]
    result = tcnn.finetune(TwoConvs(), data, config=tiny(), out=tmp_path / "run", say=heard.append)
    plan = tcnn.plan(TwoConvs(), data, config=tiny(), out=tmp_path / "run", seconds=0)
    notes = [*result.notes, *heard, str(plan)]
    assert sum("use anneal='hold', as preset='quick' does" in note for note in notes) == 3
    assert [note for note in notes if "--" in note] == []


class _NoMemory(TwoConvs):
    def forward(self, images: Tensor) -> Tensor:
        if len(images) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nGPU 0 has less")
        return super().forward(images)


def test_out_of_memory_is_one_line_whose_cause_is_pytorchs(tmp_path: Path) -> None:
    data = colours(tmp_path / "data")
    with pytest.raises(OutOfMemoryError) as error:
        tcnn.evaluate(_NoMemory(), data, size=32, device="cpu", quiet=True)
    assert str(error.value) == (
        "out of memory (CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has less); "
        "choose smaller images, or fewer at a time"
    )
    assert isinstance(error.value, torch.OutOfMemoryError), "a program that catches PyTorch's goes on to"
    assert isinstance(error.value.__cause__, torch.OutOfMemoryError)


def test_other_errors_stay_what_they_are() -> None:
    def fails() -> None:
        raise RuntimeError("another")

    with pytest.raises(RuntimeError, match=r"^another$") as error:
        asked_in_python(fails)()
    assert type(error.value) is RuntimeError


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 images are"), (1, "1 image is"), (2, "2 images are"), (1000, "1000 images are")],
)
def test_one_thing_is_told_from_several(count: int, said: str) -> None:
    assert f"{some(count, 'image')} {are(count)}" == said
    assert (plural(count, "class"), plural(0.5, "minute")) == ("class" if count == 1 else "classes", "minutes")


@pytest.mark.parametrize(
    ("number", "said"),
    [(0.0, "0.0%"), (4.21e-5, "0.0042%"), (-4.21e-5, "-0.0042%"), (3e-9, "3e-07%"), (4.999e-4, "0.05%"),
     (5.1e-4, "0.1%"), (0.403, "40.3%"), (1.0, "100.0%"), (0.99996, "100.0%")],
)  # fmt: skip
def test_a_small_part_is_not_told_to_be_none(number: float, said: str) -> None:
    assert share(number) == said


def test_a_small_drift_is_told() -> None:
    """Of a model whose layers hardly matter to the logits, everywhere that it is shown."""
    source, small_images = PlainNet().eval(), tcnn.VerificationConfig(input_size=(16, 16), batch_size=1)
    report = tcnn.verify(source, tcnn.convert(source, input_size=(16, 16)).model, small_images)
    error = report.drift.logits.model_copy(update={"relative": 4.21e-5})
    small = report.model_copy(update={"drift": report.drift.model_copy(update={"logits": error})})
    assert "drift at τ = 1: 0.0042% of the logits' norm" in str(small)
    assert "differ from the source by 0.0042%" in str(hub._verified(small, trained=False))
    assert info._verified(True, {}, 4.21e-5).endswith("drift at τ = 1 0.0042%")
    assert FILTERS["percent"](4.21e-5) == "0.0042%"


def _memory(images: int, micro: int) -> PlannedMemory:
    return PlannedMemory(micro_batch=micro, configured=images, computed=0, waiting=0, expected=0, measured=None, free=0)


@pytest.mark.parametrize(
    ("say", "one", "two"),
    [
        (lambda n: _refused(lambda: FinetuneConfig(epochs=n, warmup_epochs=9)), "the 1 epoch,", "the 2 epochs,"),
        (lambda n: _refused(lambda: FinetuneConfig(epochs=n, convert_at=2)), "than the 1 epoch,", "the 2 epochs,"),
        (lambda n: short_of_memory(_memory(n, 0), "cpu"), "1 image at once does not fit into the 0 GB free on cpu; ch",
         "2 images at once do not fit into the 0 GB free on cpu, nor does one; choose"),
        (lambda n: nothing_left("a", n, (), 1.0), "its only head would be", "all of its 2 heads would be"),
        (lambda n: nothing_left("a", 3, (), n), "larger distance than 1 pixel", "larger distance than 2 pixels"),
        (lambda n: nothing_to_prune(None, 0.5, n, 3), "of 1 head that is exactly a", "2 heads that are exactly a"),
        (lambda n: nothing_to_prune(None, 0.5, n, n), "the only one is exactly a", "all 2 are exactly a"),
        (lambda n: event_line("converted", {"layers": n}), "converted 1 layer", "converted 2 layers"),
    ],
)  # fmt: skip
def test_a_message_of_one_thing(say: Callable[[int], object], one: str, two: str) -> None:
    assert one in str(say(1))
    assert two in str(say(2))


def _refused(call: Callable[[], object]) -> str:
    with pytest.raises(RequestError) as caught:
        call()
    return str(caught.value)
