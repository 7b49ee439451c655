"""Every picture, from one head to forty-nine, with any names: nothing clipped, the same bytes every time; and the
animation of where heads look: a frame an epoch, a panel a layer, circles of the Gaussians' shares.
"""

import hashlib
import io
import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import made_up
import numpy
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.text import Text
from PIL import Image
from sampled import sampled

from tcnn import files
from tcnn.analysis.plots import centres, gallery, locality, maps, robustness, style, training
from tcnn.analysis.plots.centres import animate, frames
from tcnn.errors import OutputError, RequestError
from tcnn.evaluation.corruptions import CORRUPTIONS


def pictures(heads: int, layers: int, names: tuple[str, ...] = ()) -> Iterator[gallery.NamedPlot]:
    name = names or ("a.safetensors", "b.safetensors")
    rows = [
        made_up.evaluated(each, top1, size, CORRUPTIONS)
        for each, top1 in ((name[0], 0.7), (name[-1], 0.8))
        for size in (160, 224)
    ]
    yield from gallery.training_plots(made_up.metrics(layers=layers, heads=heads, names=names))
    yield from gallery.inspection_plots(made_up.inspection(heads, layers, names))
    yield from gallery.evaluation_plots(rows)


def nothing_clipped(figure: Figure) -> None:
    """Whatever is drawn lies inside of the figure, but for a pixel of rounding."""
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    slack = 1.01 / figure.dpi
    assert box.x0 >= -slack, box
    assert box.y0 >= -slack, box
    assert box.x1 <= width + slack, box
    assert box.y1 <= height + slack, box


@pytest.mark.parametrize(("heads", "layers"), sampled([(4, 1), (4, 2), (1, 1), (9, 4), (49, 1), (9, 13)], [(4, 1)]))
def test_nothing_is_clipped(heads: int, layers: int) -> None:
    names = []
    for drawn in pictures(heads, layers):
        nothing_clipped(drawn.figure)
        names.append(drawn.name)
    assert len(set(names)) == len(names) >= 10


@pytest.mark.slow
def test_any_name_is_a_name() -> None:
    for drawn in pictures(1, len(made_up.HOSTILE), made_up.HOSTILE):
        nothing_clipped(drawn.figure)
        if not drawn.name.startswith("attention"):
            assert ElementTree.fromstring(style.svg(drawn.figure)).tag.endswith("svg")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("layer4.0.conv1", "layer4.0.conv1"),
        ("_x", " _x"),
        ("$x$", r"\$x\$"),
        ("a\nb\tc\u202ed", "a b c d"),
        ("💣 cat", "? cat"),
        ("می\u200cخو", "میخو"),
        ("n°\u00a01", "n° 1"),
        ("x" * 50, "…" + "x" * 39),
    ],
)
def test_labels(name: str, shown: str) -> None:
    assert style.label(name) == shown


def test_texts_say_units() -> None:
    made = training.gates_and_spans(made_up.metrics())
    assert made is not None
    texts = {text.get_text() for text in made.findobj(Text)}
    assert {"1/α (pixels² at τ = 1)", "σ(λ/τ): 0 content, 1 position", "epochs trained", "layer4.1.conv"} <= texts


def test_lines_are_the_numbers() -> None:
    rows = made_up.metrics(epochs=3, layers=2, heads=4)
    made = training.gates_and_spans(rows)
    assert made is not None
    spans, gates = made.axes
    last = training.epochs(rows)[-1]
    for ax, key in ((spans, "spans"), (gates, "gates")):
        ends = [line.get_ydata()[-1] for line in ax.lines]  # type: ignore[index]
        expected = []
        for values in last[key].values():
            expected += [*values, sum(values) / 4]
        assert ends == pytest.approx(expected)


def test_circles_and_centres_are_the_numbers() -> None:
    found = made_up.inspection(heads=4, layers=1)
    made = centres.centres(found.layers)
    assert made is not None
    panel = made.axes[0]
    circles = [patch for patch in panel.patches if hasattr(patch, "radius")]
    drawn = [(*circle.center, circle.radius) for circle in circles]
    expected = [
        (head.centre[1], head.centre[0], radius)  # type: ignore[index]
        for head in found.layers[0].heads
        for radius in (head.radius_50, head.radius_90)
    ]
    assert [pytest.approx(each) for each in expected] == drawn
    assert panel.get_ylim()[0] > panel.get_ylim()[1]  # rows go down


def test_the_largest_weight_is_orange_where_it_belongs() -> None:
    """The picture itself: of a map with one pixel, that pixel has the attention viewer's colour, and no other has."""
    found = made_up.inspection(heads=1, layers=1)
    layer = found.pictures[0].layers[0]
    weights = [[0.0] * 6 for _ in range(6)]
    weights[1][4] = 1.0
    alone = layer.model_copy(update={"combined": [weights]})
    (made,) = maps.maps(found.pictures[0].model_copy(update={"layers": [alone]}))
    made.canvas.draw()
    image = numpy.asarray(Image.open(io.BytesIO(style.png(made))).convert("RGB")).astype(int)
    x0, x1, y1, y0 = made.axes[0].images[1].get_extent()  # inches; the first is the image itself
    colours = {}
    for row, column in ((1, 4), (1, 3), (4, 1)):
        x, y = x0 + (column + 0.5) / 6 * (x1 - x0), y0 + (row + 0.5) / 6 * (y1 - y0)
        colours[row, column] = image[round(y * style.DPI), round(x * style.DPI)]
    assert style.ATTENTION == "#d55e00"
    assert abs(colours[1, 4] - (0xD5, 0x5E, 0x00)).max() < 40
    for other in ((1, 3), (4, 1)):
        assert numpy.ptp(colours[other]) < 10, other  # grey


def test_content_heads_have_no_map_of_positions() -> None:
    """They were drawn as maps whose largest weight is 0.0 %, as if that had been measured."""
    picture = made_up.inspection(heads=4, layers=2).pictures[0]
    first, second = picture.layers
    layers = [first.model_copy(update={"gates": [0.5, 0.25, None, None]}), second]
    for drawn, part, heads in ((layers, "positional", 6), (layers, "combined", 8), (layers, "content", 8)):
        (made,) = maps.maps(picture.model_copy(update={"layers": drawn}), part)  # type: ignore[arg-type]
        assert len(made.axes[0].images) == heads + 3, "each layer has the image, too, and the page a scale"
        nothing_clipped(made)
    none = [first.model_copy(update={"gates": [None] * 4})]
    assert maps.maps(picture.model_copy(update={"layers": none}), "positional") == []


def test_gains() -> None:
    before, after = (made_up.evaluated(n, t, corruptions=("fog", "snow")) for n, t in (("a", 0.5), ("b", 0.6)))
    assert robustness.gains(before, after)["fog"] == pytest.approx(dict.fromkeys(range(1, 6), 10.0))
    assert robustness.improvement(before, made_up.evaluated("c", 0.6), {}) is None
    assert sorted(c for names in robustness.CATEGORIES.values() for c in names) == sorted(CORRUPTIONS)


def test_what_there_is_nothing_to_draw_for() -> None:
    assert training.progress([]) is None
    assert training.gates_and_spans([{"kind": "epoch", "epoch": 0, "val": {"top1": 0.5}}]) is None
    assert robustness.resolution([made_up.evaluated("a", 0.5)]) is None
    bare = [layer.model_copy(update={"heads": [head.model_copy(update={"centre": None}) for head in layer.heads]})
            for layer in made_up.inspection().layers]  # fmt: skip
    assert centres.centres(bare) is None
    plain = made_up.inspection().pictures[0]
    layers = [layer.model_copy(update={"positional": None, "gates": None}) for layer in plain.layers]
    assert maps.maps(plain.model_copy(update={"layers": layers}), "positional") == []


def test_non_locality_is_compared_in_shares_of_the_map() -> None:
    layer = made_up.inspection(side=10).layers[0]
    assert locality.relative(layer) == pytest.approx(100 * layer.non_locality.total / 8)  # type: ignore[operator]


def digests() -> list[str]:
    found = []
    for drawn in pictures(4, 1):
        if "content" not in drawn.name and "positional" not in drawn.name:
            found.append(hashlib.sha256(style.png(drawn.figure)).hexdigest())
            found.append(hashlib.sha256(style.svg(drawn.figure).encode()).hexdigest())
    return found


@pytest.mark.slow
def test_the_same_bytes_in_another_process() -> None:
    script = "import sys, json; sys.path[:0] = sys.argv[1:]; import test_plots; print(json.dumps(test_plots.digests()))"
    here = Path(__file__).parent
    command = [sys.executable, "-c", script, str(here), str(here.parent / "helpers")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip().replace('"', "'") == str(digests())


def test_several_threads_draw_the_same() -> None:
    def draw(number: int) -> bytes:
        made = centres.centres(made_up.inspection(heads=1, layers=1, seed=number % 2).layers)
        assert made is not None
        return style.png(made)

    alone = [draw(0), draw(1)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(draw, range(3))) == [*alone, alone[0]]


@pytest.mark.slow
def test_no_window_and_no_torch_is_needed() -> None:
    script = (
        "import sys; from tcnn.analysis.plots import gallery\n"
        "print([name for name in ('matplotlib.pyplot', 'torch', 'tkinter') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_files(tmp_path: Path) -> None:
    made = centres.centres(made_up.inspection(heads=1, layers=1).layers)
    assert made is not None
    written = style.write(made, tmp_path / "a")
    assert [path.name for path in written] == ["a.png", "a.svg"]
    assert Image.open(written[0]).size == tuple((made.get_size_inches() * style.DPI).astype(int))
    assert b"<dc:date>" not in written[1].read_bytes()
    with pytest.raises(OutputError, match=r"a.png: exists already"):
        style.write(made, tmp_path / "a")


LAYER = {"centres": [[0.0, 1.0], [-2.0, 0.5]], "strengths": [1.0, 0.25]}
ROWS = [
    {"kind": "epoch", "epoch": 1, "looking": {"blocks.0.attn": LAYER, "blocks.1.attn": LAYER}},
    {"kind": "epoch", "epoch": 2, "looking": {"blocks.0.attn": LAYER, "blocks.1.attn": LAYER}},
]


def test_a_frame_for_every_epoch(tmp_path: Path) -> None:
    file = animate(ROWS, tmp_path / "centres.gif")
    with Image.open(file) as image:
        assert image.n_frames == 2
    first = frames(ROWS)[0].axes[0]
    circles = [patch for patch in first.patches if isinstance(patch, Circle)]
    assert [(circle.center, round(circle.radius**2, 3)) for circle in circles[:2]] == [
        ((1.0, 0.0), round(math.log(2), 3)), ((1.0, 0.0), round(math.log(10), 3)),
    ]  # fmt: skip
    assert len(frames(ROWS)[0].axes) == 2 and len(circles) == 4


def test_a_run_without_centres_is_refused() -> None:
    with pytest.raises(RequestError, match="recorded no centres"):
        frames([{"kind": "epoch", "epoch": 1}])


@pytest.mark.parametrize("last", [1, 3])
def test_an_interrupt_right_after_a_file_has_its_name_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """After the first picture, and after inspect.json: either would be in the way of the next attempt."""
    named: list[Path] = []

    def interrupt(folder: Path) -> None:
        named.append(folder)
        if len(named) == last:
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "folder_to_disk", interrupt)
    found = made_up.inspection(2, 1).model_copy(update={"pictures": []})
    with pytest.raises(KeyboardInterrupt):
        gallery.save(found, tmp_path, kinds=("png",))
    assert len(named) == last
    assert list(tmp_path.iterdir()) == []
