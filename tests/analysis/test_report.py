"""One file that tells a run's story: everything escaped, nothing from outside, and what is missing is said."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import made_up
import pytest
import timm
import tiny_runs
from data_pictures import draw
from made_up import Page

import tcnn
from tcnn.analysis.charts import bundle
from tcnn.analysis.pages.report import write
from tcnn.analysis.reading.rundirs import metadata
from tcnn.cli.main import main
from tcnn.errors import OutputError, RequestError
from tcnn.evaluation.corruptions import CORRUPTIONS

WITHOUT_IMAGES = ["What was converted", "Equivalence and drift", "Training", "Settings"]
SECTIONS = ["What was converted", "Equivalence and drift", "Training", "Inside the layers", "Evaluation", "Settings"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, converted and trained: one layer, for each takes a second to draw."""
    root = tmp_path_factory.mktemp("runs")
    data = tiny_runs.colours(root / "data")
    tiny_runs.run("test_resnet", data, root / "run", conversion={"target": "layer4.0.conv1"})
    return root


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy, which says nothing of single heads: their picture takes as long as all the rest of a page."""
    shutil.copytree(trained / "run", tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    for row in rows:
        row.pop("gates", None)
        row.pop("spans", None)
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "run"


def read(run: Path, **options: object) -> Page:
    return Page(tcnn.report(run, **options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def html(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of that run, with everything that a page can have but a verification."""
    run = tmp_path_factory.mktemp("full") / "run"
    shutil.copytree(trained / "run", run)
    rows = [made_up.evaluated(name, top1, corruptions=CORRUPTIONS) for name, top1 in (("before", 0.5), ("after", 0.75))]
    content = {"data": "photos", "images": 10, "rows": [row.model_dump() for row in rows]}
    (run / "evaluation.json").write_text(json.dumps(content))
    return tcnn.report(run, images=trained / "data" / "red" / "0.png")


def test_a_real_run(html: str, run: Path) -> None:
    page = Page(html)
    assert page.titles == [*SECTIONS, "Versions"]
    assert "no verification report" not in page.text
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    for expected in (
        f"{last['val']['top1']:.1%}",
        "layer4.0.conv1",
        "75.0%",
        "batch_size",
        "test_resnet with random weights",
        "blue, green, red",
    ):
        assert expected in page.text, expected
    assert page.tags.count("svg") + page.tags.count("img") >= 6


def test_the_best_epoch_is_that_of_the_best_checkpoint(run: Path) -> None:
    """While τ rises a model may be better than any after it, and is not kept."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs = [row for row in rows if row["kind"] == "epoch"]
    for row, top1 in zip(epochs, (0.875, 0.375), strict=True):
        row["val"]["top1"], row["best"] = top1, True
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = read(run).text
    assert re.search(r"top-1 of the best epoch\s*37\.5%\s*best epoch\s*2 of 2", facts)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows).replace('"best"', '"other"'))
    assert re.search(r"top-1 of the best epoch\s*87\.5%\s*best epoch\s*1 of 2", read(run).text)


def test_a_run_that_was_stopped_is_said_to_be(run: Path, tmp_path: Path) -> None:
    assert "the run has not ended" not in read(run).text
    newest = max((run / "resume").glob("step-*.safetensors"))
    newest.unlink()
    assert "the run has not ended: what is told of it is as far as it has come" in read(run).text
    newest.write_bytes(b"cut off")
    assert "the run has not ended" not in read(run).text, "that is not known"


def test_heads_beside_those_of_the_taps_are_told_of(html: str, tmp_path: Path) -> None:
    assert "with one head per kernel tap." in " ".join(Page(html).text.split())
    model = tcnn.convert(timm.create_model("test_resnet", num_classes=3), content_heads=2).model
    (tmp_path / "run").mkdir()
    tcnn.save(model, tmp_path / "run" / "model.safetensors")
    assert "with one head per kernel tap and content heads beside them." in " ".join(
        read(tmp_path / "run").text.split()
    )


def test_it_is_one_file_whose_only_script_is_ours(html: str) -> None:
    page = Page(html)
    *data, script = page.scripts
    assert script == bundle.script()
    policy = (
        next(value for name, value in page.attributes if name == "content" and "default-src" in (value or "")) or ""
    )
    assert f"default-src 'none'; script-src {bundle.script_source()};" in policy
    curves, *evaluated = [json.loads(each) for each in data]
    assert "epoch" in {row["kind"] for row in curves["rows"]}
    assert [one["title"] for one in evaluated[0]["charts"]] == ["Accuracy by severity"]
    assert {"link", "iframe", "object", "embed", "base", "form"} & set(page.tags) == set()
    for name, value in page.attributes:
        assert not name.startswith("on"), name
        if name in ("src", "href", "xlink:href", "action", "srcset", "poster"):
            assert value is not None
            assert value.startswith(("#", "data:image/png;base64,")), (name, value[:60])
    assert "url(http" not in html
    assert "@import" not in html


def test_names_inside_of_drawings_are_each_ones_own(html: str) -> None:
    names = re.findall(r' id="([^"]+)"', html)
    assert len(names) == len(set(names))
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', html))
    assert used <= set(names)


def test_hostile_names_stay_names(run: Path) -> None:
    record = json.loads((run / "config.json").read_text())
    names = list(made_up.HOSTILE)
    record |= {"class_names": names, "data": names[0], "val": names[1], "versions": {names[0]: names[7]}}
    record["config"] |= {names[0]: names[8]}
    (run / "config.json").write_text(json.dumps(record))
    rows = made_up.metrics(epochs=2, layers=len(names), heads=1, names=made_up.HOSTILE)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluated = [made_up.evaluated(name, 0.5, size, CORRUPTIONS[:2]) for name in names[:2] for size in (64, 96)]
    content = {"data": names[0], "images": 10, "rows": [row.model_dump() for row in evaluated]}
    (run / "evaluation.json").write_text(json.dumps(content))
    (run / "inspect.json").write_text(made_up.inspection(heads=1, names=made_up.HOSTILE, layers=1).model_dump_json())
    elsewhere = run.rename(run.with_name("<img src=x onerror=alert(1)>"))
    page = read(elsewhere)
    assert page.scripts[-1] == bundle.script() and "script" in page.tags
    assert all(json.loads(each) for each in page.scripts[:-1])  # and nothing else runs
    assert all(not name.startswith("on") for name, _ in page.attributes)
    assert "<script>alert(1)</script>" in page.text  # as text
    assert "<img src=x onerror=alert(1)>" in page.text
    assert "{{ 7*7 }}" in page.text
    assert ("src", "x") not in page.attributes
    assert "\u202e" not in page.text


def test_a_half_written_line(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "epoch", "epoch": 7, "val": {"to')
    page = read(run)
    assert re.search(r"metrics.jsonl: 1 of \d+ lines is cut off or no JSON; left out", page.text)
    assert "Training" in page.titles


def test_lines_that_tcnn_does_not_write(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "epoch", "epoch": 2, "val": "good", "gates": {"a": ["high"]}}\n[1, 2]\n')
    page = read(run)
    assert re.search(r"1 of \d+ lines is not as tcnn writes them", page.text)
    assert "Training" in page.titles


@pytest.mark.parametrize(
    ("remove", "said", "gone"),
    [
        (["metrics.jsonl"], "no metrics.jsonl: there are no curves", "Training"),
        (
            ["best.safetensors", "last.safetensors", "converted.safetensors"],
            "no checkpoint: what was converted",
            "What was converted",
        ),
        (["converted.safetensors"], "no verification report", "Equivalence and drift"),
        (["config.json"], "no config.json: which settings the run had is not known", "Settings"),
    ],
)
def test_what_is_missing_is_said_and_the_rest_is_made(run: Path, remove: list[str], said: str, gone: str) -> None:
    for name in remove:
        (run / name).unlink()
    page = read(run)
    assert said in page.text
    assert set(WITHOUT_IMAGES) - set(page.titles) - {"Equivalence and drift"} == {gone} - {"Equivalence and drift"}
    assert gone not in page.titles


def test_a_broken_checkpoint(run: Path) -> None:
    broken = run / "best.safetensors"
    for content in (b"", b"\xff" * 7, b"\xff" * 40, b"\x02\0\0\0\0\0\0\0[]", b"\x08\0\0\0\0\0\0\0{'a': "):
        broken.write_bytes(content)
        with pytest.raises(RequestError, match=r"best.safetensors: not a whole safetensors file"):
            metadata(broken)
    page = read(run)
    assert "best.safetensors: not a whole safetensors file; what was converted is not known" in page.text
    assert "Training" in page.titles


def test_other_files_that_are_broken(run: Path, tmp_path: Path) -> None:
    for name in ("config.json", "evaluation.json", "evaluation-2.json", "inspect.json"):
        (run / name).write_text('{"rows": 1' if name != "evaluation-2.json" else '{"data": 3}')
    page = read(run)
    for said in ("config.json: not readable", "evaluation.json: expected what", "evaluation-2.json: expected what",
                 "inspect.json: not what `tcnn inspect` writes"):  # fmt: skip
        assert said in page.text
    draw(tmp_path / "pictures" / "a.png").write_text("no picture")
    (run / "metrics.jsonl").unlink()  # its curves are drawn
    page = read(run, images=tmp_path / "pictures")
    assert "Inside the layers" in page.titles
    assert "1 file is not an image; skipped" in page.text and "expected images, but none can be read" in page.text
    assert "no attention maps: " in read(run, images=tmp_path / "absent").text


def test_a_run_that_has_only_begun(run: Path) -> None:
    for name in ("best.safetensors", "last.safetensors", "summary.csv"):
        (run / name).unlink()
    (run / "metrics.jsonl").write_text('{"kind": "train", "epoch": 0, "step": 20, "loss": 0.5, "updates": 20}\n')
    assert "no epoch has ended yet" in read(run).text


def test_of_many_steps_a_report_has_the_peaks_and_the_last_and_says_so(run: Path) -> None:
    steps = [{"kind": "train", "updates": at, "loss": {4321: 9, 4322: 0.1}.get(at, 1)} for at in range(1, 5001)]
    rows = [*steps, {"kind": "epoch", "epoch": 0}]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    page = tcnn.report(run)
    told = re.search(r"json\">(\{.rows.*?)</script>", page)
    drawn = [row for row in json.loads(told[1])["rows"] if row["kind"] == "train"] if told else []
    assert {4321: 9, 4322: 0.1, 1: 1, 5000: 1}.items() <= {row["updates"]: row["loss"] for row in drawn}.items()
    assert f"Of the 5,000 losses measured by step, the charts have {len(drawn):,}" in page and len(drawn) <= 2000


def test_a_job_of_the_service(run: Path, tmp_path: Path) -> None:
    """What was converted, with its verification, alone at first; then with `run/` beside it."""
    job = tmp_path / "job" / "1"
    job.mkdir(parents=True)
    with pytest.raises(SystemExit):
        main(["convert", "test_resnet", str(job / "converted.safetensors"), "--no-pretrained", "--json"])
    page = read(job)
    assert page.titles[:2] == ["What was converted", "Equivalence and drift"] and "Training" not in page.titles
    run.rename(job / "run")
    page = read(job)
    assert {"What was converted", "Equivalence and drift", "Training"} <= set(page.titles)
    assert "converted.safetensors" in page.text
    assert "as run (auto) compared with its attention, float32" in page.text


@pytest.mark.slow  # one file alone is what a job begins with
def test_a_conversion_of_several_files_alone(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["convert", "test_resnet", str(tmp_path / "hub"), "--no-pretrained", "--json"])
    page = read(tmp_path / "hub")
    assert page.titles[:2] == ["What was converted", "Equivalence and drift"]


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"expected a run's directory .* found nothing of it"):
        tcnn.report(tmp_path)
    with pytest.raises(RequestError, match="found nothing"):
        tcnn.report(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="found a file"):
        tcnn.report(tmp_path / "file")


def test_written_whole_or_not_at_all(run: Path, tmp_path: Path) -> None:
    result = write(run, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size == result.bytes
    assert Page((tmp_path / "page.html").read_text(encoding="utf-8")).titles
    with pytest.raises(OutputError, match="exists already"):
        write(run, tmp_path / "page.html")
    for force in (False, True):
        with pytest.raises(OutputError, match="expected a file or nothing, found a directory"):
            write(run, tmp_path, force=force)


def test_without_images_no_torch_is_loaded(run: Path) -> None:
    script = (
        "import sys, tcnn; tcnn.report(sys.argv[1])\n"
        "heavy = ('torch', 'timm', 'torchvision', 'matplotlib.pyplot', 'tkinter')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
