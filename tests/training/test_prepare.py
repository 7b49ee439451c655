"""The model as the first step finds it: opened, fitted to the classes, converted, cut down for a comparison."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.data import resolve_model_data_config
from timm.layers import DropPath
from timm.models import save_for_hf
from tiny_runs import COLOURS, TwoConvs, colours, run, seeded, tiny
from torch import nn

import tcnn
from tcnn.data.image_set import open_dataset
from tcnn.errors import CheckpointError, NothingToConvertError, RequestError
from tcnn.evaluation.evaluate import evaluate
from tcnn.models.running import gpsa_layers
from tcnn.training.preparing.prepare import in_chans, is_checkpoint, prepare, teacher_for
from tcnn.training.single_run import FinetuneResult
from tcnn.zoo.sources import without_data

Lively = Callable[..., nn.Module]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, lively: Lively) -> Path:
    """A converted `test_resnet` of three classes, in a file."""
    path = tmp_path_factory.mktemp("made") / "t.safetensors"
    tcnn.save(tcnn.convert(lively(num_classes=3)).model, path)
    return path


def begin(source: Any, classes: tuple[str, ...] = COLOURS, **options: Any) -> tuple[nn.Module, tuple[str, ...]]:
    start = prepare(source, tiny(**options), classes, pretrained=False)
    assert start.model.training
    return start.model, start.notes


def rates(model: nn.Module) -> list[float]:
    return [module.drop_prob for module in model.modules() if isinstance(module, DropPath)]


def test_a_name() -> None:
    model, notes = begin("test_resnet")
    assert list(gpsa_layers(model)) == ["layer4.0.conv1", "layer4.0.conv2"]
    assert notes == ("classifier replaced: 1000 → 3 classes",)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 3)


def test_a_checkpoint(made: Path) -> None:
    model, notes = begin(made)
    assert notes == ()
    expected = tcnn.load(made)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_a_checkpoint_of_other_classes(made: Path) -> None:
    model, notes = begin(str(made), ("a", "b"))
    assert notes == ("classifier replaced: 3 → 2 classes",)
    assert model.fc.out_features == 2
    kept = tcnn.load(made).state_dict()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items() if "fc." not in name)


def test_a_module_is_not_changed(assert_same_state: Callable[[nn.Module, nn.Module], None]) -> None:
    source, before = seeded(TwoConvs), seeded(TwoConvs)
    model, _ = begin(source)
    assert list(gpsa_layers(model)) == ["last"]
    model.stem.weight.data.zero_()
    assert_same_state(source, before)
    assert isinstance(source.last, nn.Conv2d)


def test_a_directory_of_timms(tmp_path: Path, lively: Lively) -> None:
    source = lively(num_classes=3)
    save_for_hf(source, tmp_path / "source", safe_serialization=True)
    start = prepare(f"local-dir:{tmp_path / 'source'}", tiny(), COLOURS)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(start.model.eval()(images), source.eval()(images), rtol=1e-4, atol=1e-4)


def test_the_same_seed_begins_the_same() -> None:
    first, again, other = (begin("test_resnet", seed=seed)[0].state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["conv1.0.weight"], other["conv1.0.weight"])


def test_the_global_generator_is_left_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    begin("test_resnet")
    assert torch.equal(torch.rand(3), expected)


def test_without_attention() -> None:
    model, _ = begin("test_resnet", convert=False)
    assert not gpsa_layers(model)
    model, _ = begin("test_resnet", convert_at=1)
    assert not gpsa_layers(model)


@pytest.mark.parametrize(
    ("options", "word"), [({"convert": False}, "without attention"), ({"convert_at": 1}, "convert_at")]
)
def test_a_t_cnn_is_no_cnn(made: Path, options: dict[str, object], word: str) -> None:
    with pytest.raises(RequestError, match=f"is a T-CNN already; .*{word}.*the CNN it was made from"):
        begin(made, **options)


def differing(**options: object) -> set[str]:
    """Which tensors of a T-CNN an ablation changes."""
    plain, changed = (begin(seeded(TwoConvs), **given)[0].state_dict() for given in ({}, options))
    assert plain.keys() == changed.keys()
    return {name for name in plain if not torch.equal(plain[name], changed[name])}


def test_random_filters_change_nothing_but_filters() -> None:
    assert differing(filters="random") == {"last.proj"}


def test_random_filters_are_as_large_as_a_fresh_convolutions(made: Path) -> None:
    model, _ = begin(made, filters="random")
    for name, layer in gpsa_layers(model).items():
        fresh = nn.Conv2d(layer.in_channels, layer.out_channels, 3).weight
        assert layer.proj.std().item() == pytest.approx(fresh.std().item(), rel=0.05), name


def test_no_gating_is_half_and_half() -> None:
    assert differing(gating=False) == {"last.gating_param"}
    model, _ = begin(seeded(TwoConvs), gating=False)
    for layer in gpsa_layers(model).values():
        assert layer.gate.tolist() == [0.5] * 9
        assert [n for n, p in layer.named_parameters() if not p.requires_grad] == ["gating_param"]


def test_frozen_layers() -> None:
    assert differing(freeze_gpsa=True) == set()
    model, _ = begin(seeded(TwoConvs), freeze_gpsa=True)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {f"{layer}.{name}" for layer, m in gpsa_layers(model).items() for name, _ in m.named_parameters()}


@pytest.mark.parametrize("source", ["name", pytest.param("checkpoint", marks=pytest.mark.slow)])
def test_stochastic_depth(made: Path, source: str) -> None:
    given = "test_resnet" if source == "name" else made
    assert max(rates(begin(given, drop_path=0.3)[0])) == pytest.approx(0.3)
    assert max(rates(begin(given, drop_path=None)[0])) == pytest.approx(0.1), "a small model's"
    assert not any(rates(begin(given, drop_path=0.0)[0]))


def test_a_model_without_stochastic_depth() -> None:
    with pytest.raises(RequestError, match=r"drop_path: dla46_c has no stochastic depth; set drop_path to 0"):
        prepare("dla46_c", tiny(drop_path=0.1, convert=False), COLOURS, pretrained=False)


def test_the_stochastic_depth_of_a_module() -> None:
    model = timm.create_model("test_resnet", num_classes=3, drop_path_rate=0.2)
    for rate in (None, 0.2):
        assert begin(model, drop_path=rate)[1] == ()
    own, notes = begin(model, drop_path=0.0)
    assert max(rates(own)) == pytest.approx(0.2)
    assert notes == ("drop_path: the module keeps the stochastic depth that it was built with, 0.2",)
    with pytest.raises(RequestError, match=r"built with, 0\.2; build it with drop_path_rate=0\.1, or leave"):
        begin(model, drop_path=0.1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> FinetuneResult:
    """A run, and beside its directory the images."""
    root = tmp_path_factory.mktemp("trained")
    return run("test_resnet", colours(root / "colours"), root / "run", size=(32, 40), epochs=1)


def test_what_the_data_set_is_called_lands_in_the_file(trained: FinetuneResult) -> None:
    """Class names and size; an evaluation takes the size from there."""
    result, data = trained, Path(trained.out).parent / "colours"
    for path in (result.best, result.last):
        cfg = tcnn.load(path).pretrained_cfg
        assert cfg["label_names"] == list(COLOURS)
        assert (cfg["num_classes"], cfg["input_size"], cfg["test_input_size"]) == (3, [3, 32, 40], None)
    model = tcnn.load(result.best)
    assert tuple(resolve_model_data_config(model)["input_size"]) == (3, 32, 40)
    seen: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda module, arguments: seen.append(tuple(arguments[0].shape[1:])))
    evaluate(model, open_dataset(str(data)), batch_size=30, warn=False)
    assert set(seen) == {(3, 32, 40)}


def test_other_class_names_of_the_same_number_are_noted(trained: FinetuneResult) -> None:
    _, notes = begin(trained.best)
    assert notes == ()
    model, notes = begin(trained.best, ("cat", "dog", "fox"))
    assert len(notes) == 1
    assert "trained on other classes (blue, …)" in notes[0]
    assert model.pretrained_cfg["label_names"] == ["cat", "dog", "fox"]


def test_the_same_class_names_in_another_order_are_noted_as_such(trained: FinetuneResult) -> None:
    _, notes = begin(trained.best, (COLOURS[0], COLOURS[2], COLOURS[1]))
    (note,) = notes
    assert f"these classes in another order (its class 1 is {COLOURS[1]}, the data set's {COLOURS[2]})" in note


@pytest.mark.parametrize("outputs", [2, 5])
def test_a_module_of_another_width_is_found_out_before_training(outputs: int) -> None:
    with pytest.raises(RequestError, match=rf"expected an output of \(1, 3\).* found \(1, {outputs}\)"):
        begin(TwoConvs(outputs))


def test_a_head_that_cannot_be_replaced() -> None:
    class Says(TwoConvs):
        num_classes = 5

    with pytest.raises(RequestError, match="Says has 5 classes, the data set has 3, and no reset_classifier"):
        begin(Says(5))


@pytest.mark.slow  # as test_a_transformer_is_trained_as_it_is_if_asked below
def test_nothing_to_convert() -> None:
    with pytest.raises(NothingToConvertError):
        begin("test_vit", size=160)


@pytest.mark.parametrize("content", ["missing", "text", "foreign"])
def test_a_file_that_is_no_checkpoint(tmp_path: Path, content: str, lively: Lively) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "x.safetensors"
    if content == "text":
        path.write_text("not safetensors")
    elif content == "foreign":
        save_file(lively().state_dict(), path)
    with pytest.raises(CheckpointError, match=r"x\.safetensors: "):
        begin(path)


def test_what_is_a_checkpoint(tmp_path: Path) -> None:
    assert is_checkpoint("a/b.safetensors")
    assert is_checkpoint(tmp_path)
    assert not is_checkpoint("resnet50d")
    assert not is_checkpoint(str(tmp_path))


def test_colour_channels(made: Path) -> None:
    assert (in_chans("test_resnet"), in_chans(made), in_chans(TwoConvs())) == (3, 3, 3)
    assert in_chans(nn.Sequential(nn.Conv2d(1, 2, 3))) == 1
    for name in ("tresnet_m", "csatv2"):  # whose first convolutions see rearranged pixels
        with without_data():
            assert in_chans(timm.create_model(name)) == 3


@pytest.mark.parametrize("kind", ["checkpoint", "module", "name"])
def test_the_source_as_its_own_teacher(made: Path, kind: str) -> None:
    source: Any = {"checkpoint": made, "module": seeded(TwoConvs), "name": "test_resnet"}[kind]
    teacher = teacher_for(source, tiny(teacher="source"), pretrained=False)
    assert teacher is not None
    assert teacher is not source
    assert not teacher.training
    assert teacher_for(source, tiny()) is None
    if kind == "checkpoint":
        expected = tcnn.load(made).state_dict()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in teacher.state_dict().items())


def test_the_trainer_raises_tau_itself() -> None:
    """A model that would do so too is told to leave it, and the user that its option has no say."""
    source = timm.create_model("t_test_resnet", num_classes=3, anneal_steps=2)
    model, notes = begin(source)
    assert any(note.startswith("anneal_steps") for note in notes)
    before = [float(layer.position_temperature) for layer in gpsa_layers(model).values()]
    model(torch.randn(2, 3, 32, 32))
    assert [float(layer.position_temperature) for layer in gpsa_layers(model).values()] == before
    source.train()(torch.randn(2, 3, 32, 32))
    assert all(float(layer.position_temperature) > 1 / 40 for layer in gpsa_layers(source).values()), (
        "the source is unchanged"
    )


def test_a_transformer_is_trained_as_it_is_if_asked() -> None:
    with pytest.raises(NothingToConvertError, match=r"no k×k convolution .*; to train it as it is, give --no-convert"):
        begin("test_vit")
    assert not gpsa_layers(begin("test_vit", convert=False)[0])


def test_a_model_of_another_size_is_refused_before_its_first_batch(tmp_path: Path) -> None:
    """Positions of a vision transformer are learned for one size."""
    data = str(colours(tmp_path / "photos", images=2))
    model = timm.create_model("deit_tiny_patch16_224", img_size=32, depth=1, num_classes=3)
    config = tiny(convert=False, epochs=1, size=48, batch_size=2)
    with pytest.raises(RequestError, match=r"not run on an image of 3×48×48 \(.*48.*\); choose another input size"):
        tcnn.finetune(model, data, None, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
