"""Models whose forward pass was changed by what stands on a module: a method in the place of its class's, or a hook."""

import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.layers import GELU, GELUTanh
from timm.utils import AttentionExtract
from torch import Tensor, nn

import tcnn
from tcnn.checkpoints.architecture import describe_model
from tcnn.errors import CheckpointError

Lively = Callable[..., nn.Module]


class Tenfold:
    """A hook that is an object; of a class whose other method returns nothing."""

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return 10 * output

    def watch(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.seen = output


class Doubling(nn.Identity):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * input


def head(net: Any) -> None:
    net.forward_head = types.MethodType(lambda self, x: self.fc(x.amax((2, 3))), net)


def features(net: Any) -> None:
    net.forward_features = functools.partial(lambda own, x: 0.5 * own(x), net.forward_features)


def hook(net: Any) -> None:
    net.fc.register_forward_hook(lambda module, args, output: output / 10)


def object_hook(net: Any) -> None:
    net.layer1[0].register_forward_hook(Tenfold())


def early_return(net: Any) -> None:
    def normalise(scale: float, module: nn.Module, args: Any, named: Any) -> Any:
        if not args:
            return None
        with torch.no_grad():
            return (args[0] * scale + 1, *args[1:]), named

    net.register_forward_pre_hook(functools.partial(normalise, 2.0), with_kwargs=True)


def of_nothing(net: Any) -> None:
    net.layer1[0].drop_block.register_forward_hook(Tenfold())
    net.layer1[0].aa.forward = lambda x: 2 * x


def of_its_kind(net: Any) -> None:
    net.layer1[0].aa = Doubling()


CHANGES: dict[Callable[[Any], None], dict[str, dict[str, str]]] = {
    head: {"": {"forward_head()": "of its own"}},
    features: {"": {"forward_features()": "of its own"}},
    hook: {"fc": {"forward hooks": "of its own"}},
    object_hook: {"layer1.0": {"forward hooks": "of its own"}},
    early_return: {"": {"forward pre-hooks": "of its own"}},
    of_nothing: {"layer1.0.drop_block": {"forward hooks": "of its own"}, "layer1.0.aa": {"forward": "of its own"}},
    of_its_kind: {"layer1.0.aa": {"module": f"{__name__}.Doubling"}},
}


def edited(model: Any) -> Any:
    return describe_model(model, model.conversion_report).edited


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_the_forward_pass_is_an_edit(when: str, change: Callable[[Any], None], lively: Lively) -> None:
    """Before the conversion or after it; only another `forward` was noticed."""
    source = lively("test_resnet")
    if when == "before":
        change(source)
    model = tcnn.convert(source).model
    if when == "after":
        change(model)
    assert edited(model) == CHANGES[change]


@pytest.mark.parametrize(
    ("change", "said", "instead"),
    [
        (head, r"the model itself: forward_head\(\) of its own", r"the model itself: forward_head\(\) of its class"),
        (hook, "fc: forward hooks", "fc: no forward hooks; if a hook only watches, remove it before saving"),
    ],
)
@torch.no_grad()
def test_such_a_file_needs_its_source(
    change: Callable[[Any], None], said: str, instead: str, lively: Lively, tmp_path: Path
) -> None:
    """It was loaded as a model that computes something else."""
    source = lively("test_resnet")
    plain = timm.create_model("test_resnet")
    change(source)
    model, image = tcnn.convert(source).model.eval(), torch.randn(2, 3, 48, 64)
    with pytest.warns(UserWarning, match=rf"{said}\), so its file loads .*source=MODEL"):
        file = tcnn.save(model, tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match=rf"changed by hand \({said}\)"):
        tcnn.load(file)
    with pytest.raises(CheckpointError, match=rf"expected {said}, as it was saved, found {instead}"):
        tcnn.load(file, source=plain)
    for same in (source, model):
        assert torch.equal(tcnn.load(file, source=same)(image), model(image))


def watched(net: Any) -> None:
    seen: list[Tensor] = []

    @torch.no_grad()
    def look(module: nn.Module, args: Any, output: Tensor) -> None:
        if len(seen) > 3:
            return
        with torch.random.fork_rng():
            seen.append(output)

    def given(module: nn.Module, args: Any) -> None:
        seen.extend(args)

    net.fc.register_forward_hook(look)
    net.fc.register_forward_hook(Tenfold().watch)
    net.layer1.register_forward_pre_hook(functools.partial(given))


def logged(net: Any) -> None:
    def log(module: nn.Module, args: Any, output: Tensor) -> Any:
        return output

    log.__module__ = "wandb.integration.torch.wandb_torch"
    net.fc.register_forward_hook(log)


def always_evaluating(net: Any) -> None:
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.train = types.MethodType(lambda self, mode=True: self, norm)  # type: ignore[method-assign]
    net.no_weight_decay = net.group_matcher = set
    net.set_grad_checkpointing = lambda enable=True: None


def wrapped(net: Any) -> None:
    net.forward_features = functools.wraps(net.forward_features)(lambda x: type(net).forward_features(net, x))
    net.forward_head = types.MethodType(type(net).forward_head, net)
    net.get_classifier = lambda: net.fc
    net.fc.register_full_backward_hook(lambda module, given, taken: None)


def extracted(net: Any) -> None:
    for layer in net.modules():
        if isinstance(layer, tcnn.GPSA2d):
            layer.fused_attn = False
    AttentionExtract(net, method="hook")


HARMLESS = [watched, logged, always_evaluating, wrapped, extracted, lambda net: tcnn.anneal(net, 10)]


@pytest.mark.parametrize("change", HARMLESS, ids=lambda change: change.__name__)
def test_what_changes_no_output_is_none(change: Callable[[Any], None], lively: Lively) -> None:
    """Hooks that return nothing, methods of training, wrappers, and what was set to what it was."""
    model = tcnn.convert(lively("test_resnet")).model
    change(model)
    assert edited(model) == {}


def test_timms_own_choice_of_a_forward_pass_is_compared() -> None:
    """FasterNet sets `forward` to another of its methods."""
    with torch.device("meta"):
        model: Any = tcnn.convert(timm.create_model("fasternet_t0")).model
    assert edited(model) == {}
    name = next(name for name, module in model.named_modules() if "forward" in vars(module))
    model.get_submodule(name).forward = lambda x: x
    assert edited(model) == {name: {"forward": "of its own"}}


@pytest.mark.parametrize(
    ("plain", "own", "found"),
    [
        (GELU(), nn.GELU(), None),
        (GELU(), nn.GELU(approximate="tanh"), "gelutanh"),
        (GELU(), GELUTanh(), "gelutanh"),
        (GELUTanh(), nn.GELU(), "gelu"),
        (GELUTanh(), nn.GELU(approximate="tanh"), None),
    ],
)
def test_a_gelu_of_another_class_is_compared_by_its_approximation(
    plain: nn.Module, own: nn.Module, found: str | None, lively: Lively
) -> None:
    name = "gelu_tanh" if isinstance(plain, GELUTanh) else "gelu"
    model: Any = tcnn.convert(lively("test_resnet", act_layer=name)).model
    assert type(model.act1) is type(plain)
    model.act1 = own
    assert {name: one["module"] for name, one in edited(model).items()} == ({} if found is None else {"act1": found})
