"""Pruning by where heads look: which heads go and why, what is left of the function, and what is refused."""

from pathlib import Path

import pytest
import torch
from nets import PlainNet, image, relative_error
from torch import nn

import tcnn
from tcnn.errors import NothingToConvertError, RequestError
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.models.running import gpsa_layers

SIZE = (24, 24)


def soft(position: str = "isotropic") -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    source = PlainNet().eval()
    return source, tcnn.convert(source, position=position, input_size=SIZE, temperature=0.3).model.eval()


def pruned(model: nn.Module, source: nn.Module, **options: object) -> tcnn.Folding:
    return tcnn.prune(model, images=image(SIZE), source=source, **options)


def test_heads_at_one_place_become_one_and_the_function_stays(tmp_path: Path) -> None:
    source, model = soft()
    name, layer = next(iter(gpsa_layers(model).items()))
    with torch.no_grad():
        layer.gating_param.fill_(1e3)  # nothing by content: two heads at one place are of one attention then
        layer.attention_centers[5] = layer.attention_centers[4]
        layer.proj.unflatten(1, (9, -1))[:, 5].mul_(0.1)
    made, report = pruned(model, source)
    (gone,) = report.pruned
    assert (gone.layer, gone.head, gone.reason, gone.into) == (name, 5, "same", 4)
    assert relative_error(model(image(SIZE)), made(image(SIZE))) < 1e-5
    assert report.parameters_after < report.parameters_before and report.logits.worst < 1e-10
    tcnn.save(made, tmp_path / "p.safetensors")
    assert torch.equal(tcnn.load(tmp_path / "p.safetensors", source=source)(image(SIZE)), made(image(SIZE)))
    one = made.get_submodule(name)
    assert isinstance(one, FoldedGPSA2d) and one.kinds.count("dropped") == 1


def test_centres_outside_of_the_map_or_too_far_go() -> None:
    source, model = soft()
    name, layer = next(iter(gpsa_layers(model).items()))
    with torch.no_grad():
        layer.attention_centers[2] = torch.tensor([40.0, 0.0])
        layer.attention_centers[3] = torch.tensor([0.0, -4.0])
        layer.attention_centers[6] = torch.tensor([90.0, 0.0])
        layer.gating_param[6] = -1.0  # by content more than by position: where it is centred says little
    made, report = pruned(model, source)
    assert [(head.layer, head.head, head.reason) for head in report.pruned] == [(name, 2, "far")]
    with use_backend("reference"):  # the error is that on the images that were given
        found = relative_error(model.double()(image(SIZE, double=True)), made.double()(image(SIZE, double=True)))
    assert report.logits.relative == pytest.approx(found, rel=1e-5) and found > 1e-6
    model.float()
    found = {(head.layer, head.head) for head in pruned(model, source, far=3.0).report.pruned}
    assert found == {(name, 2), (name, 3)}
    with pytest.raises(RequestError, match=rf"{name}: all of its 9 heads .*larger distance than 0.5"):
        layer.gating_param.data.fill_(2.0)
        layer.attention_centers.data.add_(0.6)
        pruned(model, source, far=0.5)


def test_a_degenerate_gaussian_goes() -> None:
    source, model = soft("quadratic")
    name, layer = next(iter(gpsa_layers(model).items()))
    with torch.no_grad():
        layer.precision_raw[0] = torch.tensor([-2.0, -2.0, 0.0])  # the same everywhere
        layer.precision_raw[1] = torch.tensor([1.0, -2.0, 0.0])  # a line
    _, report = pruned(model, source)
    assert [(h.layer, h.head, h.reason) for h in report.pruned] == [(name, 0, "flat"), (name, 1, "thin")]


@pytest.mark.parametrize("kind", ["relative", "relative-content"])
def test_learned_positions_are_the_same_where_their_attention_is(kind: str) -> None:
    """At τ = 1 they are broad, so that the means of many lie within half a pixel: that alone is not enough."""
    torch.manual_seed(0)
    source = PlainNet().eval()
    model = tcnn.convert(source, position=kind, input_size=SIZE, temperature=1.0).model.eval()
    with pytest.raises(NothingToConvertError, match="no head to prune"):
        pruned(model, source)
    name, layer = next(iter(gpsa_layers(model).items()))
    with torch.no_grad():
        layer.gating_param.fill_(1e3)
        layer.position_vector[5] = layer.position_vector[4]
        layer.proj.unflatten(1, (9, -1))[:, 5].mul_(0.1)
    made, report = pruned(model, source)
    assert [(head.layer, head.head, head.reason, head.into) for head in report.pruned] == [(name, 5, "same", 4)]
    assert relative_error(model(image(SIZE)), made(image(SIZE))) < 1e-5
    if kind == "relative-content":
        with torch.no_grad():
            layer.position_query[5, 0, 0, 0] = 0.1  # it looks for other shifts, image by image
        with pytest.raises(NothingToConvertError):
            pruned(model, source)


def test_what_cannot_be_pruned_is_refused() -> None:
    source, model = soft()
    with pytest.raises(NothingToConvertError, match="every centre lies within the map and more than 0"):
        pruned(model, source, same=0.0)
    for options, message in (({"far": -1.0}, "far: expected"), ({"same": -1.0}, "same: expected")):
        with pytest.raises(RequestError, match=message):
            pruned(model, source, **options)


def test_heads_that_are_taps_exactly_stay() -> None:
    torch.manual_seed(0)
    source = PlainNet().eval()
    model = tcnn.convert(source, input_size=SIZE).model
    heads = sum(layer.heads for layer in gpsa_layers(model).values())
    with pytest.raises(NothingToConvertError, match=f"no head to prune: all {heads} are exactly a tap"):
        pruned(model, source, far=0.1)
    layer = next(iter(gpsa_layers(model).values()))
    with torch.no_grad():
        layer.gating_param.fill_(0.01)
    message = f"every centre but those of {heads - layer.heads} heads that are exactly a tap .* lies within the map"
    with pytest.raises(NothingToConvertError, match=message):
        pruned(model, source)


def test_a_layer_keeps_a_head_that_brings_something() -> None:
    """One that brings nothing is dropped as well, and does not count as what is left."""
    source, model = soft()
    name, layer = next(iter(gpsa_layers(model).items()))
    with torch.no_grad():
        layer.gating_param.fill_(2.0)
        layer.attention_centers.add_(40.0)
        layer.proj.unflatten(1, (9, -1))[:, 3] = 0
    message = rf"^{name}: all of its 9 heads would be removed \(far\), and nothing would be left of the layer$"
    with pytest.raises(RequestError, match=message):
        pruned(model, source)
