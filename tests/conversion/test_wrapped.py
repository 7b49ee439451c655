"""What wraps a model is taken for the model in it: nothing is compiled, and files have the model's names."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from data_pictures import draw_classes
from nets import same_state, seeded_model, snapshot
from PIL import Image
from sampled import sampled
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel

import tcnn
from tcnn.data.image_set import open_dataset
from tcnn.errors import RequestError


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend=lambda graph, inputs: pytest.fail("compiled for a look at its layers"))


WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "torch.compile": compiled, "DataParallel": nn.DataParallel, "AveragedModel": AveragedModel,
    "ModelEmaV3": ModelEmaV3,
    "both": lambda model: AveragedModel(nn.DataParallel(model)),
}  # fmt: skip
wrappers = pytest.mark.parametrize(
    "wrapped",
    [
        pytest.param(wrapper, id=name, marks=[] if name in ("torch.compile", "both") else pytest.mark.slow)
        for name, wrapper in WRAPPERS.items()
    ],
)


@pytest.fixture(scope="module")
def source() -> nn.Module:
    return seeded_model("test_resnet")


@pytest.fixture(scope="module")
def model(source: nn.Module) -> nn.Module:
    return tcnn.convert(source).model


@wrappers
def test_the_module_in_it_is_converted_and_verified(wrapped: Callable[[nn.Module], Any], source: nn.Module) -> None:
    model, report = tcnn.convert(wrapped(source))
    assert [layer.name for layer in report.layers] == ["layer4.0.conv1", "layer4.0.conv2"]
    assert tcnn.verify(wrapped(source), wrapped(model), input_size=(32, 32), float64=False).passed
    wide = tcnn.without_stride(wrapped(source))
    assert wide.layer4[0].conv1.stride == (1, 1)


@wrappers
def test_files_load_as_those_of_the_model(
    wrapped: Callable[[nn.Module], Any], model: nn.Module, tmp_path: Path
) -> None:
    tcnn.save(wrapped(model), tmp_path / "m.safetensors")
    assert same_state(tcnn.load(tmp_path / "m.safetensors"), snapshot(model))
    tcnn.save_directory(wrapped(model), tmp_path / "m")
    assert same_state(timm.create_model(f"local-dir:{tmp_path}/m", pretrained=True), snapshot(model))


@wrappers
def test_heads_are_folded_and_inspected(wrapped: Callable[[nn.Module], Any], model: nn.Module) -> None:
    x = torch.zeros(1, 3, 32, 32)
    assert tcnn.fold(wrapped(model), images=x).report.complete
    assert [layer.name for layer in tcnn.inspect(wrapped(model), x).layers] == ["layer4.0.conv1", "layer4.0.conv2"]
    assert tcnn.fuse(wrapped(model))(x).shape == (1, 1000)


@pytest.mark.parametrize("name", sampled(WRAPPERS, ["both", "torch.compile"]))
def test_is_exported_and_published_under_its_name(name: str, model: nn.Module, tmp_path: Path) -> None:
    wrapped = WRAPPERS[name](model)
    exported = tcnn.export(wrapped, tmp_path / "m.pt2", size=(32, 32), dynamic=())
    assert exported.base_model == "test_resnet.r160_in1k"
    card = tcnn.push_to_hub(wrapped, "me/m", dry_run=True, pictures=False).card
    assert "made from timm's `test_resnet` by tcnn" in card


def test_predictions_of_one_have_its_names(source: nn.Module, tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    named = copy.deepcopy(source)
    named.pretrained_cfg = {**named.pretrained_cfg, "label_names": [f"class {i}" for i in range(1000)]}
    (found,) = tcnn.predict(nn.DataParallel(named), tmp_path, top=1, size=32)
    assert found.guesses[0].name.startswith("class ")


def test_of_several_processes_and_compiled(model: nn.Module, tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        wrapped = compiled(nn.parallel.DistributedDataParallel(copy.deepcopy(model)))
        tcnn.save(wrapped, tmp_path / "m.safetensors")
    finally:
        torch.distributed.destroy_process_group()
    assert same_state(tcnn.load(tmp_path / "m.safetensors"), snapshot(model))


def test_what_is_sharded_is_refused_with_what_gathers_it(source: nn.Module, model: nn.Module, tmp_path: Path) -> None:
    """It ended in errors of DTensors and of data pointers; a CNN was told that nothing in it could be converted."""
    x = torch.zeros(1, 3, 32, 32)
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        cnn, sharded = (fully_shard(copy.deepcopy(each), mesh=mesh) for each in (source, model))
        calls: list[Callable[[], object]] = [
            lambda: tcnn.convert(cnn), lambda: tcnn.save(sharded, tmp_path / "m.safetensors"),
            lambda: tcnn.fold(sharded), lambda: tcnn.fuse(sharded), lambda: tcnn.predict(sharded, x),
            lambda: tcnn.inspect(sharded, x), lambda: tcnn.save_directory(sharded, tmp_path / "m"),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(RequestError, match=r"whole tensors.*DTensor.*get_model_state_dict"):
                call()
        whole = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
        gathered = copy.deepcopy(model)
        gathered.load_state_dict(whole)
        tcnn.save(gathered, tmp_path / "m.safetensors")
    finally:
        torch.distributed.destroy_process_group()
    assert same_state(tcnn.load(tmp_path / "m.safetensors"), snapshot(model))


def test_what_is_no_module_is_told_what_it_is(source: nn.Module, tmp_path: Path) -> None:
    """A result that was not unpacked, a name, a class or nothing at all ended in AttributeError or TypeError."""
    calls: list[Callable[[Any], object]] = [
        tcnn.fold, tcnn.prune, tcnn.fuse, lambda it: tcnn.verify(source, it), lambda it: tcnn.verify(it, source),
        lambda it: tcnn.save(it, tmp_path / "m.safetensors"), lambda it: tcnn.export(it, tmp_path / "m.onnx"),
        lambda it: tcnn.explain(it, source, torch.zeros(1, 3, 32, 32)),
    ]  # fmt: skip
    trained: list[Callable[[Any], object]] = [
        lambda it: tcnn.finetune(it, "p", out=tmp_path / "run"),
        lambda it: tcnn.plan(it, "p"),
    ]
    for call in (*calls, *trained):
        with pytest.raises(RequestError, match=r"model: expected a module, found a value of type Conv.*its \.model$"):
            call(tcnn.convert(source))
        for it in (None, nn.Conv2d, *(["t.safetensors"] if call in calls else [])):
            with pytest.raises(RequestError, match=r"^model: expected a module, found .*; load it by tcnn\.load or"):
                call(it)


SIZE = (32, 32)
IMAGE = torch.zeros(2, 3, *SIZE)
COMPILED: dict[str, Callable[[nn.Module], Any]] = {
    "TorchScript": lambda model: torch.jit.trace(model, IMAGE),
    "TorchScript, frozen": lambda model: torch.jit.freeze(torch.jit.trace(model, IMAGE)),
    "torch.export": lambda model: torch.export.export(model, (IMAGE,)).module(),
}


@pytest.fixture(scope="module", params=COMPILED.values(), ids=COMPILED)
def without_layers(request: pytest.FixtureRequest, source: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        return request.param(copy.deepcopy(source).eval())


def test_what_has_no_layers_of_python_is_told_what_it_is(
    without_layers: Any, source: nn.Module, model: nn.Module, tmp_path: Path
) -> None:
    """They ended in RuntimeError, AttributeError and NotImplementedError, or were told to take another size."""
    calls: list[Callable[[Any], object]] = [
        tcnn.convert, tcnn.without_stride, tcnn.fold, tcnn.prune, tcnn.fuse, tcnn.initialise, tcnn.inspect,
        lambda it: tcnn.verify(it, model), lambda it: tcnn.verify(source, it), lambda it: tcnn.fold(model, source=it),
        lambda it: tcnn.explain(it, model, IMAGE), lambda it: tcnn.inspect(model, IMAGE, against=[it]),
        lambda it: tcnn.export(it, tmp_path / "m.pt2"), lambda it: tcnn.save(it, tmp_path / "m.safetensors"),
        lambda it: tcnn.finetune(it, "p", out=tmp_path / "run"), lambda it: tcnn.plan(it, "p"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(RequestError, match=r"^model: expected a module with layers of Python, found .*made from$"):
            call(without_layers)
    assert not any(tmp_path.iterdir())


def test_torchscript_predicts_and_is_measured(without_layers: Any, source: nn.Module, tmp_path: Path) -> None:
    draw_classes(tmp_path, ["a", "b"], 1)
    data = open_dataset(str(tmp_path), "val")
    plain = copy.deepcopy(source)
    plain.pretrained_cfg = plain.default_cfg = {}  # TorchScript does not keep how images are prepared
    calls = (
        lambda it: tcnn.predict(it, tmp_path, size=SIZE, batch_size=2)[0].guesses[0].probability,
        lambda it: tcnn.evaluate(it, data, size=SIZE, class_subset=[0, 1]).loss,
    )
    for call in calls:
        if isinstance(without_layers, torch.jit.ScriptModule):
            assert call(without_layers) == pytest.approx(call(plain), rel=1e-4)
        else:
            with pytest.raises(RequestError, match=r"found a program of torch\.export; give what it was made from$"):
                call(without_layers)


def test_a_part_of_torchscript_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), torch.jit.script(nn.Sequential(nn.ReLU())), nn.Conv2d(4, 4, 3))
    with pytest.raises(RequestError, match=r"^1: expected a module with layers of Python, found one of TorchScript"):
        tcnn.convert(model, target="2")


class Packed(nn.Linear):
    def get_extra_state(self) -> Any:
        return object()

    def set_extra_state(self, state: Any) -> None:
        pass


def test_weights_that_are_no_tensors(source: nn.Module, tmp_path: Path) -> None:
    """`save` and `plan` ended in AttributeError."""
    packed = tcnn.convert(source).model
    packed.fc = Packed(96, 1000)
    for call, verb in (
        (lambda: tcnn.save(packed, tmp_path / "m.safetensors"), "save"),
        (lambda: tcnn.plan(packed, str(draw_classes(tmp_path / "p", ["a", "b"], 4)), seconds=0), "fine-tune"),
    ):
        with pytest.raises(
            RequestError, match=rf"^ResNet: .* one tensor to {verb}, found fc\._extra_state, of type object"
        ):
            call()


ODD: dict[str, tuple[Callable[[], Tensor], str]] = {
    "wrapper": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        r"of type NestedTensor, as quantised layers have",
    ),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "of torch.qint8, as"),
    "sparse": (lambda: torch.eye(4).to_sparse(), "of layout torch.sparse_coo"),
    "processor's": (lambda: torch.eye(4).to_mkldnn(), "of layout torch._mkldnn"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:torch.quantize_per_tensor")
def test_weights_that_are_no_dense_tensors(kind: str, source: nn.Module, tmp_path: Path) -> None:
    """As torchao's, which wrap several tensors each; `save` ended in RuntimeErrors of PyTorch's."""
    make, told = ODD[kind]
    model = tcnn.convert(source).model
    model.register_buffer("odd", make())
    with pytest.raises(RequestError, match=rf"^ResNet: expected dense tensors to save, found odd, {told}.*; save the"):
        tcnn.save(model, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers(dtype: torch.dtype, source: nn.Module, tmp_path: Path) -> None:
    """safetensors has those of 64 bits alone; of others `save` ended in its KeyError."""
    model = tcnn.convert(source).model
    model.register_buffer("filter", torch.ones(2, dtype=dtype))
    if dtype == torch.complex64:
        tcnn.save(model, tmp_path / "m.safetensors")
    else:
        with pytest.raises(RequestError, match=r"found filter, of torch\.complex128; use complex64, or two tensors$"):
            tcnn.save(model, tmp_path / "m.safetensors")
    assert len(list(tmp_path.iterdir())) == (dtype == torch.complex64)
