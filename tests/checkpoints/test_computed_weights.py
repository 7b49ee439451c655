"""Layers whose weights are computed from other tensors, as parametrisations and pruning leave them: in a GPSA layer
they are refused before a file is written, as no model could be built for it; in another the source has them, too.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from nets import relative_error
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import tcnn
from tcnn.config import FinetuneConfig
from tcnn.errors import RequestError
from tcnn.models.checks import TENSORS
from tcnn.training.preparing.prepare import prepare

COMPUTED: dict[str, tuple[Callable[[nn.Module, str], object], Callable[[nn.Module, str], object]]] = {
    "parametrizations.proj.original0": (parametrizations.weight_norm, parametrize.remove_parametrizations),
    "proj_mask": (lambda layer, name: prune.l1_unstructured(layer, name, 0.5), prune.remove),
}
"""By the tensor that is found: how the layer gets it, and how the weight is baked in."""
OTHERS: dict[str, Callable[[nn.Module], object]] = {
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 4),
    ).eval()  # fmt: skip


def converted(net: nn.Module) -> nn.Module:
    return tcnn.convert(net, input_size=16, temperature=0.3).model


@pytest.fixture(params=COMPUTED)
def found(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_file_stays_as_it_was_until_the_weight_is_baked_in(found: str, tmp_path: Path) -> None:
    net, path = network(), tmp_path / "m.safetensors"
    model = converted(net)
    tcnn.save(model, path)
    before = path.read_bytes()
    compute, bake = COMPUTED[found]
    compute(model[2], "proj")
    with pytest.raises(RequestError) as refused:
        tcnn.save(model, path, force=True)
    assert str(refused.value) == (
        f"2: expected a GPSA layer with its own tensors only to save, found {found}, as parametrisations and pruning "
        "leave it; bake the weight in first (torch.nn.utils.parametrize.remove_parametrizations, or "
        "torch.nn.utils.prune.remove)"
    )
    assert path.read_bytes() == before
    bake(model[2], "proj")
    tcnn.save(model, path, force=True)
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(tcnn.load(path, source=net)(x), model.eval()(x))


def test_folding_pruning_and_training_refuse_it(found: str) -> None:
    net = network()
    model = converted(net)
    COMPUTED[found][0](model[2], "proj")
    with pytest.raises(
        RequestError, match=rf"^2: expected a GPSA layer with its own tensors only to fold, found {found}"
    ):
        tcnn.fold(model, max_error=0.9, source=net)
    with pytest.raises(RequestError, match=f"tensors only to fold, found {found}"):
        tcnn.prune(model, source=net)
    with pytest.raises(RequestError, match=f"tensors only to fine-tune, found {found}"):
        prepare(model, FinetuneConfig(), ["a", "b"])


@pytest.mark.parametrize("kind", OTHERS)
def test_another_layer_comes_back_by_its_source(kind: str, tmp_path: Path) -> None:
    net = network()
    OTHERS[kind](net[5])
    model = converted(net)
    loaded = tcnn.load(tcnn.save(model, tmp_path / "m.safetensors"), source=net)
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert relative_error(loaded(x), model.eval()(x)) == 0


@pytest.mark.parametrize("position", ["isotropic", "quadratic", "relative", "relative-content"])
def test_no_kind_of_layer_is_taken_for_one(position: str) -> None:
    model = tcnn.convert(network(), input_size=16, position=position, content_heads=2).model
    state = model[2].state_dict()
    assert len(state) > 8 and state.keys() <= TENSORS
