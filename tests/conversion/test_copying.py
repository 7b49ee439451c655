"""Copies of models that `copy.deepcopy` refuses: with tensors that have a history of gradients, locks or open files."""

import ast
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import tcnn
from tcnn.errors import RequestError
from tcnn.models.copying import copied, memo_of
from tcnn.models.running import in_dtype
from tcnn.models.trace import meta_copy

ROOT = Path(__file__).parents[2]


class Net(nn.Module):
    """Keeps features of its last call, as code for auxiliary losses and for looking into models does."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.last = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.seen: dict[str, object] = {}

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(self.stem(x).relu())
        if self.training:
            self.loss = y.square().mean()
            self.seen = {"parts": [y, (self.loss, None)], "itself": self.seen}
        return y


HELD: dict[str, Callable[[nn.Module], object]] = {
    "what its forward pass keeps": lambda net: None,
    "spectral norm": lambda net: nn.utils.spectral_norm(net.stem),
    "weight norm": lambda net: nn.utils.weight_norm(net.stem),
    "pruning": lambda net: prune.l1_unstructured(net.stem, "weight", 0.5),
}


@pytest.fixture(params=HELD)
def source(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    net = Net()
    HELD[request.param](net)
    return net


def step(model: nn.Module) -> nn.Module:
    """A training step, after which the model holds what the step computed."""
    model.train()(torch.randn(2, 3, 16, 16)).sum().backward()
    assert not model.loss.is_leaf
    return model


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_after_a_training_step_everything_works(source: nn.Module, tmp_path: Path) -> None:
    model = step(tcnn.convert(step(source), input_size=16).model).eval()
    report = tcnn.verify(source, model)
    assert max(layer.worst for layer in report.passes[1].layers) < 1e-10  # spectral norm went on in one of them
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model(images)
        assert torch.allclose(tcnn.fuse(model)(images), expected, atol=1e-5)
        assert torch.allclose(tcnn.fold(model, source=source).model(images), expected, atol=1e-5)
        loaded = tcnn.load(tcnn.save(model, tmp_path / "m.safetensors"), source=source)
        assert torch.equal(loaded(images), expected)
    assert not model.loss.is_leaf, "the model itself is as it was"


def test_what_was_computed_is_copied_once_and_without_its_history() -> None:
    net = step(Net())
    for made in (copied(net), in_dtype(net, torch.float64), meta_copy(net)):
        parts = made.seen["parts"]  # type: ignore[index, operator, call-overload]
        assert made.loss is parts[1][0] and made.loss is not net.loss
        assert made.loss.is_leaf and torch.equal(made.loss, net.loss)
        assert parts[0].is_leaf and torch.equal(parts[0], net.seen["parts"][0])  # type: ignore[index]


def test_as_deepcopy_does_where_a_class_says_how() -> None:
    """And one under two names is one again; of what stands in the memo nothing is copied."""

    class Kept(nn.Linear):
        def __getstate__(self) -> dict[str, object]:
            return {**super().__getstate__(), "left": "behind"}

        def __setstate__(self, state: dict[str, object]) -> None:
            super().__setstate__(state | {"arrived": self.__class__})

    class Own(nn.Linear):
        def __deepcopy__(self, memo: object) -> nn.Module:
            return nn.Identity()

    net = nn.Sequential(Kept(2, 2), Own(2, 2), nn.Sequential(Net()))
    net.again, net.plain, net.lock = net[0], [net[0]], nn.Sequential()  # type: ignore[assignment]
    net.lock.held = threading.Lock()  # type: ignore[assignment]
    stand_in = nn.Identity()
    made: Any = copied(net, {**memo_of(net), id(net.lock): stand_in})
    assert made[0] is made.again is made.plain[0] is not net[0]
    assert (made[0].left, made[0].arrived) == ("behind", Kept)
    assert isinstance(made[1], nn.Identity)
    assert made.lock is stand_in
    x = torch.randn(1, 3, 16, 16)
    assert torch.equal(made[2](x), net[2](x)) and made[2][0].stem.weight is not net[2][0].stem.weight


def test_however_deep_its_modules_are_nested() -> None:
    """copy.deepcopy goes five calls deeper for each, and ended at Python's limit."""
    net: nn.Module = nn.Linear(2, 2)
    for _ in range(250):
        net = nn.Sequential(net)
    assert sum(1 for _ in copied(net).modules()) == 251


@pytest.mark.parametrize("call", ["convert", "verify", "fuse"])
def test_what_cannot_be_copied_is_named_with_its_module(call: str) -> None:
    net = nn.Sequential(Net(), nn.Flatten())
    model = tcnn.convert(net, input_size=16).model
    for each in (net, model):
        each[0].guards = {"lock": threading.Lock()}
    calls = {
        "convert": lambda: tcnn.convert(net, input_size=16),
        "verify": lambda: tcnn.verify(net, model),
        "fuse": lambda: tcnn.fuse(model),
    }
    with pytest.raises(RequestError) as refused:
        calls[call]()
    assert str(refused.value) == (
        "0: its guards (of type dict) cannot be copied, as tcnn copies models (cannot pickle '_thread.lock' object); "
        "keep it outside the model, or take it away meanwhile"
    )


def test_a_model_that_refuses_to_be_copied_is_told_so() -> None:
    class Refuses(Net):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise ValueError("one of a kind")

    with pytest.raises(RequestError, match=r"^Refuses: expected a model that copy\.deepcopy .*\(one of a kind\)$"):
        copied(Refuses())


def test_models_are_copied_in_one_place() -> None:
    elsewhere = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tcnn").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node).startswith(("copy.deepcopy(model", "copy.deepcopy(source"))
    ]
    assert [place.partition(":")[0] for place in elsewhere] == ["tcnn/models/copying.py"]
