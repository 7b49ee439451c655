"""What a job's models say of an image: as other checkpoints of a run see it, and at other temperatures, where
nothing of the model stays changed; predictions agree or differ only where they tell the same classes apart.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import timm
import torch
from nets import Difference
from PIL import Image
from timm.models import save_for_hf
from torch import Tensor, nn

import tcnn
from tcnn.analysis.attention import encode
from tcnn.layers.gpsa import GPSA2d
from tcnn.models.running import at_temperature
from tcnn_jobs.confined.explorer import Explorer
from tcnn_jobs.confined.predicting import Predicting
from tcnn_jobs.confined.views import KEPT, Seen, Views

SIDE = 64


@pytest.fixture(scope="module")
def image() -> Tensor:
    return torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def converted(seed: int, content_heads: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return tcnn.convert(timm.create_model("test_resnet", num_classes=3), content_heads=content_heads).model


def test_a_temperature_is_the_models_for_a_while(image: Tensor) -> None:
    model, same = converted(0), converted(0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with at_temperature(model, 1.0):
        at_one = encode(model, image)
    for layer in same.modules():
        if isinstance(layer, GPSA2d):
            layer.set_temperature(1.0)
    expected = encode(same, image)
    for one, other in zip(at_one.at((0.5, 0.5)), expected.at((0.5, 0.5)), strict=True):
        assert torch.equal(one.combined, other.combined)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError, match="stop"), at_temperature(model, 2.0):
        raise RuntimeError("stop")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_checkpoints_are_kept_and_views_forgotten(image: Tensor, tmp_path: Path) -> None:
    file = str(tcnn.save(converted(1), tmp_path / "start.safetensors"))
    views, seen = Views(converted(0)), Seen(image)
    own = views.look(seen)
    other = views.look(seen, file)
    assert views.look(seen, file) is other and views.look(seen) is own
    assert not torch.equal(own.output, other.output)
    for step in range(2 * KEPT):
        views.look(seen, file, 0.5 + step / 100)
    assert len(seen.views) == KEPT + 1 and views.look(seen) is own


@pytest.mark.parametrize("given", [1, 3])
def test_no_more_threads_than_are_given(given: int, tmp_path: Path) -> None:
    """As `OMP_NUM_THREADS` gives them to a process, or its cores do."""
    file = str(tcnn.save(converted(0), tmp_path / "model.safetensors"))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(given)
        Explorer(file)
        assert torch.get_num_threads() == given
    finally:
        torch.set_num_threads(before)


def test_circles_are_those_of_an_inspection(tmp_path: Path) -> None:
    """Centres are the taps, and circles hold half and nine tenths of the Gaussian, at the τ that is asked."""
    explorer = Explorer(str(tcnn.save(converted(0), tmp_path / "t.safetensors")))
    picture = tmp_path / "0.png"
    Image.new("RGB", (SIDE, SIDE), "red").save(picture)
    found = explorer.open(picture)
    at_one, at_four = (explorer.at(found["id"], 0.5, 0.5, None, tau)["layers"][0] for tau in (1.0, 4.0))
    expected = [[row, column] for row in (-1, 0, 1) for column in (-1, 0, 1)]
    for centre, place in zip(at_one["centres"], expected, strict=True):
        assert centre == pytest.approx(place, abs=1e-5)
    for small, large in zip(at_one["radii"], at_four["radii"], strict=True):
        assert large == pytest.approx([2 * radius for radius in small])  # r² grows with τ
        assert small[1] / small[0] == pytest.approx((math.log(10) / math.log(2)) ** 0.5)
    assert at_one["temperature"] == 1 and found["layers"][0]["temperature"] == pytest.approx(1 / 46)


def test_content_heads_have_no_gate(tmp_path: Path) -> None:
    explorer = Explorer(str(tcnn.save(converted(0, content_heads=2), tmp_path / "t.safetensors")))
    picture = tmp_path / "0.png"
    Image.new("RGB", (SIDE, SIDE), "red").save(picture)
    found = explorer.open(picture)
    for layers in (found["layers"], explorer.at(found["id"], 0.5, 0.5, None, 1.0)["layers"]):
        assert all(None not in layer["gate"][:9] and layer["gate"][9:] == [None] * 2 for layer in layers)


def test_layers_that_are_left_out_are_named(tmp_path: Path) -> None:
    explorer = Explorer(str(tcnn.save(converted(0), tmp_path / "t.safetensors")))
    picture = tmp_path / "0.png"
    Image.new("RGB", (SIDE, SIDE), "red").save(picture)
    assert explorer.open(picture)["notes"] == []
    model = timm.create_model("vit_tiny_patch16_224", img_size=SIDE, embed_dim=24, depth=2, num_heads=3)
    model.blocks[0].attn = Difference(model.blocks[0].attn)
    explorer.model, explorer.views = model, Views(model)
    found = explorer.open(picture)
    assert [layer["name"] for layer in found["layers"]] == ["blocks.1.attn"]
    (note,) = found["notes"]
    assert note.startswith("left out: blocks.0.attn, as ")


def test_classes_of_imagenet_have_their_names(tmp_path: Path) -> None:
    """Those of a checkpoint with ImageNet's classes, in the answers of the model; others are numbered."""
    picture = tmp_path / "0.png"
    Image.new("RGB", (SIDE, SIDE), "red").save(picture)
    for classes, named in ((1000, True), (7, False)):
        model = timm.create_model("test_resnet", num_classes=classes)
        nn.init.zeros_(model.fc.weight)
        with torch.no_grad():
            model.fc.bias.copy_(torch.arange(classes, 0, -1))  # class 0 is the most probable
        file = tcnn.save(tcnn.convert(model).model, tmp_path / f"{classes}.safetensors")
        said = [one["label"] for one in Explorer(str(file)).open(picture)["says"]][:2]
        assert said == (["tench", "goldfish"] if named else ["class 0", "class 1"])


ANIMALS = ("ape", "bee", "cat")


@pytest.fixture
def red_image() -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (40, 40), "red").save(written, "PNG")
    return written.getvalue()


def says(first: object, of: Sequence[object]) -> nn.Module:
    """A CNN with these classes, to whom every image shows the same."""
    model = timm.create_model("test_resnet", num_classes=len(of)).eval()
    model.pretrained_cfg["label_names"] = list(of)
    model.fc.weight.data.zero_()
    model.fc.bias.data[:] = 0
    model.fc.bias.data[of.index(first)] = 5
    return model


@pytest.mark.parametrize(
    ("beside", "classes", "same", "comparable"),
    [("bee", ANIMALS, True, True), ("cat", ANIMALS, False, True), ("bee", ("bee", "cow"), None, False)],
)
def test_classes_alike_are_compared(
    beside: str, classes: Sequence[str], same: bool | None, comparable: bool, tmp_path: Path, red_image: bytes
) -> None:
    save_for_hf(
        says(beside, classes), tmp_path / "cnn", model_config={"label_names": list(classes)}, safe_serialization=True
    )
    predicting = Predicting(says("bee", ANIMALS))
    cnn = {"role": "cnn", "name": f"local-dir:{tmp_path / 'cnn'}"}
    gone = {"role": "tuned_cnn", "missing": "gone"}
    found = predicting(red_image, [cnn, gone], 1)
    assert [one["same_classes"] for one in found["models"]] == [comparable, None, True]
    assert [[guess["name"] for guess in one["guesses"]] for one in found["models"]] == [[beside], [], ["bee"]]
    assert found["same_first_guess"] is same


@pytest.mark.parametrize(("classes", "said", "comparable"), [(3, "cat", True), (4, "2", False)])
def test_a_model_that_names_no_classes_has_those_that_it_was_fine_tuned_on(
    classes: int, said: str, comparable: bool, tmp_path: Path, red_image: bytes
) -> None:
    """As uploaded weights have none; of another number of classes nothing is known."""
    cnn = says(2, range(classes))
    del cnn.pretrained_cfg["label_names"]
    save_for_hf(cnn, tmp_path / "cnn", safe_serialization=True)
    predicting = Predicting(says("cat", ANIMALS))
    found = predicting(red_image, [{"role": "cnn", "name": f"local-dir:{tmp_path / 'cnn'}"}], 1)
    assert (found["models"][0]["guesses"][0]["name"], found["models"][0]["same_classes"]) == (said, comparable)
