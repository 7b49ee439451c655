"""What a public function is given and cannot use is refused in one line that names the argument."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from data_pictures import draw_classes
from PIL import Image
from torch import nn

import tcnn
from tcnn.config import ConversionConfig, FinetuneConfig, VerificationConfig, build, finetune_config
from tcnn.config.evaluation import EvaluationConfig
from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.errors import NoAttentionError, RequestError, TcnnError
from tcnn.training.recipe.optim import parameter_groups
from tcnn.vit.initialise import initialise_file


@pytest.fixture(scope="module")
def source() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=3).eval()


@pytest.mark.parametrize("kind", [ConversionConfig, VerificationConfig])
def test_a_seed_that_no_generator_takes(kind: type[VerificationConfig]) -> None:
    assert build(kind, {"seed": 2**63 - 1}).seed == 2**63 - 1
    with pytest.raises(RequestError, match=r"^seed: input should be less than 9223372036854775808, got "):
        build(kind, {"seed": 2**63})


def test_the_largest_seed_draws(source: nn.Module) -> None:
    model = tcnn.convert(source, seed=2**63 - 1).model
    assert tcnn.verify(source, model, randomise=True, seed=2**63 - 1, input_size=(32, 32), float64=False).passed


def test_a_model_without_weights_has_no_attention() -> None:
    with pytest.raises(NoAttentionError, match=r"^Identity has no attention to look at"):
        tcnn.inspect(nn.Identity(), torch.zeros(1, 3, 8, 8))


def test_a_model_without_values_predicts_nothing(source: nn.Module, tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    with pytest.raises(RequestError, match=r"^ResNet: expected values to predict, found none: .* on the meta device"):
        tcnn.predict(timm.create_model("test_resnet").to("meta"), tmp_path)


@pytest.mark.parametrize("wrong", [None, 3, "yes", torch.zeros(2)])
def test_what_is_neither_true_nor_false(wrong: object, source: nn.Module) -> None:
    model = tcnn.convert(source).model
    for call in (lambda: tcnn.verify(source, model, randomise=wrong), lambda: tcnn.fold(model, randomise=wrong)):  # type: ignore[arg-type]
        with pytest.raises(RequestError, match=r"^randomise: expected True or False, found "):
            call()


@pytest.fixture(scope="module")
def model(source: nn.Module) -> nn.Module:
    return tcnn.convert(source).model


def photos(root: Path) -> ImageSet:
    return open_dataset(str(draw_classes(root, ["a", "b", "c"], 1)), "val")


CALLS: dict[str, Callable[[Any, Any, Path], object]] = {
    "top: expected a whole number, found 'five'": lambda s, m, at: tcnn.predict(m, at, top="five"),
    "top: expected a whole number, found True": lambda s, m, at: tcnn.predict(m, at, top=True),
    "size: expected a whole number, (a whole number, a whole number) or None, found (1,)": (
        lambda s, m, at: tcnn.predict(m, at, size=(1,))
    ),
    "crop_pct: expected a number or None, found '0.9'": lambda s, m, at: tcnn.predict(m, at, crop_pct="0.9"),
    "amp: expected float32, bfloat16, float16, found 'half'": lambda s, m, at: tcnn.predict(m, at, amp="half"),
    "images: expected the paths of files or folders, found an empty name": lambda s, m, at: tcnn.predict(m, ""),
    "device='abacus': not usable here": lambda s, m, at: tcnn.predict(m, at, device="abacus"),
    "device='0.5': not usable here": lambda s, m, at: tcnn.load(at, device=0.5),
    "query: expected (a number, a number), found 0.5": lambda s, m, at: tcnn.inspect(m, query=0.5),
    "against: expected a list, found 'resnet18'": lambda s, m, at: tcnn.inspect(m, against="resnet18"),
    "max_error: expected a number or None, found '1%'": lambda s, m, at: tcnn.fold(m, max_error="1%"),
    "far: expected a number or None, found []": lambda s, m, at: tcnn.prune(m, far=[]),
    "source: expected the CNN that was converted, with a convolution layer4.0.conv1; found none there in Identity": (
        lambda s, m, at: tcnn.fold(m, source=nn.Identity())
    ),
    "source: expected the CNN that was converted, with a convolution layer4.0.conv1; found GPSA2d there in ResNet": (
        lambda s, m, at: tcnn.fold(m, source=m)
    ),
    "model: expected a module, found 'resnet18'": lambda s, m, at: tcnn.fold(m, source="resnet18"),
    "0: its shape is not known": lambda s, m, at: tcnn.fold(m, source=nn.Sequential(nn.LazyConv2d(3, 3))),
    "verification: expected what tcnn.verify returned, found a value of type bool": (
        lambda s, m, at: tcnn.save(m, at / "a.safetensors", True)
    ),
    "sections: expected a dict or None, found 'training'": (
        lambda s, m, at: tcnn.save_directory(m, at / "a", sections="training")
    ),
    "force: expected True or False, found 'no'": lambda s, m, at: tcnn.save(m, at / "a.safetensors", force="no"),
    "evaluations: expected a list, found 'e.json'": (
        lambda s, m, at: tcnn.push_to_hub(m, "a/b", evaluations="e.json", dry_run=True)
    ),
    "seed: expected a whole number, found 'one'": lambda s, m, at: tcnn.initialise(s, seed="one"),
    "split: expected text, found None": lambda s, m, at: open_dataset(str(at), None),
    "class_names: expected a list or None, found 3": lambda s, m, at: open_dataset(str(at), "val", 3),
    "seed: expected a whole number from 0 to 2⁶³ − 1, found 9223372036854775808": (
        lambda s, m, at: initialise_file("test_vit", at / "v.safetensors", seed=2**63)
    ),
    "images: expected a tensor of shape (B, C, H, W)": lambda s, m, at: tcnn.initialise(s, images=3),
    "options: expected a dict or None, found 5": lambda s, m, at: tcnn.finetune_config(options=5),
    "assignments: expected a list, found 'lr=1'": lambda s, m, at: tcnn.finetune_config(assignments="lr=1"),
    "config: expected a FinetuneConfig, got a dict": lambda s, m, at: parameter_groups(m, {}),
    "position: expected isotropic, quadratic, relative, relative-content, found 'learned'": (
        lambda s, m, at: tcnn.GPSA2d(4, 8, 3, position="learned")
    ),
    "content_heads: expected 1024 or less, found 1000000000": (
        lambda s, m, at: tcnn.GPSA2d(4, 8, 3, content_heads=10**9)
    ),
    "position_reach: position isotropic has no embeddings": lambda s, m, at: tcnn.GPSA2d(4, 8, 3, position_reach=3),
    "kernel_size: expected 1 or more, found 0": lambda s, m, at: tcnn.GPSA2d(4, 8, (3, 0)),
    "its stride is (0, 1), expected 1 or more each way": lambda s, m, at: tcnn.GPSA2d(4, 8, 3, stride=(0, 1)),
    "its padding is (-1, -1), expected 0 or more each way": lambda s, m, at: tcnn.GPSA2d(4, 8, 3, padding=-1),
    "temperature: expected a number above 0, got 'cold'": (
        lambda s, m, at: tcnn.GPSA2d(4, 8, 3).set_temperature("cold")
    ),
    "gate_temperature: expected a number above 0, got None": (
        lambda s, m, at: tcnn.GPSA2d(4, 8, 3).set_temperatures(None, 1.0)
    ),
    "position_temperature: expected a number above 0, got tensor([1., 1.])": (
        lambda s, m, at: tcnn.GPSA2d(4, 8, 3).set_temperatures(1.0, torch.ones(2))
    ),
    "size: expected 1 to 65536 pixels each way, found -1×-1": lambda s, m, at: tcnn.inspect(m, size=-1),
    "size: the images are a tensor, of a size of their own": (
        lambda s, m, at: tcnn.inspect(m, torch.zeros(1, 3, 32, 32), size=64)
    ),
    "stride: input should be 'keep', 'remove' or 'dilate', got tensor([[0., 0.]": (
        lambda s, m, at: tcnn.convert(s, stride=torch.zeros(2, 2))
    ),
    "config: expected a ConversionConfig, got a dict": lambda s, m, at: tcnn.without_stride(s, {"stride": "keep"}),
    "device='3': not usable here (no name of a device)": lambda s, m, at: tcnn.load(at, device=3),
    "class_subset[0]: expected a whole number, found 0.5": (
        lambda s, m, at: tcnn.evaluate(s, photos(at.parent / "photos"), class_subset=[0.5, 1])
    ),
    "class_subset: expected whole numbers, the model's outputs, found tensor([[0.]])": (
        lambda s, m, at: tcnn.evaluate(s, photos(at.parent / "photos"), class_subset=torch.zeros(1, 1))
    ),
    "world: expected 1 or more, found 0": (
        lambda s, m, at: tcnn.evaluate(s, photos(at.parent / "photos"), world=0)
    ),
    "dynamic axes: expected a list of batch, height, width, or of some of them, found 'batch'": (
        lambda s, m, at: tcnn.export(m, at / "m.pt2", dynamic="batch")
    ),
    "batch: expected one image or more, at most 1000000, found 1000000000": (
        lambda s, m, at: tcnn.export(m, at / "m.pt2", batch=10**9)
    ),
    "path: expected a path, found 'a\\x00b', whose NUL no file system has": (
        lambda s, m, at: tcnn.save(m, "a\0b")
    ),
    "weights: expected a path (str or pathlib.Path), found a value of type int": (
        lambda s, m, at: tcnn.finetune("test_resnet", at, weights=3)
    ),
    "seconds: expected 0 or more, at most 86400, found inf": (
        lambda s, m, at: tcnn.plan("test_resnet", at, seconds=float("inf"))
    ),
    "against[1]: expected a module, text or a path, found None": lambda s, m, at: tcnn.inspect(m, against=[m, None]),
    "content_heads: expected 0 or more, found -1": lambda s, m, at: tcnn.GPSA2d(4, 8, 3, content_heads=-1),
    "head_dim: expected 1 or more, found 0": (
        lambda s, m, at: tcnn.GPSA2d.from_conv2d(nn.Conv2d(4, 8, 3), head_dim=0)
    ),
    "in_channels: expected 1 or more, found 0": lambda s, m, at: tcnn.GPSA2d(0, 8, 3),
}  # fmt: skip


@pytest.mark.parametrize("said", CALLS)
def test_an_argument_of_another_kind(said: str, source: nn.Module, model: nn.Module, tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    with pytest.raises(TcnnError) as error:
        CALLS[said](source, model, tmp_path)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_features_have_no_place_in_timms_hub_layout(tmp_path: Path) -> None:
    features = timm.create_model("t_test_resnet", features_only=True)
    for write in (lambda: tcnn.save_directory(features, tmp_path / "a"), lambda: tcnn.push_to_hub(features, "a/b")):
        with pytest.raises(RequestError, match=r"^FeatureListNet [^\n]+: write one \.safetensors file instead"):
            write()
    assert not any(tmp_path.iterdir())
    tcnn.save(features, tmp_path / "a.safetensors")


def test_what_numpy_and_tuples_of_another_kind_are_good_for(model: nn.Module, tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    (one,) = tcnn.predict(model, tmp_path, top=np.int64(2), size=[np.int32(32), 32], crop_pct=np.float32(1))
    assert len(one.guesses) == 2


def test_python_tells_of_arguments_that_there_are_not(model: nn.Module) -> None:
    with pytest.raises(TypeError, match=r"^predict\(\) missing 1 required positional argument: 'images'$"):
        tcnn.predict(model)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^fold\(\) got an unexpected keyword argument 'error'"):
        tcnn.fold(model, error=0.1)  # type: ignore[call-arg]


BOUNDED = [
    (VerificationConfig, ["batch_size"]),
    (EvaluationConfig, ["batch_size", "limit"]),
    (ConversionConfig, ["head_dim", "content_heads"]),
    (
        FinetuneConfig,
        [
            "convert_at",
            "size",
            "max_unreadable",
            "epochs",
            "batch_size",
            "micro_batch",
            "bn_reestimate",
            "repeats",
            "crop_padding",
            "checkpoint_steps",
            "keep",
            "log_steps",
            "workers",
        ],
    ),
]


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, fields in BOUNDED for field in fields])
def test_a_number_that_no_machine_has_room_for(kind: type[VerificationConfig], field: str) -> None:
    with pytest.raises(RequestError, match=rf"^{field}: input should be less than or equal to \d+, got 10+$"):
        build(kind, {field: 10**30})


def test_a_share_so_small_that_its_epochs_never_end() -> None:
    with pytest.raises(RequestError, match=r"^fraction: expected 5e-05 or more, as epochs grow .* found 1e-30$"):
        build(FinetuneConfig, {"fraction": 1e-30})


@pytest.mark.parametrize("exposed", [False, True])
def test_an_input_that_is_no_tensor(exposed: bool) -> None:
    """It ended in AttributeError."""
    layer = tcnn.GPSA2d(3, 8, 3, padding=1)
    layer.fused_attn = not exposed
    others: list[Any] = [tcnn.fuse(nn.Sequential(layer))] if not exposed else []
    for call in (layer, layer.attention, *others):
        for wrong in (None, np.zeros((1, 3, 8, 8), np.float32), [1.0], "x"):
            with pytest.raises(RequestError, match=r"^GPSA2d: expected a tensor of shape \(B, C, H, W\), got "):
                call(wrong)


def test_a_message_is_one_line_whatever_it_quotes() -> None:
    assert str(RequestError("expected one line, found 'a\n  b'")) == "expected one line, found 'a b'"


def test_numpys_numbers_are_sizes_seeds_and_epochs(model: nn.Module, tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    assert len(tcnn.predict(model, tmp_path, size=np.int64(32))) == 1
    tcnn.initialise(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1), seed=np.int64(3))
    assert finetune_config("quick", epochs=np.int64(2)) == finetune_config("quick", epochs=2)
