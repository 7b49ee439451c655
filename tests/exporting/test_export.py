"""Exporting models: the files compute what the models do, at sizes that were never tried before, or are not written."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxscript
import pytest
import tiny_runs
import torch
from nets import relative_error
from timm.layers import Conv2dSame
from torch import Tensor, nn

import tcnn
from tcnn.errors import EnvironmentFailure, RequestError, VerificationError
from tcnn.exporting import check as export_check
from tcnn.exporting import interface, onnx_file
from tcnn.exporting.interface import AXES
from tcnn.exporting.program import free_axes, trace
from tcnn.folding.fold import fused
from tcnn.layers import GPSA2d
from tcnn.layers.backends.selection import use_backend
from tcnn.models.trace import evaluating

SIZE = (24, 20)
TEXTS = ("tcnn_version", "base_model", "interpolation", "crop_mode")
Runner = Callable[[Tensor], Tensor]


def soft(content: str = "global") -> nn.Module:
    """A network whose last convolution became attention, at τ = 1, with gates and centres of every kind."""
    source = tiny_runs.seeded(tiny_runs.TwoConvs).eval()
    model, _ = tcnn.convert(source, target="last", content=content, temperature=1.0)
    layer = model.last
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layer.query.normal_()
        layer.key.normal_()
        layer.value.add_(0.2 * torch.randn_like(layer.value))
        layer.gating_param.copy_(torch.linspace(-3, 3, 9))
        layer.attention_centers.add_(0.3)
    return model


def onnx_runner(path: Path) -> Runner:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0])


def torch_runner(path: Path) -> Runner:
    return torch.export.load(path).module()


@torch.no_grad()
def same(model: nn.Module, run: Runner, *shapes: tuple[int, int, int, int]) -> None:
    for shape in shapes:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
        with use_backend("reference"):
            assert relative_error(model(x), run(x)) < 1e-5, shape


def without_stride() -> nn.Module:
    """A layer of three taps and a content head at τ = 1, on the image itself: half of a size that is free, and more
    heads, take a tracer long.
    """
    source = tiny_runs.seeded(
        lambda: nn.Sequential(nn.Conv2d(3, 4, (1, 3), padding=(0, 1)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    )
    model, _ = tcnn.convert(source.eval(), target="0", temperature=1.0, content_heads=1, input_size=SIZE)
    with torch.no_grad():
        model[0].proj.add_(0.1)
    return model


@pytest.mark.parametrize("made", [without_stride, pytest.param(soft, marks=pytest.mark.slow)])
def test_every_axis_is_free(made: Callable[[], nn.Module], tmp_path: Path) -> None:
    """The same of ONNX is in tests/cli/test_cli_export_push.py."""
    model = made()
    report = tcnn.export(model, tmp_path / "a.pt2", size=SIZE)
    assert [(axis.name, axis.dynamic) for axis in report.axes] == [(axis, True) for axis in AXES]
    assert report.error == max(check.error.worst for check in report.checks) <= report.tolerance == 1e-5
    shapes = [check.shape for check in report.checks]
    assert len({shape[0] for shape in shapes}) == len({shape[2:] for shape in shapes}) == 3
    assert any(height % 2 and height != width for _, _, height, width in shapes)
    same(model, torch_runner(tmp_path / "a.pt2"), (1, 3, 24, 20), (5, 3, 9, 31), (2, 3, 40, 9))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "suffix", "reader"),
    [
        ("pooled:3", "pt2", torch_runner),
        pytest.param("window:4", "onnx", onnx_runner, marks=pytest.mark.slow),
    ],
)
def test_content_scopes(content: str, suffix: str, reader: Callable[[Path], Runner], tmp_path: Path) -> None:
    model = soft(content)
    path = tmp_path / f"a.{suffix}"
    report = tcnn.export(model, path, size=SIZE, dynamic=("batch",))
    assert [axis.dynamic for axis in report.axes] == [True, False, False]
    same(model, reader(path), (1, 3, *SIZE), (4, 3, *SIZE))


@pytest.mark.slow
def test_a_folded_model(tmp_path: Path) -> None:
    model = soft()
    with torch.no_grad():
        model.last.set_temperature(1 / 46)
        model.last.gating_param.copy_(torch.tensor([1.0, 1, 1, 1, -9, -9, 0.01, 0.01, 1]))
        model.last.attention_centers.sub_(0.3)
    folded, report = tcnn.fold(
        model, 1e-3, source=tiny_runs.TwoConvs(), config=tcnn.VerificationConfig(input_size=SIZE)
    )
    kinds = report.layers[0]
    assert kinds.convolution and kinds.attention + kinds.content
    tcnn.export(folded, tmp_path / "a.onnx", size=SIZE, dynamic=("batch",))
    same(folded, onnx_runner(tmp_path / "a.onnx"), (1, 3, *SIZE), (3, 3, *SIZE))


def test_attention_is_traced_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """And in the hard limit too, where the layer runs as a convolution."""
    model, _ = tcnn.convert(tiny_runs.seeded(tiny_runs.TwoConvs).eval(), target="last")
    graphs = []
    for wanted in ("auto", "fused"):
        monkeypatch.setenv("TCNN_ATTENTION", wanted)
        program = trace(model, torch.zeros(2, 3, *SIZE), ()).program
        graphs.append([str(node.target) for node in program.graph.nodes])
        assert not any("stack_trace" in node.meta for node in program.graph.nodes)
    assert graphs[0] == graphs[1]
    assert sum("softmax" in name for name in graphs[0]) == 3
    assert sum("conv2d" in name for name in graphs[0]) == 1


def test_where_sizes_cannot_be_free() -> None:
    padded = nn.Sequential(GPSA2d(3, 4, 3, padding="dynamic"))
    tries, (note,) = free_axes(padded, AXES)
    assert tries == [("batch",), ()]
    assert note == "height and width are fixed: the model's padding follows the size of the map (SAME)"
    assert free_axes(nn.Sequential(Conv2dSame(3, 4, 3, 2)), AXES)[1] == [note], "timm's own"
    assert "window:4" in free_axes(soft("window:4"), AXES)[1][0]
    assert free_axes(soft("window:4"), ("batch",)) == ([("batch",), ()], [])
    assert free_axes(soft(), AXES) == ([AXES, ("batch",), ()], [])


class Several(nn.Conv2d):
    """Returns more than logits."""

    def __init__(self, make: Callable[[Tensor], object]) -> None:
        super().__init__(3, 2, 1)
        self.make = make

    def forward(self, x: Tensor) -> object:  # type: ignore[override]
        return self.make(super().forward(x))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda x: x, ["logits"]),
        (lambda x: [x, x + 1, (x * 2,)], ["features_0", "features_1", "features_2"]),
        (lambda x: {"mean": {"a b": x}, "parts": [x + 1, x * 2]}, ["mean_a_b", "parts_0", "parts_1"]),
    ],
)
def test_outputs_have_names(make: Callable[[Tensor], object], names: list[str]) -> None:
    program = trace(Several(make).eval(), torch.zeros(1, 3, 4, 4), ()).program
    assert onnx_file.output_names(program) == names


def test_what_the_tracer_stumbles_over_is_told() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("the moon is full")

    with pytest.raises(RequestError, match=r"torch\.export cannot trace it \(the moon is full"):
        trace(Several(fails).eval(), torch.zeros(1, 3, 4, 4), ())


def test_of_what_a_translator_says_the_cause_is_told() -> None:
    """It wraps a page of advice around it."""
    try:
        try:
            raise ValueError("no such\noperator " + 1000 * "x ")
        except ValueError as error:
            raise RuntimeError("a page of advice") from error
    except RuntimeError as error:
        found = onnx_file._reason(error)
    assert found.startswith("no such operator x x") and len(found) <= 160


def test_axes_that_end_at_a_map_of_one_pixel_are_fixed() -> None:
    """A stage of stride 16 has one pixel of an image of 16, on which the tracer specialises."""
    source = nn.Sequential(nn.Conv2d(3, 4, 3, 16, 1), nn.Conv2d(4, 4, 3, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = tcnn.convert(source, target="1", input_size=(16, 16)).model
    with evaluating(model), fused(model), pytest.raises(RequestError, match="could not grow beyond the "):
        trace(model, torch.zeros(2, 3, 16, 16), ("batch", "height", "width"))


def test_a_file_that_differs_is_not_written(tmp_path: Path) -> None:
    model, other = soft(), soft("pooled:3")
    with pytest.raises(VerificationError, match=r"differs from PyTorch by .*expected at most 1e-12"):
        tcnn.export(model, tmp_path / "a.onnx", size=SIZE, dynamic=(), tolerance=1e-12)  # another library's kernels
    assert list(tmp_path.iterdir()) == []
    checks = export_check.compare(model, lambda x: [other(x).detach()], [(2, 3, *SIZE)])
    with pytest.raises(VerificationError, match="nothing was written"):
        export_check.check_tolerance(model, checks, 1e-5)
    with pytest.raises(VerificationError, match="does not run on 1×3×24×20"):
        export_check.compare(model, lambda x: [x @ x], [(1, 3, *SIZE)])


@pytest.mark.slow
def test_an_opset_that_lacks_operators(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"opset 13 lacks .*Pad \(18\).*the lowest opset .* is 18$"):
        tcnn.export(soft(), tmp_path / "a.onnx", size=SIZE, dynamic=(), opset=13)
    with pytest.raises(RequestError, match=r"^opset: expected 1 to"):
        tcnn.export(soft(), tmp_path / "a.onnx", opset=999)
    assert list(tmp_path.iterdir()) == []
    tcnn.export(soft(), tmp_path / "a.onnx", size=SIZE, dynamic=(), opset=20)
    model = onnx.load(tmp_path / "a.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 20)]
    assert str(Path(__file__).parents[2]).encode() not in (tmp_path / "a.onnx").read_bytes()


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = soft()
    for arguments, message in (
        ({"path": "a.bin"}, "expected a name that ends in .onnx or .pt2"),
        ({"format": "tflite"}, "expected onnx or torch"),
        ({"size": (0, 4)}, "expected 1 to 65536 pixels"),
        ({"size": (10**30, 4)}, "expected 1 to 65536 pixels"),
        ({"batch": 0}, "expected one image or more"),
        (
            {"dynamic": "batch"},
            "dynamic axes: expected a list of batch, height, width, or of some of them, found 'batch'",
        ),
        ({"dynamic": ("depth",)}, "expected some of batch, height, width, found 'depth'"),
        ({"tolerance": 0.0}, "expected a relative error above 0"),
    ):
        given = {"path": "a.onnx", **arguments}
        with pytest.raises(RequestError, match=message):
            tcnn.export(model, tmp_path / given.pop("path"), **given)
    with pytest.raises(RequestError, match="expected float32 parameters, found float64"):
        tcnn.export(soft().double(), tmp_path / "a.pt2")
    with pytest.raises(RequestError, match="Identity has no parameters: nothing to export"):
        tcnn.export(nn.Identity(), tmp_path / "a.pt2")
    monkeypatch.setattr(interface, "NEEDED", ("onnx", "not_installed"))
    with pytest.raises(EnvironmentFailure, match=r'ONNX needs not_installed, .*pip install "tcnn\[export\]"'):
        tcnn.export(model, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_onnxscript_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks the part that was made for this torch."""
    wanted = importlib.import_module("torch.onnx._internal._lazy_import").onnxscript_apis
    monkeypatch.setattr(wanted, "_module", None)
    monkeypatch.setitem(sys.modules, wanted._name, None)
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    said = rf"^onnxscript {onnxscript.__version__} is too old for torch .* \(.*{wanted._name}.*\): pip install -U onnx"
    with pytest.raises(EnvironmentFailure, match=said):
        tcnn.export(model, tmp_path / "a.onnx", size=(8, 8), dynamic=())
    assert list(tmp_path.iterdir()) == []


def test_a_model_too_large_for_one_file(tmp_path: Path) -> None:
    large = nn.Linear(2**15, 2**15, device="meta")
    with pytest.raises(RequestError, match=r"holds less than 2 GiB, the model has 4\.0 GiB; export it to \.pt2"):
        tcnn.export(large, tmp_path / "a.onnx")


def test_what_the_file_says_of_its_images(tmp_path: Path) -> None:
    """For a program that has nothing else: how images are scaled, cut and normalised, and what the classes are."""
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    told = {"mean": [0.5, 0.4, 0], "std": [0.2] * 3, "interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "squash"}
    model.pretrained_cfg = {**told, "architecture": "tiny", "label_names": ["cat", "dog"], "input_size": (3, 9, 9)}
    model.num_classes = 2
    (tmp_path / "a.pt2").write_text("an older one")
    with pytest.raises(RequestError, match="exists already"):
        tcnn.export(model, tmp_path / "a.pt2", size=(8, 6), dynamic=())
    assert tcnn.export(model, tmp_path / "a.pt2", size=(8, 6), dynamic=(), force=True).base_model == "tiny"
    extra = {"metadata.json": ""}
    torch.export.load(tmp_path / "a.pt2", extra_files=extra)
    found = {
        name: value if name in TEXTS else json.loads(value) for name, value in json.loads(extra.popitem()[1]).items()
    }
    own = {"tcnn_version": tcnn.__version__, "base_model": "tiny", "input_size": [3, 8, 6], "num_classes": 2}
    assert found == {**told, **own, "label_names": ["cat", "dog"]}


def test_scales_of_zero_are_said(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    nn.init.zeros_(model[1].weight)
    nn.init.ones_(model[1].bias)
    report = tcnn.export(model, tmp_path / "a.pt2", size=(8, 8), dynamic=())
    assert "the check is blind behind them" in report.notes[0]
    assert report.outputs and np.isfinite(report.error)
