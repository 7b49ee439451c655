"""Kinds of positional attention wherever a converted model goes: verified, saved, folded, inspected, trained."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import PlainNet, image, relative_error
from sampled import sampled
from torch import nn

import tcnn
from tcnn.analysis.plots.centres import centres
from tcnn.config import FinetuneConfig
from tcnn.conversion.report import ConversionReport
from tcnn.errors import RequestError
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms import kinds
from tcnn.models.running import gpsa_layers
from tcnn.training.recipe.annealing import annealing_schedule
from tcnn.training.recipe.optim import create_optimizer

OTHERS = ("quadratic", "relative", "relative-content")
SIZE = (23, 30)


def converted(kind: str, **options: Any) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    source = PlainNet().eval()
    return source, tcnn.convert(source, position=kind, input_size=SIZE, **options).model.eval()


def lively(kind: str, **options: Any) -> nn.Module:
    """As after training."""
    model = converted(kind, temperature=0.3, **options)[1]
    generator = torch.Generator().manual_seed(1)
    for layer in gpsa_layers(model).values():
        for name in ("query", "gating_param", *kinds.NAMES[layer.position]):
            with torch.no_grad():
                own = layer.get_parameter(name)
                own.add_(0.3 * torch.randn(own.shape, generator=generator))
    return model


DEPARTURES: dict[str, dict[str, Callable[[GPSA2d], object]]] = {
    "quadratic": {
        "attention_centers": lambda layer: layer.attention_centers[4, 0].add_(1),
        "precision_raw": lambda layer: layer.precision_raw[4, :2].fill_(-1),
    },
    "relative": {
        "position_vector": lambda layer: layer.position_vector[4].copy_(layer.position_vector[3]),
        "row_embedding": lambda layer: layer.row_embedding[14].fill_(0.9),
        "column_embedding": lambda layer: layer.column_embedding[14].fill_(0.9),
    },
    "relative-content": {
        "position_vector": lambda layer: layer.position_vector[4].neg_(),
        "position_query": lambda layer: layer.position_query[4, 0, 0].fill_(1e3),
    },
}
"""A departure of each parameter of each kind that changes what the network computes."""


@pytest.mark.parametrize("kind", sampled(OTHERS, ("quadratic", "relative-content")))
def test_a_conversion_is_equivalent_and_verification_sees_every_departure(kind: str) -> None:
    source, model = converted(kind, content_heads=1)
    assert tcnn.verify(source, model, input_size=SIZE, batch_size=1).passed
    for depart in DEPARTURES[kind].values():
        other = copy.deepcopy(model)
        with torch.no_grad():
            depart(next(iter(gpsa_layers(other).values())))
        assert not tcnn.verify(source, other, input_size=SIZE, batch_size=1, float64=False).passed


@pytest.mark.slow  # content heads are so kept in test_content_heads.py
@pytest.mark.parametrize("kind", OTHERS)
def test_saved_and_loaded_fused_and_exported(kind: str, tmp_path: Path) -> None:
    model, x = lively(kind, position_reach=None if kind == "quadratic" else 5), image(SIZE)
    tcnn.save(model, tmp_path / "t.safetensors")
    loaded = tcnn.load(tmp_path / "t.safetensors", source=PlainNet())
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(loaded(x), expected)
        assert relative_error(expected, tcnn.fuse(loaded)(x)) <= 1e-5
        program = torch.export.export(tcnn.fuse(model), (x,)).module()
        assert relative_error(expected, program(x)) <= 1e-5
    reaches = {layer.position_reach for layer in loaded.conversion_report.layers}
    assert reaches == ({None} if kind == "quadratic" else {5})
    assert loaded.conversion_report.config.position == kind


def test_records_without_a_position_are_isotropic() -> None:
    """Files from before there was a choice."""
    record = converted("isotropic")[1].conversion_report.model_dump(mode="json")
    for part in (record["config"], *record["layers"]):
        part.pop("position"), part.pop("position_reach")
    again = ConversionReport.model_validate(record)
    assert {layer.position for layer in again.layers} == {"isotropic"}
    model = converted("isotropic")[1]
    assert {"locality_raw", "attention_centers"} <= {name.rpartition(".")[2] for name in model.state_dict()}


@pytest.mark.parametrize("kind", OTHERS)
def test_folding_makes_it_the_cnn_again_and_keeps_what_was_learnt(kind: str, tmp_path: Path) -> None:
    source, model = converted(kind)
    cnn, report = tcnn.fold(model, images=image(SIZE), source=source)
    assert report.complete
    assert all(torch.equal(a, b) for a, b in zip(cnn.state_dict().values(), source.state_dict().values(), strict=True))
    layer = next(iter(gpsa_layers(model).values()))
    with torch.no_grad():
        if kind == "quadratic":
            layer.attention_centers[0].add_(0.3)
        else:
            layer.position_vector[0].mul_(0.2)
    folded, report = tcnn.fold(model, images=image(SIZE), source=source)
    one = next(m for m in folded.modules() if isinstance(m, FoldedGPSA2d))
    assert one.kinds == ("attention", *("convolution",) * 8)
    x = image(SIZE)
    with torch.no_grad():
        assert relative_error(model(x), folded(x)) <= 1e-5
        tcnn.save(folded, tmp_path / "f.safetensors")
        assert torch.equal(tcnn.load(tmp_path / "f.safetensors", source=source)(x), folded(x))


@pytest.mark.parametrize("kind", sampled(OTHERS, ["relative-content"]))
def test_inspection_draws_where_heads_look(kind: str) -> None:
    model = lively(kind)
    found = tcnn.inspect(model, images=torch.randn(2, 3, *SIZE), size=SIZE, shown=1)
    heads = found.layers[0].heads
    assert all(head.centre is not None and head.span is not None and head.span > 0 for head in heads)
    assert all((head.precision is not None) == (kind == "quadratic") for head in heads)
    layer = found.pictures[0].layers[0]
    assert layer.positional is not None
    for shown in layer.positional:
        assert sum(map(sum, shown)) == pytest.approx(1, abs=1e-3)
    assert centres(found.layers) is not None


@pytest.mark.parametrize("kind", OTHERS)
def test_training_knows_their_parameters(kind: str) -> None:
    model = lively(kind)
    names = kinds.NAMES[next(iter(gpsa_layers(model).values())).position]
    config = FinetuneConfig(weight_decay=0.1, position_lr=0.03, hold="all", lr=1e-4)
    rates = {
        id(p): (group["lr"], group["weight_decay"])
        for group in create_optimizer(model, config).param_groups
        for p in group["params"]
    }
    own = [layer.get_parameter(name) for layer in gpsa_layers(model).values() for name in names]
    assert {rates[id(parameter)] for parameter in own} == {(0.03, 0.0)}
    assert set(annealing_schedule(model, config, 10).frozen_parameters) == {"gating_param", *names}
    loss = model.train()(torch.randn(2, 3, *SIZE)).square().sum()
    assert all(g is not None and g.any() for g in torch.autograd.grad(loss, own, allow_unused=True))


def test_impossible_choices_are_refused_in_one_line() -> None:
    for options, message in (
        ({"position": "gaussian"}, "position: input should be 'isotropic', 'quadratic', 'relative' or"),
        ({"position_reach": 9}, "position_reach: position isotropic has no embeddings"),
        ({"position": "relative", "position_reach": 1}, "position_reach: expected more than the"),
    ):
        with pytest.raises(RequestError, match=message):
            tcnn.convert(PlainNet().eval(), input_size=SIZE, **options)
    assert isinstance(GPSA2d(4, 4, 3, position="relative").position_vector, nn.Parameter)
