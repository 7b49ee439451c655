"""`tcnn inspect` and `tcnn report`: what they print and write, and one line for everything that is wrong."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from data_pictures import draw_classes
from forked import run_tcnn
from torch import nn

import tcnn as library

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> Path:
    model = library.convert(lively(num_classes=3)).model
    return Path(library.save(model, tmp_path_factory.mktemp("converted") / "t.safetensors"))


@pytest.fixture
def checkpoint(tmp_path: Path, converted: Path) -> str:
    return str(shutil.copy(converted, tmp_path))


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    return str(draw_classes(tmp_path / "pets", ("cat", "dog"), 2))


def test_a_table(tcnn: Run, checkpoint: str, pictures: str) -> None:
    result = tcnn("inspect", checkpoint, "--images", pictures, "--size", 64)
    assert (result.code, result.err) == (0, "")
    assert "layer4.0.conv1" in result.out
    assert "4 images" in " ".join(result.out.split())
    assert "1.00–1.00" in result.out
    assert tcnn("inspect", checkpoint).out.count(" – ") > 3


def test_images_that_are_not_square(tcnn: Run, checkpoint: str, pictures: str) -> None:
    found = tcnn("inspect", checkpoint, "--images", pictures, "--size", "64x96", "--json").json
    assert (found["size"], found["layers"][0]["map"]) == ([64, 96], [6, 8])  # padding included
    message = tcnn("inspect", checkpoint, "--size", "64x").error(2)
    assert message == "--size: expected pixels as 224 or 224x160 (height × width), found '64x'"


def test_files(tcnn: Run, lively: Callable[..., nn.Module], pictures: str, tmp_path: Path) -> None:
    model = library.convert(lively(num_classes=3), target="layer4.0.conv1").model  # each layer takes a second to draw
    checkpoint = library.save(model, tmp_path / "t.safetensors")
    arguments = ("inspect", checkpoint, "--images", pictures, "--size", 64, "--out", "looks", "--shown", 1)
    result = tcnn(*arguments, "--format", "svg", "--query", "0.25,0.75", "--json")
    assert result.code == 0, result
    names = {path.name for path in (tmp_path / "looks").iterdir()}
    parts = {f"attention-1-{part}.svg" for part in ("combined", "content", "positional")}
    assert names == {"inspect.json", "centres.svg", "non-locality.svg", *parts}
    found = result.json
    assert found == json.loads((tmp_path / "looks" / "inspect.json").read_text())
    assert (found["images"], found["query"], len(found["pictures"])) == (4, [0.25, 0.75], 1)
    assert tcnn(*arguments).error(2) == (
        "looks/inspect.json: exists already; replace it with --force, or choose another name"
    )
    assert tcnn("inspect", checkpoint, "--size", 64, "--out", "looks", "--format", "png", "--force").code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_between_two_pictures_it_leaves_none(
    checkpoint: str, tmp_path: Path, number: signal.Signals
) -> None:
    """They would be in the way of the next attempt, which looks for inspect.json before it begins."""
    looks = tmp_path / "looks"

    def disturb(pid: int) -> None:
        ends = time.monotonic() + 60
        while time.monotonic() < ends and not list(looks.glob("[!.]*")):
            time.sleep(0.002)
        os.kill(pid, number)

    command = ("inspect", checkpoint, "--size", 64, "--format", "png,svg", "--out", "looks")
    assert run_tcnn(tmp_path, *command, disturb=disturb).code == 128 + number
    assert not looks.exists()


def test_json(tcnn: Run, checkpoint: str) -> None:
    found = tcnn("inspect", checkpoint, "--size", 64, "--json").json
    assert found["layers"][0]["heads"][0]["gate"] == 1
    assert found["layers"][0]["heads"][0]["non_locality"] == {
        "total": None, "content": None, "positional": pytest.approx(2**0.5),
    }  # fmt: skip


@pytest.mark.slow
def test_a_run_and_its_report(tcnn: Run, tmp_path: Path) -> None:
    data = tiny_runs.colours(tmp_path / "data")
    tiny_runs.run("test_resnet", data, tmp_path / "run")
    score = {"images": 9, "top1": 0.5, "top5": None, "loss": 1.0}
    rows = [{"model": "a", "height": size, "width": size, "clean": score} for size in (32, 64)]
    (tmp_path / "sizes.json").write_text(json.dumps({"data": "d", "images": 9, "rows": rows}))
    told: Any = ("--images", data, "--evaluation", "sizes.json")
    result = tcnn("inspect", "run", *told, "--out", "looks", "--shown", 0, "--format", "svg")
    assert result.code == 0, result
    names = {path.name for path in (tmp_path / "looks").iterdir()}
    assert names == {
        "training.svg", "gates-and-spans.svg", "centres.svg", "non-locality.svg", "resolution.svg", "inspect.json",
    }  # fmt: skip
    written = tcnn("report", "run", *told, "--json").json
    assert written["report"] == "run/report.html"
    assert written["missing"] == []
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) == written["bytes"]
    assert "Inside the layers" in page
    assert "exists already" in tcnn("report", "run").error(2)
    told_in_words = tcnn("report", "run", "--out", "again.html")
    assert told_in_words.out.splitlines()[-1] == "wrote again.html"
    assert told_in_words.out.startswith("missing: ")


def test_nothing_but_broken_images(tcnn: Run, checkpoint: str, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "words.jpg").write_text("no picture")
    result = tcnn("inspect", checkpoint, "--images", "bad")
    assert result.code == 0
    assert "left out, no image: words.jpg: not an image" in result.out
    assert "only what does not depend on images is told" in result.out


def test_wrong_requests(tcnn: Run, checkpoint: str, local_source: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "words.json").write_text("words")
    for arguments, message in (
        (
            ("inspect", local_source),
            "ResNet has no attention to look at: expected GPSA layers",
        ),
        (("inspect", "absent.safetensors"), "absent.safetensors: expected a tcnn checkpoint, found nothing"),
        (
            ("inspect", checkpoint, "--images", "absent"),
            "absent: expected an image or a folder of images, found",
        ),
        (
            ("inspect", checkpoint, "--images", ""),
            "--images: expected a value, found an empty string",
        ),
        (("inspect", checkpoint, "--images", "empty"), "empty: expected images, found none"),
        (
            ("inspect", checkpoint, "--images", "empty", "--query", "2,3"),
            "--query: expected two shares between 0 and 1",
        ),
        (
            ("inspect", checkpoint, "--images", "empty", "--query", "middle"),
            "--query: expected two shares between 0 and 1",
        ),
        (("inspect", checkpoint, "--out", "o", "--format", "pdf"), "--format: expected png, svg or both, found 'pdf'"),
        (
            ("inspect", checkpoint, "--out", "o", "--evaluation", "words.json"),
            "words.json: expected what `tcnn evaluate --json` prints",
        ),
        (
            ("inspect", checkpoint, "--out", "o", "--evaluation", "no.json"),
            "no.json: expected what `tcnn evaluate --json` prints",
        ),
        (("inspect", checkpoint, "--against", "resnet0"), "resnet0: no timm model of this name"),
        (("inspect", checkpoint, "--out", "words.json"), "words.json: cannot be used as a directory"),
        (
            ("report", "empty", "--images", "absent"),
            "--images: expected a picture or a folder of pictures, found nothing",
        ),
        (("report", "absent"), "absent: expected a run's directory, found nothing"),
        (("report", "empty"), "found nothing of it"),
    ):
        assert message in tcnn(*arguments).error(2), arguments
    message = tcnn("inspect", checkpoint, "--size", 10_000_000).error(2)
    assert message == "size: expected 1 to 65536 pixels each way, found 10000000×10000000"
    assert "not usable here" in tcnn("inspect", checkpoint, "--device", "cuda:77").error(4)


def test_memory_that_is_not_there(tcnn: Run, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object, **options: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 400 bytes")

    monkeypatch.setattr("tcnn.analysis.inspect.encode", full)
    message = tcnn("inspect", checkpoint).error(4)
    assert message.startswith("out of memory (") and message.endswith("; choose smaller images, or fewer at a time")


def test_a_wrong_request_leaves_no_directory_behind(tcnn: Run, checkpoint: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert "nowhere" in tcnn("inspect", checkpoint, "--images", "nowhere", "--out", "a/b").error(2)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "a").mkdir()
    assert "nowhere" in tcnn("inspect", checkpoint, "--images", "nowhere", "--out", "a").error(2)
    assert (tmp_path / "a").is_dir()
