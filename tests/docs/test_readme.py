"""README.md, CONTRIBUTING.md and the pages of docs/ that explain: their code runs, their tables are true."""

import csv
import json
import re
from itertools import pairwise
from pathlib import Path

import pages
import pytest
import timm
import torch
from pages import ROOT
from pydantic import BaseModel
from safetensors import safe_open

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.config import ConversionConfig, VerificationConfig
from tcnn.conversion.strides.removal import KNOWN_FAMILIES
from tcnn.layers import filters
from tcnn.workflows.pipeline import Source
from tcnn.zoo import catalogue

LONG = (
    "docs/cli.md",
    "docs/python.md",
    "docs/export.md",
    "docs/files.md",
    "docs/finetune.md",
    "docs/timm.md",
    "docs/trainers.md",
    "docs/inspect.md",
)
"""Their examples take seconds, and are run with what is slow."""
SMALLER = {"README.md": {"resnet50d": "test_resnet", "True 3 layers": "True 2 layers"}}
"""What is run, in Python, in the place of what a page says; as it stands it is run with what is slow.

So are its commands: docs/conversion.md has some that are run every time.
"""
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
EXPLAINING = (
    "tutorial cli python timm trainers files conversion fold export finetune data evaluation inspect http-api storage "
    "papers"
)
PAGES += [f"docs/{name}.md" for name in EXPLAINING.split()]
SHOW = [page for page in PAGES if any(b.language == "bash" and pages.commands(b) for b in pages.blocks(page))]
RUN = [
    page
    for page in PAGES
    if page != "docs/http-api.md" and any(block.language in ("python", "console") for block in pages.blocks(page))
]


@pytest.mark.parametrize(
    ("page", "instead"),
    [
        *(
            pytest.param(page, {}, marks=[pytest.mark.slow] if page in {*LONG, *SMALLER} else [], id=page)
            for page in RUN
        ),
        *(pytest.param(page, instead, id=f"{page}, smaller") for page, instead in SMALLER.items()),
    ],
)
def test_page_runs(page: str, instead: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__docs__"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in pages.blocks(page):
            if block.language == "python":
                code, output = (_replaced(text, instead) for text in (block.code, block.output or ""))
                pages.assert_prints(pages.execute(code, namespace, page), output, code)
            elif block.language == "console" and not instead:
                for arguments, output in pages.commands(block):
                    _, printed = pages.run(arguments)
                    pages.assert_prints(printed.replace(str(tmp_path), "/home/you"), output, arguments)


def _replaced(text: str, instead: dict[str, str]) -> str:
    for word, other in instead.items():
        text = text.replace(word, other)
    return text


@pytest.mark.parametrize("page", SHOW)
def test_commands_parse(page: str) -> None:
    """Every option of a command line is one that its command takes, and every other word is the value of something."""
    for block in pages.blocks(page):
        for arguments, _ in pages.commands(block) if block.language == "bash" else ():
            given = pages.parse(arguments)
            options = pages.canonical(arguments)
            assert {name for name in given if name.startswith("-")} == options, arguments
            values = [str(value) for value in given.values()]
            words = [word.rstrip("/") for word in pages.leaf(arguments)[1] if not word.startswith("-")]
            assert [word for word in words if not any(word in value for value in values)] == [], arguments


def test_what_is_typed_on_a_terminal_begins_with_a_prompt() -> None:
    """Also on pages that are run with what is slow."""
    typed = [pages.commands(block) for page in RUN for block in pages.blocks(page) if block.language == "console"]
    assert all(typed) and len(typed) >= 8


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named
    assert named <= targets


def rows(page: str, header: str) -> list[list[str]]:
    """The rows of the one table whose header line begins so."""
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / page).read_text(), re.MULTILINE)
    found = [table.splitlines()[2:] for table in tables if table.startswith(header)]
    assert len(found) == 1, (page, header, len(found))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[0]]


@pytest.mark.parametrize(
    ("kind", "which"), [(ConversionConfig, 0), (VerificationConfig, 1)], ids=["conversion", "verification"]
)
def test_configuration_tables(kind: type[BaseModel], which: int) -> None:
    text = (ROOT / "docs/python.md").read_text()
    table = re.findall(r"^\| field \| default \| meaning \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)[which]
    shown = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", table, re.MULTILINE))
    defaults = {name: repr(field.default) for name, field in kind.model_fields.items()}
    assert shown == {name: "1/46" if name == "temperature" else value for name, value in defaults.items()}


def test_public_names_are_explained() -> None:
    text = (ROOT / "docs/python.md").read_text()
    missing = [name for name in tcnn.__all__ if name != "__version__" and not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_metadata_keys(tmp_path: Path, lively) -> None:  # type: ignore[no-untyped-def]
    model, _ = tcnn.convert(lively())
    model.pretrained_cfg = {**model.pretrained_cfg, "label_names": ["a", "b"]}
    model.training_record = {"data": "photos"}  # as `tcnn.load` leaves it
    verdict = tcnn.verify(lively(), model, input_size=(64, 64), float64=False)
    sections = {"source": {}, "weights": "random"}
    with safe_open(tcnn.save(model, tmp_path / "a.safetensors", verdict, sections), framework="pt") as file:
        metadata = file.metadata()
        parts = {key.rpartition("conv2.")[2] for key in file.keys() if "layer4.0.conv2." in key}  # noqa: SIM118
    documented = {row[0].strip("`") for row in rows("docs/files.md", "| key | value | when |")}
    others = {
        "edited",
        "merged",
        "apart",
        "extra_state",
        "buffer_dtypes",
        "shared_tensors",
    }  # test_edited.py, test_extra_state.py, test_computed_buffers.py and test_shared.py have files with these
    assert documented == set(metadata) | others
    assert json.loads(metadata["label_names"]) == ["a", "b"]
    tensors = re.findall(r"`(?:layer4\.0\.conv2)?\.(\w+)`", " ".join(r[0] for r in rows("docs/files.md", "| tensor |")))
    assert set(tensors) - {"bias"} == parts  # this convolution has no bias


def test_source_keys() -> None:
    assert [row[0].strip("`") for row in rows("docs/files.md", "| key | value |\n")] == list(Source.model_fields)


def test_hub_layout_files(tmp_path: Path, lively) -> None:  # type: ignore[no-untyped-def]
    directory = tcnn.save_directory(tcnn.convert(lively()).model, tmp_path / "hub")
    assert {row[0].strip("`") for row in rows("docs/files.md", "| file |")} == {p.name for p in directory.iterdir()}


def test_stride_families() -> None:
    page = (ROOT / "docs/conversion.md").read_text()
    (line,) = [part for part in page.split("\n\n") if part.startswith("`ByobNet`")]
    assert re.findall(r"`(\w+)`", line) == sorted(kind.__name__ for kind in KNOWN_FAMILIES)


def test_convolution_classes() -> None:
    named = [name for row in rows("docs/conversion.md", "| class |") for name in re.findall(r"`(\w+)`", row[0])]
    known = (*filters.STANDARDISED, *filters.ALWAYS_SAME)
    assert sorted(named) == sorted({kind.__name__ for kind in known})


def test_reasons_are_quoted_from_the_code() -> None:
    files = ("layers/filters.py", "layers/base.py", "conversion/selection.py", "conversion/ties.py")
    code = "".join((ROOT / "tcnn" / file).read_text() for file in files)
    reasons = [
        row[0].strip("`") for header in ("| reason |", "| reason in") for row in rows("docs/conversion.md", header)
    ]
    quoted = [reason for reason in reasons if not reason.startswith(("it works at", "any reason"))]
    assert len(quoted) >= 7
    assert [reason for reason in quoted if reason not in code] == []


def test_numbers_of_the_catalogue() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    entries = [entry for name, entry in catalogue.entries().items() if name not in catalogue.ATTENTIVE]
    convertible = [entry for entry in entries if entry.convertible]
    resnets = [name for name in timm.list_models(module="resnet") if not name.startswith("t_")]
    assert all(catalogue.entries()[name].convertible for name in resnets)
    sentence = (
        f"Of timm {catalogue.timm_version()}'s {len(entries):,} models, {len(convertible)} have k×k convolutions in "
        f"their last stage and can be converted, among them all {len(resnets)} of `resnet.py`. "
        f"The other {len(entries) - len(convertible)} have none"
    )
    assert sentence in text
    assert f"and {len(convertible) - 1} more names" in (ROOT / "CHANGELOG.md").read_text()


def test_trained_numbers_are_the_measured_ones() -> None:
    lines = (ROOT / "benchmarks/results/drift.csv").read_text().splitlines()
    measured = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    trained = {
        r["temperature"][:6]: (int(r["right"]), int(r["same_answer"]))
        for r in measured
        if r["weights"] == "trained" and r["dtype"] == "float32"
    }
    (row,) = [
        line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| a ResNet-20 trained")
    ]
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\b\d,\d{3}\b", row)]
    assert numbers == [trained[""][0], 5000, trained["0.0217"][0], trained["0.0217"][1], trained["1"][0]]


def test_gains_are_those_of_the_results() -> None:
    """Each with its interval, as a table of docs/results.md has it, which the experiments fill."""
    results = (ROOT / "docs/results.md").read_text().replace("*", "")
    (table,) = re.findall(r"trainings of the CNN \| clean .*?\n\n", (ROOT / "README.md").read_text(), re.DOTALL)
    gains = re.findall(r"[+−]\d\.\d\d \([+−]\d\.\d\d to [+−]\d\.\d\d\)", table.replace("*", ""))
    assert len(gains) == 2 * (table.count("\n") - 3) - table.count("| – |")
    cells = [line for line in results.splitlines() if line.startswith("|")]
    assert [gain for gain in gains if not any(f"| {gain} |" in line for line in cells)] == []


def test_no_index_is_named() -> None:
    """Where packages come from is the reader's business."""
    for page in PAGES:
        assert not re.search(r"pypi|pythonhosted|--(extra-)?index-url|download\.pytorch", (ROOT / page).read_text()), (
            page
        )


def test_changelog_knows_the_version() -> None:
    versions = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == tcnn.__version__
    for page, words in (
        ("README.md", "Version {}. "), ("CITATION.cff", "\nversion: {}\n"), ("docs/scaling.md", "/tcnn:{}\n")
    ):  # fmt: skip
        assert words.format(tcnn.__version__) in (ROOT / page).read_text(encoding="utf-8"), page
    assert all(a > b for a, b in pairwise(versions))
    assert checkpoint.__version__ == tcnn.__version__
    assert timm.__version__ >= catalogue.timm_version()
