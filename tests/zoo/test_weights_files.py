"""Weights files of other programs: wherever the state dict lies, whatever keys begin with, and nothing unpickled."""

import argparse
import gzip
import io
import lzma
import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save
from sampled import sampled
from timm.models import _registry, save_for_hf
from torch import nn

from tcnn.errors import TcnnError, WeightsError
from tcnn.zoo import weights
from tcnn.zoo.sources import check_name, create_source

State = dict[str, torch.Tensor]


def under(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


WRAPPED: dict[str, Callable[[State], Any]] = {
    "plain": lambda state: state,
    "net": lambda state: {"net": state, "epoch": 3},
    "state_dict": lambda state: {"state_dict": state},
    "model": lambda state: {"model": state},
    "an entry of its own name": lambda state: {"resnet": state, "best": 0.5},
    "Lightning": lambda state: {
        "state_dict": under("model.", state) | {"criterion.weight": torch.ones(3)},
        "hyper_parameters": {"lr": 0.1},
        "pytorch-lightning_version": "2.5.0",
        "optimizer_states": [{"state": {}, "param_groups": []}],
    },
    "DDP, compiled": lambda state: {"state_dict": under("module._orig_mod.", state)},
    "averaged beside": lambda state: {"state_dict": under("x.", state), "state_dict_ema": state},
    "a model in a model": lambda state: {"model": {"state_dict": under("net.backbone.", state)}},
}


QUICK = ("plain", "Lightning", "DDP, compiled", "averaged beside")


@pytest.mark.parametrize("form", sampled(WRAPPED, QUICK))
def test_the_state_dict_is_found(form: str, lively: Callable[..., nn.Module], tmp_path: Path) -> None:
    own = lively(num_classes=3).state_dict()
    torch.save(WRAPPED[form](own), tmp_path / "w.pth")
    said: list[str] = []
    model = create_source("test_resnet", weights=tmp_path / "w.pth", say=said.append)
    assert all(torch.equal(tensor, own[name]) for name, tensor in model.state_dict().items())
    assert getattr(model, "num_classes", None) == 3
    assert said == [
        f"{tmp_path / 'w.pth'}: weights for 3 classes, so that is what the model tells apart (test_resnet itself: 1000)"
    ]
    cfg = getattr(model, "pretrained_cfg", {})
    assert "state_dict" not in cfg
    assert str(tmp_path) not in str(cfg), "no path of this machine goes into checkpoints"


def test_two_models_in_one_file_are_not_guessed_between(lively: Callable[..., nn.Module], tmp_path: Path) -> None:
    own = lively().state_dict()
    torch.save({"state_dict": under("student.", own) | under("teacher.", own)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"weights under student\. and teacher\. fit alike; save the state dict of"):
        create_source("test_resnet", weights=tmp_path / "w.pth")


TWO: dict[str, Callable[[State, State], Any]] = {
    "student and teacher": lambda one, other: {"teacher": one, "student": other, "epoch": 3},
    "model.student and model.teacher": lambda one, other: {"model": {"student": one, "teacher": other}},
    "a.state_dict and b.net": lambda one, other: {"b": {"net": one}, "a": {"state_dict": other}},
    "moments and student": lambda one, other: {
        "moments": {key: 0 * value for key, value in one.items()},
        "student": one,
    },
}


@pytest.mark.parametrize("names", TWO)
def test_two_networks_under_entries_of_their_own_names(
    names: str, lively: Callable[..., nn.Module], tmp_path: Path
) -> None:
    """The first in the file's order was loaded without a word."""
    torch.save(TWO[names](lively().state_dict(), lively(seed=1).state_dict()), tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=rf": weights under {re.escape(names)} fit alike; save the state dict of"):
        create_source("test_resnet", weights=tmp_path / "w.pth")


def test_what_is_no_network_is_passed_over(lively: Callable[..., nn.Module], tmp_path: Path) -> None:
    own = lively(num_classes=3).state_dict()
    metrics = {"loss": torch.ones(()), "per_class": torch.ones(3), "confusion": torch.ones(3, 3).long()}
    optimizer = {"state": {0: {"exp_avg": torch.ones(3, 3)}}, "param_groups": []}
    torch.save({"metrics": metrics, "optimizer": optimizer, "resnet": own}, tmp_path / "w.pth")
    found = create_source("test_resnet", weights=tmp_path / "w.pth").state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in found.items())


def test_what_a_file_would_need_is_named(tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": torch.ones(1)}, "ratio": Fraction(1, 2)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"code \(it needs fractions\.Fraction; save model\.state_dict\(\) alone\)"):
        weights.read(tmp_path / "w.pth")


class Foreign:
    """What a pickle would call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Fraction, (1, 2)


def _saved(content: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(content, out, **options)
    return out.getvalue()


def _packed(kind: type[tarfile.TarFile] | type[zipfile.ZipFile], name: str) -> bytes:
    """An archive with a file of weights in it, or with a text."""
    out = io.BytesIO()
    content = _saved({"a": torch.ones(9)}) if name.endswith("pth") else b"a text"
    if issubclass(kind, zipfile.ZipFile):
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr(name, content)
    else:
        with tarfile.open(fileobj=out, mode="w") as tar:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _script() -> bytes:
    out = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), out)
    return out.getvalue()


WHOLE, OLD = {"a": torch.ones(2)}, {"_use_new_zipfile_serialization": False}
NO_WEIGHTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "it is empty"),
    "a text": (lambda: b"hello", "its content is of neither kind"),
    "a page": (lambda: b"<!DOCTYPE html><html></html>", "its content is of neither kind"),
    "a pickle": (lambda: pickle.dumps({"a": [1, 2]}), "its content is of neither kind"),
    "gzip": (lambda: gzip.compress(_saved(WHOLE)), "it is compressed by gzip; unpack it"),
    "xz": (lambda: lzma.compress(b"x"), "it is compressed by xz; unpack it"),
    "tar": (lambda: _packed(tarfile.TarFile, "w.pth"), "it is a tar archive; unpack it"),
    "tar of texts": (lambda: _packed(tarfile.TarFile, "a.txt"), "it is a tar archive; unpack it"),
    "zip": (lambda: _packed(zipfile.ZipFile, "a.txt"), "it is an archive that torch.save did not write"),
    "half": (lambda: _saved(WHOLE)[:600], "it is not whole"),
    "half of the old format": (lambda: _saved(WHOLE, **OLD)[:30], "it is not whole"),
    "foreign": (lambda: _saved({"a": Foreign()}), "it needs fractions.Fraction; save model.state_dict() alone"),
    "foreign in the old format": (
        lambda: _saved({"a": Foreign()}, **OLD),
        "it needs fractions.Fraction; save model.state_dict() alone",
    ),
    "TorchScript": (_script, "it is TorchScript; save model.state_dict()"),
    "safetensors": (lambda: save(WHOLE), "it is safetensors; its name must end in .safetensors"),
    "Git LFS": (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "it is a pointer of Git LFS"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", NO_WEIGHTS)
def test_what_is_no_weights_is_told_for_what_it_is(kind: str, tmp_path: Path) -> None:
    """In one line, and never with torch's advice to unpickle it after all."""
    make, said = NO_WEIGHTS[kind]
    (tmp_path / "w.pth").write_bytes(make())
    with pytest.raises(WeightsError) as caught:
        weights.read(tmp_path / "w.pth")
    assert f"without pickled code ({said}" in str(caught.value)
    assert "weights_only" not in str(caught.value)


def test_timms_options_are_read_as_plain_values(tmp_path: Path) -> None:
    options = argparse.Namespace(model="t_test_resnet", num_classes=3, model_kwargs={"content_heads": 2})
    written = {"arch": "t_test_resnet", "args": options, "state_dict": {"a": torch.ones(1)}, "epoch": 3, "metric": 71.5}
    torch.save(written, tmp_path / "w.pth.tar")
    found = weights.read(tmp_path / "w.pth.tar")
    assert (found.epoch, found.metric) == (3, 71.5)
    assert (found.architecture, found.arguments["model_kwargs"]) == ("t_test_resnet", {"content_heads": 2})
    torch.save({"epoch": 3, "note": "nothing"}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match="no weights in it; its keys are epoch, note; save model"):
        weights.read(tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("folder", "folder: a directory without a checkpoint; expected one of a run or a model, or a timm name"),
        ("notes.txt", "notes.txt: a file whose name does not say what it is; a checkpoint's ends in .safetensors"),
        ("w.pth", "w.pth: a file, where a model's name is expected; weights stand beside it: MODEL --weights w.pth"),
        ("gone.pth", "gone.pth: no such file"),
        ("resnet5Od", "resnet5Od: no timm model of this name; did you mean resnet50"),
        ("test_resnet.best", "test_resnet.best: test_resnet has no weights tagged 'best'; known tags: r160_in1k"),
        (
            "local-dir:folder",
            "local-dir:folder: expected a directory with config.json and weights, found none at folder",
        ),
        ("gone/run", "gone/run: no such file or directory; a timm name has no slash, a repository is hf-hub:gone/run"),
        ("folder/inner", "folder/inner: neither a checkpoint nor a directory of a run or a model; name one of these"),
        ("ftp:some/where", "Unknown model source 'ftp' in model name 'ftp:some/where'"),
    ],
)
def test_what_is_no_name_is_told_for_what_it_is(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for file in ("notes.txt", "w.pth"):
        (tmp_path / file).touch()
    with pytest.raises(TcnnError) as caught:
        check_name(name)
    assert str(caught.value).startswith(said)


def test_the_architecture_of_a_name_is_known() -> None:
    assert check_name("test_resnet") == check_name("test_resnet.r160_in1k") == "test_resnet"
    assert check_name("hf-hub:timm/resnet18.a1_in1k") is None


def test_a_model_with_two_classifiers_has_the_classes_of_both(tmp_path: Path) -> None:
    """Distilled transformers have a second one, for what the teacher said."""
    small = {"img_size": 32, "depth": 1}
    name = "deit_tiny_distilled_patch16_224"
    torch.save(timm.create_model(name, num_classes=3, **small).state_dict(), tmp_path / "w.pth")
    model = create_source(name, weights=tmp_path / "w.pth", **small)
    assert (model.num_classes, model.head.out_features, model.head_dist.out_features) == (3, 3, 3)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"fc.weight": (3, 4)}, "fc.weight: expected (10, 4), found (3, 4); the file is for 3 classes: num_classes=3"),
        ({"fc.weight": ()}, "fc.weight: expected (10, 4), found ()"),
        ({"conv.weight": (3, 4)}, "conv.weight: expected (4, 3), found (3, 4)"),
        ({"conv.weight": None}, "conv.weight: expected (4, 3), not in the file"),
        ({"scale": (1,)}, "scale: in the file, not in the model"),
        ({}, None),
    ],
)
def test_the_first_tensor_that_does_not_fit_is_told(changed: dict[str, Any], said: str | None) -> None:
    own: dict[str, Any] = {"conv.weight": (4, 3), "fc.weight": (10, 4)}
    expected = {name: torch.zeros(shape) for name, shape in own.items()}
    state = {name: torch.zeros(shape) for name, shape in {**own, **changed}.items() if shape is not None}
    assert weights.mismatch(state, expected, ("fc",)) == said


def deaf(patch: pytest.MonkeyPatch) -> None:
    """Has `test_resnet` ignore timm's `pretrained`, as architectures of one's own may."""
    entry_point = timm.models.model_entrypoint("test_resnet")

    def ignores(pretrained: bool = False, pretrained_cfg_overlay: object = None, **kwargs: Any) -> nn.Module:
        made: nn.Module = entry_point(pretrained=False, **kwargs)
        return made

    patch.setitem(_registry._model_entrypoints, "test_resnet", ignores)


def test_an_architecture_that_ignores_pretrained_gets_its_weights(
    lively: Callable[..., nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = lively(num_classes=3).state_dict()
    torch.save(own, tmp_path / "w.pth")
    torch.save(under("net.", {f"x{place}": own[key] for place, key in enumerate(own)}), tmp_path / "foreign.pth")
    deaf(monkeypatch)
    state = create_source("test_resnet", weights=tmp_path / "w.pth").state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in own.items())
    with pytest.raises(WeightsError, match="built without any of its weights: the architecture ignores timm's `pretr"):
        create_source("test_resnet", weights=tmp_path / "foreign.pth")
    with pytest.raises(WeightsError, match="t_test_resnet was built without any of its weights"):
        create_source("t_test_resnet", weights=tmp_path / "w.pth")


@pytest.mark.parametrize("name", ["test_resnet", "t_test_resnet"])
def test_a_file_counts_beside_the_weights_of_a_directory(name: str, tmp_path: Path) -> None:
    """Also where it differs from those in its classifier alone, as after training that."""
    model = timm.create_model(name, num_classes=3)
    save_for_hf(model, tmp_path / "model", safe_serialization=True)
    with torch.no_grad():
        model.get_classifier().bias += 5
    torch.save(model.state_dict(), tmp_path / "w.pth")
    for weights_of in (tmp_path / "w.pth", None):
        made = create_source(f"local-dir:{tmp_path / 'model'}", weights=weights_of)
        assert torch.equal(made.get_classifier().bias, model.get_classifier().bias) == (weights_of is not None)
        assert "state_dict" not in made.pretrained_cfg
