"""`tcnn.plots`: pictures by name, for a notebook, and as files; and what notebooks show of other results."""

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import made_up
import numpy
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from nets import PlainNet
from PIL import Image

import tcnn
from tcnn.analysis.pages.report import Page
from tcnn.errors import OutputError, RequestError
from tcnn.evaluation.comparing.before_after import BeforeAfter

PARTS = ("combined", "content", "positional")
PNG = b"\x89PNG\r\n\x1a\n"


def shown(thing: object) -> dict[str, Any]:
    """What a notebook shows of it, by MIME type."""
    data, _ = DisplayFormatter().format(thing)
    return data


def test_plots_of_an_inspection() -> None:
    plots = tcnn.plots(made_up.inspection(4, 1))
    assert list(plots) == [
        "centres",
        "non-locality",
        "non-locality-compared",
        *(f"attention-1-{part}" for part in PARTS),
    ]
    assert shown(plots["centres"])["image/png"].startswith(PNG)
    page = shown(plots)["text/html"]
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == page.count("<figcaption>") == len(plots)
    assert all(base64.b64decode(picture).startswith(PNG) for picture in pictures)
    assert repr(plots).splitlines()[0].startswith("centres: Where each head looks")


def test_plots_of_a_run_and_of_an_evaluation(tmp_path: Path) -> None:
    rows = made_up.metrics(layers=1, heads=4)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(tcnn.plots(tmp_path)) == ["training", "gates-and-spans"]
    found = [made_up.evaluated("a", 0.7, size) for size in (160, 224)]
    file = tmp_path / "evaluation.json"
    file.write_text(json.dumps({"data": "photos", "images": 9, "rows": [row.model_dump(mode="json") for row in found]}))
    assert list(tcnn.plots(str(file))) == ["resolution"]
    assert list(tcnn.plots(tmp_path)) == ["training", "gates-and-spans", "resolution"]
    (tmp_path / "inspect.json").write_text(made_up.inspection(4, 1).model_dump_json())
    assert len(tcnn.plots(tmp_path)) == 3 + len(tcnn.plots(made_up.inspection(4, 1)))


def test_plots_are_written_once(tmp_path: Path) -> None:
    plots = tcnn.plots(made_up.inspection(1, 1))
    files = plots.save(tmp_path / "new", kinds=("svg",))
    assert [file.name for file in files] == [f"{name}.svg" for name in plots]
    with pytest.raises(OutputError):
        plots.save(tmp_path / "new", kinds=("svg",))
    assert plots.save(tmp_path / "new", kinds=("svg",), force=True) == files


@pytest.mark.parametrize(
    "wrong", [3, None, ["run"], "no such run", torch.zeros(1), BeforeAfter(images=1, rows=[], differences=[])]
)
def test_what_has_no_plots(wrong: Any) -> None:
    with pytest.raises(RequestError, match="expected"):
        tcnn.plots(wrong)


def test_a_report_is_a_page_in_a_frame() -> None:
    page = Page('<p title="a">1 < 2</p>')
    assert shown(page)["text/plain"] == "<an HTML page of 22 characters>"
    assert 'srcdoc="&lt;p title=&quot;a&quot;&gt;1 &lt; 2&lt;/p&gt;"' in shown(page)["text/html"]


def test_results_are_shown_as_they_are_printed() -> None:
    net = PlainNet()
    model, report = tcnn.convert(net, input_size=(16, 16))
    check = tcnn.verify(net, model, float64=False)
    found = tcnn.inspect(model, torch.randn(1, 3, 16, 16))
    for result in (report, check, found):
        assert shown(result)["text/plain"] == str(result)
    title, names, *_ = str(found).splitlines()
    assert title.endswith("at 16×16, 1 image")
    assert names.split()[:4] == ["layer", "map", "heads", "gate"]
    assert len(str(found).splitlines()) == 3 + len(found.layers)


def test_images_of_pil_and_files_mixed(tmp_path: Path) -> None:
    """The same pixels give the same answers, whichever way they come."""
    net = PlainNet()
    model, _ = tcnn.convert(net, input_size=(16, 16))
    pixels = numpy.random.default_rng(0).integers(0, 255, (24, 20, 3), dtype=numpy.uint8)
    image, file = Image.fromarray(pixels), tmp_path / "one.png"
    image.save(file)
    several: Sequence[Any] = [image, file, Image.open(file)]
    both = tcnn.predict(model, several, size=16)
    assert [one.file for one in both] == ["image 1", str(file), str(file)]
    alone = tcnn.predict(model, image, size=16)
    answers = [[guess.probability for guess in one.guesses] for one in (*both, *alone)]
    assert answers[1:] == [pytest.approx(answers[0], rel=1e-6)] * 3
    guess = both[0].guesses[0]
    assert str(both[0]).startswith(f"image 1: {guess.name} {guess.probability:.1%}, ")

    single, listed = (tcnn.inspect(model, given, size=16) for given in (image, several))
    assert [picture.name for picture in listed.pictures] == ["image 1", str(file), str(file)]
    assert listed.pictures[0].png == listed.pictures[1].png == single.pictures[0].png
    one, other = (dict(found.layers[0].heads[0].non_locality) for found in (single, listed))
    assert one == pytest.approx(other)


def test_a_list_of_wrong_images() -> None:
    model, _ = tcnn.convert(PlainNet(), input_size=(16, 16))
    with pytest.raises(RequestError, match="expected images of PIL, or the paths of files or folders, found int"):
        tcnn.inspect(model, [3])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="expected at least one image"):
        tcnn.inspect(model, [])
