"""What is kept for inference is right after whatever happens to the parameters, and gone when training begins."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tcnn.layers import GPSA2d
from tcnn.layers.ways import taking

RelativeError = Callable[[Tensor, Tensor], float]

REORDERED = 1e-13
"""Relative L2 in float64 where only the order of operations differs. Measured: at most 1e-15."""


def trained(seed: int = 0) -> GPSA2d:
    torch.manual_seed(seed)
    layer = GPSA2d(4, 6, 3, padding=1, temperature=1.0, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer.eval()


def step(layer: GPSA2d) -> None:
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    with torch.enable_grad():
        layer(image()).square().sum().backward()
    optimizer.step()


def image(*size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 4, *(size or (6, 7)), dtype=torch.float64, generator=generator)


def kept(layer: GPSA2d) -> object:
    """The matrices that a call has prepared for the next one."""
    return layer.memo.get("weights", (layer.query, layer.key, layer.value, layer.proj), lambda: None, of=True)


def new_parameters(layer: GPSA2d) -> None:
    """Freed and made again, a tensor may well come to lie where the one before lay."""
    for name in ("value", "proj", "locality_raw"):
        fresh = 2 * getattr(layer, name).detach()
        delattr(layer, name)
        setattr(layer, name, nn.Parameter(fresh))


CHANGES: dict[str, Callable[[GPSA2d], object]] = {
    "an optimizer's step": step,
    "in place": lambda layer: [parameter.mul_(0.9) for parameter in layer.parameters()],
    "load_state_dict": lambda layer: layer.load_state_dict(trained(1).state_dict()),
    "load_state_dict, assigned": lambda layer: layer.load_state_dict(trained(1).state_dict(), assign=True),
    "new parameters": new_parameters,
    "new storage": lambda layer: setattr(layer.proj, "data", 2 * layer.proj.data),
    "temperature": lambda layer: layer.temperature.fill_(0.5),
    "there and back": lambda layer: layer.float().double(),
    "another size": lambda layer: layer(image(9, 4)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@torch.no_grad()
def test_nothing_stale_is_used(change: Callable[[GPSA2d], object], relative_error: RelativeError) -> None:
    layer = trained()
    for _ in range(3):
        layer(image())
        change(layer)
        found = layer(image())
        with taking("reference"):
            assert relative_error(found, layer(image())) < REORDERED


@torch.no_grad()
def test_kept_in_eval_mode_only() -> None:
    layer = trained()
    first = layer(image())
    assert kept(layer) is not None, "the second call finds what the first has computed"
    assert torch.equal(layer(image()), first)
    layer.train()
    assert kept(layer) is None, "dropped"
    layer.train()
    layer(image())
    with torch.enable_grad():
        layer.eval()(image())
    assert kept(layer) is None, "gradients need the parameters"


def test_neither_copied_nor_pickled(relative_error: RelativeError) -> None:
    layer = trained()
    with torch.no_grad():
        expected = layer(image())
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        for other in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
            assert other.memo is not layer.memo
            assert kept(other) is None
            other.proj.mul_(2)
            other.bias.mul_(2)
            assert relative_error(other(image()), 2 * expected) < REORDERED
        assert set(layer.state_dict()) == {name for name, _ in layer.named_parameters()} | {"temperature"}


def test_inference_tensors_are_computed_anew(relative_error: RelativeError) -> None:
    """Their changes are not counted, so nothing that depends on them is kept."""
    with torch.inference_mode():
        layer = trained()
        before = layer(image())
        layer.proj.mul_(3)
        layer.bias.mul_(3)  # type: ignore[union-attr]
        assert relative_error(layer(image()), 3 * before) < REORDERED
