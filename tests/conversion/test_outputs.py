"""Models that return dicts, dataclasses and nested tuples are converted, verified and exported as others are."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime
import pytest
import torch
from nets import image, relative_error
from sampled import crossed
from torch import Tensor, nn

import tcnn
from tcnn.errors import RequestError
from tcnn.exporting.onnx_file import NATIVE_OPSET, translate
from tcnn.models.outputs import separate, tensors
from tcnn.models.trace import trace

SIZE = (13, 18)


class Pair(NamedTuple):
    scores: Tensor
    maps: Tensor


@dataclass
class Answer:
    scores: Tensor
    maps: Tensor
    loss: Tensor | None = None


@dataclass
class ModelOutput(OrderedDict[str, Any]):
    """As that of transformers: a dataclass, and a mapping that has no entry for what is None."""

    scores: Tensor
    maps: Tensor
    hidden: Tensor | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if (value := getattr(self, field.name)) is not None:
                self[field.name] = value


PACKINGS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "dict": lambda scores, maps: {"scores": scores, "maps": maps},
    "nested": lambda scores, maps: {"z": [scores, None], "a": {"deep": (maps, 3, "text")}},
    "tuple of tuples": lambda scores, maps: ((scores,), (maps, (scores * 2,))),
    "namedtuple": Pair,
    "dataclass": Answer,
    "transformers": ModelOutput,
    "with a scalar": lambda scores, maps: {"scores": scores, "maps": maps, "scale": maps.new_tensor(0.5)},
}


class TwoHeads(nn.Module):
    """A CNN with two outputs, packed as told."""

    def __init__(self, pack: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.shared = nn.Conv2d(8, 8, 3, padding=1)
        self.dense = nn.Conv2d(8, 2, 1)
        self.head = nn.Linear(8, 4)
        self.pack = pack

    def forward(self, x: Tensor) -> Any:
        x = self.shared(self.stem(x).relu()).relu()
        return self.pack(self.head(x.mean((2, 3))), self.dense(x))


@pytest.fixture
def source(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return TwoHeads(PACKINGS[request.param]).eval()


def test_tensors_come_in_the_models_own_order() -> None:
    a, b, c = (torch.full((2, n), float(n)) for n in (1, 2, 3))
    assert [t.shape[1] for t in tensors({"z": a, "b": [None, Answer(c, b)], "c": "text"})] == [1, 3, 2]
    assert list(tensors(ModelOutput(a, b))) == [a, b]


def test_every_tensor_stays_by_itself_under_its_keys() -> None:
    maps, scores, loss = torch.ones(2, 3, 4), torch.full((2, 5), 2.0), torch.tensor(7.0)
    assert separate(maps, 2)[0].rows is maps
    found = dict(separate({"scores": scores, "of": [maps, Answer(maps, scores)], "loss": loss}, 2))
    assert list(found) == ["scores", "of.0", "of.1.scores", "of.1.maps", "loss"]
    assert found["of.0"] is maps and found["of.1.maps"] is scores
    assert [row.tolist() for row in found["loss"]] == [7, 7]
    assert [one.name for one in separate(Pair(scores, maps), 2)] == ["scores", "maps"]


def test_no_tensor_at_all_is_one_line() -> None:
    with pytest.raises(RequestError, match=r"^expected a model that returns a tensor.* found str$"):
        separate("nothing", 1)


@pytest.mark.parametrize("source", PACKINGS, indirect=True)
def test_is_traced_and_verified(source: nn.Module) -> None:
    assert [step.name for step in trace(source, SIZE)] == ["stem", "shared", "head", "dense"]
    converted, report = tcnn.convert(source, input_size=SIZE)
    assert [layer.name for layer in report.layers] == ["shared"]
    verdict = tcnn.verify(source, converted, input_size=SIZE)
    assert verdict.passed, verdict.failure()
    assert verdict.passes[1].logits.worst < 1e-12 and verdict.drift.logits.worst > 1e-4


@pytest.mark.parametrize(("source", "head"), crossed(list(PACKINGS), ["head", "dense"], 3), indirect=["source"])
def test_a_difference_in_either_output_is_seen(source: nn.Module, head: str) -> None:
    converted, _ = tcnn.convert(source, input_size=SIZE)
    with torch.no_grad():
        converted.get_submodule(head).weight[0, 0] += 0.1
    assert not tcnn.verify(source, converted, input_size=SIZE).passed


def test_is_exported_to_onnx_under_its_own_names(tmp_path: Path) -> None:
    """`relu` and `linear` are also what the graph calls values inside."""
    torch.manual_seed(0)
    model = TwoHeads(lambda scores, maps: {"relu": scores, "of": {"linear": [maps, None]}}).eval()
    report = tcnn.export(model, tmp_path / "a.onnx", size=SIZE, batch=3, dynamic=())
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"), providers=["CPUExecutionProvider"])
    assert report.outputs == tuple(output.name for output in session.get_outputs()) == ("relu", "of_linear_0")
    same(model, lambda x: [torch.from_numpy(part) for part in session.run(None, {"images": x.numpy()})])


def test_is_exported_to_a_program(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, _ = tcnn.convert(TwoHeads(lambda scores, maps: {"z": [scores], "a": (maps, None)}).eval(), input_size=SIZE)
    assert tcnn.export(model, tmp_path / "a.pt2", size=SIZE, dynamic=("batch",)).error <= 1e-5
    same(model, torch.export.load(tmp_path / "a.pt2").module())


@torch.no_grad()
def same(model: nn.Module, run: Callable[[Tensor], Any]) -> None:
    x = image(SIZE, batch=3)
    expected, found = list(tensors(model(x))), list(tensors(run(x)))
    assert len(found) == len(expected) == 2
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("packing", ["namedtuple", "nested"])
def test_what_pytorch_cannot_store_is_refused_in_one_line(packing: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^torch\.export cannot") as caught:
        tcnn.export(TwoHeads(PACKINGS[packing]).eval(), tmp_path / "a.pt2", size=SIZE, dynamic=())
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_names_that_would_clash_are_refused_in_one_line() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"images": x.mean((1, 2, 3)), "maps": x.relu()}

    program = torch.export.export(Named(), (torch.zeros(2, 3, *SIZE),))
    with pytest.raises(RequestError, match=r"different names, none of them images, found images, maps$"):
        translate(program, NATIVE_OPSET, {}, {})
