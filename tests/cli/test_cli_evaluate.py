"""`tcnn evaluate`: tables, JSON, CSV, and one line for everything that is wrong."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import tcnn as package
from tcnn.evaluation.comparing.report import Comparison
from tcnn.models.precision import emulated

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay")


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Ten classes of two pictures each."""
    random = np.random.default_rng(0)
    for name in CLASSES:
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(2):
            pixels = random.integers(0, 256, (20, 24, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{number}.png")
    return tmp_path / "pets"


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> Path:
    path = tmp_path_factory.mktemp("converted") / "t.safetensors"
    return package.save(package.convert(lively(num_classes=10)).model, path)


@pytest.fixture
def checkpoint(tmp_path: Path, converted: Path) -> Path:
    return Path(shutil.copy(converted, tmp_path))


def test_side_by_side(tcnn: Any, local_source: str, checkpoint: Path, pets: Path) -> None:
    result = tcnn("evaluate", local_source, "t.safetensors", "--data", "pets", "--size", "32,40x48")
    assert (result.code, result.err) == (0, "")
    title, header, *rows = [line.split() for line in result.out.partition("\nhow much better ")[0].splitlines()]
    assert " ".join(title) == "pets: 20 images"
    assert header == ["model", "parameters", "size", "top-1", "95%", "top-5", "loss", "images/s"]
    table = [" ".join(row) for row in rows if any("%" in cell for cell in row)]  # a long path takes more lines
    assert [" 32 " in row for row in table] == [True, False, True, False]
    assert [" 40×48 " in row for row in table] == [False, True, False, True]
    (one, _, other, _) = [row.split("% ")[0].split()[-1] for row in table]
    assert one == other  # converted, so the same
    told = " ".join(result.out.split())
    assert f"how much better than {local_source}, image by image: percentage points, with 95% intervals" in told
    assert "t.safetensors 32 +0.0 (-" in told


def test_json_is_the_report(tcnn: Any, checkpoint: Path, pets: Path) -> None:
    result = tcnn(
        "evaluate", "t.safetensors", "--data", "pets", "--size", 32, "--corruption", "fog, snow", "--severities", "1,5",
        "--per-class", "--limit", 10, "--batch-size", 3, "--amp", "bfloat16", "--channels-last", "--json",
    )  # fmt: skip
    note = emulated("bfloat16", torch.device("cpu"))
    assert (result.code, result.err) == (0, f"note: {note}\n" if note else "")
    report = Comparison.model_validate(result.json)
    (row,) = report.rows
    assert (report.images, row.height, row.width, row.classes) == (10, 32, 32, 10)
    assert {name: list(score.severities) for name, score in row.corruptions.items()} == {"snow": [1, 5], "fog": [1, 5]}
    assert row.clean
    assert [score.images for score in row.clean.per_class.values()] == [1] * 10


@pytest.mark.slow
def test_all_corruptions_and_classes(tcnn: Any, local_source: str, checkpoint: Path, pets: Path) -> None:
    result = tcnn(
        "evaluate", local_source, "t.safetensors", "--data", "pets", "--size", 32, "--corruptions", "--severities", 2,
        "--per-class", "--csv", "all.csv", "--limit", 10,
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert "model parameters size top-1 95% top-5 loss corrupted mCE images/s" in lines
    assert "top-1 under corruption (CE)" in lines
    assert sum(line.endswith("(100.0%)") for line in lines) >= 15
    assert [line.split()[:2] for line in lines if line.split()[:1] and line.split()[0] in CLASSES] == [
        [name, "1"] for name in CLASSES
    ]
    assert " ".join(lines).endswith("'s, mCE its mean over corruptions.")
    with Path("all.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert len(written) == 2 * 16
    assert {(line["corruption"], line["severity"]) for line in written} >= {("", ""), ("fog", "2")}
    assert all(int(line["images"]) == 10 for line in written)

    again = ("evaluate", "t.safetensors", "--data", "pets", "--size", 32, "--csv", "all.csv")
    assert tcnn(*again).error(2).startswith("all.csv: exists already; replace it with --force")
    assert tcnn(*again, "--force").code == 0
    assert len(Path("all.csv").read_text().splitlines()) == 2


def test_what_cannot_be_read_is_named(tcnn: Any, checkpoint: Path, pets: Path) -> None:
    (pets / "cat" / "broken.png").write_text("no picture")
    result = tcnn("evaluate", "t.safetensors", "--data", "pets", "--size", 32)
    assert result.code == 0
    assert "1 image cannot be read and is left out" in " ".join(result.out.split())
    assert "broken.png" in "".join(result.out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t.safetensors", "--data", "nowhere"), "nowhere: no such data set; expected a folder, a .tar, "),
        (("t.safetensors", "--data", "empty"), "empty: expected a folder of images for every class, found nothing"),
        (("t.safetensors", "--data", "pets", "--split", "vall"), "pets: has no split 'vall'; "),
        (("no.safetensors", "--data", "pets"), "no.safetensors: expected a tcnn checkpoint, found nothing"),
        (("empty", "--data", "pets"), "empty: expected a tcnn checkpoint, found no model.safetensors"),
        (("resnet51", "--data", "pets"), "resnet51: no timm model of this name; did you mean "),
        (
            ("t.safetensors", "--data", "pets", "--corruption", "fogg"),
            "'fogg' is no ImageNet-C corruption; did you mean ",
        ),
        (
            ("t.safetensors", "--data", "pets", "--corruption", "fog", "--severities", "0"),
            "severities: expected severities from 1 to 5, got (0,)",
        ),
        (
            ("t.safetensors", "--data", "pets", "--corruption", "fog", "--severities", "5,6"),
            "severities: expected severities from 1 to 5, got ",
        ),
        (
            ("t.safetensors", "--data", "pets", "--corruption", "fog", "--severities", "all"),
            "--severities: expected whole numbers, found 'all'",
        ),
        (
            ("t.safetensors", "--data", "pets", "--size", "0"),
            "--size: expected pixels as 224 or 224x160 (height × width), found '0'",
        ),
        (("t.safetensors", "--data", "pets", "--size", "1x2x3"), "--size: expected pixels as "),
        (("t.safetensors", "--data", "pets", "--size", "224,,160"), "--size: expected pixels as "),
        (
            ("t.safetensors", "--data", "pets", "--size", "big"),
            "--size: expected pixels as 224 or 224x160 (height × width), found 'big'",
        ),
        (
            ("t.safetensors", "--data", "pets", "--limit", "0"),
            "limit: input should be greater than or equal to 1, got 0",
        ),
        (
            ("t.safetensors", "--data", "pets", "--amp", "int8"),
            "amp: input should be 'float32', 'bfloat16' or 'float16'",
        ),
        (
            ("t.safetensors", "--data", "pets", "--layout", "tree"),
            "layout: input should be 'auto', 'plain', 'imagenet-c'",
        ),
        (("t.safetensors", "--data", "pets", "--layout", "imagenet-r"), "t.safetensors: imagenet-r needs a model of "),
        (
            ("t.safetensors", "--data", "pets", "--corruption", "fog", "--baseline", "x"),
            "--baseline x: expected alexnet or one of t.safetensors",
        ),
        (("t.safetensors", "--data", "pets", "--csv", "no/x.csv"), "no/x.csv: the directory "),
        (
            ("t.safetensors", "--data", "pets", "--csv", "x.csv", "--results-csv", "./few/../x.csv", "--force"),
            "few/../x.csv: is named for two outputs, of which one would replace the other; name two files",
        ),
        (("t.safetensors", "--data", "few"), "t.safetensors tells 10 classes apart, few has 2 (ant, bee); "),
        (("t.safetensors",), "--data: expected a data set to measure on, for t.safetensors does not say "),
        (
            ("--data", "pets"),
            "Invalid value for CKPT...: missing; name one or several models, or what builds one",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_requests(
    tcnn: Any, checkpoint: Path, pets: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "few").mkdir()
    for name in CLASSES[:2]:
        (tmp_path / "few" / name).symlink_to(pets / name, target_is_directory=True)
    assert tcnn("evaluate", *arguments).error(2).startswith(message)


def test_no_such_device(tcnn: Any, checkpoint: Path, pets: Path) -> None:
    message = tcnn("evaluate", "t.safetensors", "--data", "pets", "--device", "cuda:99").error(4)
    assert message.startswith("--device cuda:99: not usable here")
