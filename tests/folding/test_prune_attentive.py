"""Pruning of a network of attention alone: which heads go, that timm builds what is left, and that it can learn on."""

import re
from pathlib import Path

import pytest
import timm
import tiny_runs
import torch
from nets import relative_error
from torch import Tensor

import tcnn
from tcnn.analysis.reading.info import info
from tcnn.errors import NothingToConvertError, RequestError
from tcnn.networks.attentive import AttentiveNet


def network(kind: str = "gaussian", **options: object) -> AttentiveNet:
    """Four blocks of three heads: none looks where another does."""
    torch.manual_seed(0)
    model = timm.create_model(f"cordonnier_{kind}_tiny", heads=3, depth=4, embed_dim=8, mlp_dim=8, **options).eval()
    with torch.no_grad():
        for layer in model.attention_layers().values():
            if hasattr(layer, "attention_centers"):
                layer.attention_centers.copy_(torch.tensor([[0.0, 0.0], [-2.0, 1.0], [2.0, 2.0]]))
    return model


def image() -> Tensor:
    return torch.randn(4, 3, 16, 12, generator=torch.Generator().manual_seed(1))


def test_every_reason_and_what_is_left(tmp_path: Path) -> None:
    model = network()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    layers = list(model.attention_layers().values())
    with torch.no_grad():
        layers[0].attention_centers[1] = torch.tensor([0.0, 6.0])  # the map has 8×6 pixels
        layers[1].precision_raw[0] = torch.tensor([-2.0, -2.0, 0.0])  # the same everywhere
        layers[1].precision_raw[2] = torch.tensor([1.0, -2.0, 0.0])  # a line
        layers[3].attention_centers[2] = layers[3].attention_centers[1]
        layers[3].precision_raw[2] = layers[3].precision_raw[1]
        layers[3].proj.weight.unflatten(1, (3, -1))[:, 2] *= 0.1
    made, report = tcnn.prune(model, images=image())
    found = [(head.layer, head.head, head.reason, head.into) for head in report.pruned]
    assert found == [
        ("blocks.0.attn", 1, "far", None), ("blocks.1.attn", 0, "flat", None), ("blocks.1.attn", 2, "thin", None),
        ("blocks.3.attn", 2, "same", 1),
    ]  # fmt: skip
    assert [layer.heads for layer in made.attention_layers().values()] == [2, 1, 3, 2]
    assert [(layer.becomes, layer.attention, layer.dropped) for layer in report.layers] == [
        ("attention", 2, 1), ("attention", 1, 2), ("attention", 3, 0), ("attention", 2, 1),
    ]  # fmt: skip
    assert report.parameters_after == sum(p.numel() for p in made.parameters()) < report.parameters_before
    assert (report.complete, report.images, report.tolerance) == (False, "images 4×3×16×12", 0.0)
    # What is left computes what the network does whose pruned heads bring nothing; one was handed over.
    with torch.no_grad():
        for layer, gone in ((layers[0], [1]), (layers[1], [0, 2])):
            layer.proj.weight.unflatten(1, (3, -1))[:, gone] = 0
        assert relative_error(model(image()), made(image())) < 1e-5
    assert state.keys() == model.state_dict().keys()
    tcnn.save(made, tmp_path / "p.safetensors")
    told = info(str(tmp_path / "p.safetensors"))
    assert (told.kind, told.parameters) == ("timm model", report.parameters_after)
    again = tcnn.load(tmp_path / "p.safetensors")
    assert torch.equal(again(image()), made(image()))
    assert timm.create_model("cordonnier_gaussian_tiny", **again._model_args).state_dict().keys() == state.keys()


def test_it_learns_on(tmp_path: Path) -> None:
    """As in the paper, which trains what is left for a few epochs more."""
    data = tiny_runs.colours(tmp_path / "photos", images=4)
    made, _ = tcnn.prune(network("quadratic"), far=2.5)
    tcnn.save(made, tmp_path / "p.safetensors")
    config = tiny_runs.tiny(convert=False, epochs=1, size=16)
    run = tcnn.finetune(str(tmp_path / "p.safetensors"), str(data), None, config, tmp_path / "run")
    trained = tcnn.load(run.last)
    assert [layer.heads for layer in trained.attention_layers().values()] == [2, 2, 2, 2]
    before, after = (each.blocks[0].attn.proj.weight for each in (made, trained))
    assert before.shape == after.shape and not torch.equal(before, after)


def test_what_cannot_be_pruned_is_refused() -> None:
    message = "no head to prune: every centre lies within the map and more than 0.5 pixels from those of its layer"
    with pytest.raises(NothingToConvertError, match=f"^{re.escape(message)}$"):
        tcnn.prune(network())
    with pytest.raises(RequestError, match=r"blocks\.0\.attn: all of its 3 heads .* \(far\).*larger distance"):
        model = network("quadratic")
        model.blocks[0].attn.attention_centers.data.add_(9.0)
        tcnn.prune(model, far=4.0)
    with pytest.raises(RequestError, match=r"look by content .* no centre to be pruned by; .*cordonnier_learned"):
        tcnn.prune(network("learned_content"))


@pytest.mark.parametrize("kind", ["quadratic", "gaussian", "learned", "learned_content"])
def test_some_of_the_heads_of_every_kind(kind: str) -> None:
    """A layer of these heads is one whose others bring nothing."""
    layer = network(kind).blocks[1].attn
    x = torch.randn(2, 4, 5, 8)
    taken = layer.take([0, 2])
    with torch.no_grad():
        layer.proj.weight.unflatten(1, (3, -1))[:, 1] = 0
        assert relative_error(layer(x), taken(x)) < 1e-5
    assert taken.heads == 2 and taken.proj.in_features == taken.proj.weight.shape[1] == 16
    assert all(parameter.requires_grad for parameter in taken.parameters())


@pytest.mark.parametrize("heads", [0, [3, 3], [3, 3, 3, 0]], ids=str)
def test_heads_of_every_block(heads: object) -> None:
    with pytest.raises(RequestError, match="heads: expected a number of at least 1, or 4 of them, one a block, got"):
        AttentiveNet(heads=heads, depth=4)  # type: ignore[arg-type]
