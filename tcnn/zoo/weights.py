"""Weights files of whatever wrote them: timm, Lightning, a training loop of one's own. Nothing in them is unpickled.

A state dict may lie in an entry of the file (`state_dict`, `model`, `net`, …), and its keys may have a prefix of the
wrapper that it was saved from (`model.`, `module.`, `_orig_mod.`).
"""

import argparse
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tcnn.errors import WeightsError, one_line, shorten
from tcnn.formatting import are, some
from tcnn.state import COUNTER, State, of_file, parts
from tcnn.zoo.catalogue import weights_file

ENTRIES = (
    "state_dict_ema", "model_ema", "ema_state_dict", "state_dict", "model_state_dict", "model", "net", "network",
    "module", "weights",
)  # fmt: skip
"""Where a file may keep the state dict; averaged weights first, as timm takes them."""

_GLOBAL = re.compile(r"GLOBAL (\S+) (?:was not an allowed global|whose module)")
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""What `torch.save` wrote first before its files were zips."""
_MAGIC = {
    b"\x1f\x8b": "compressed by gzip; unpack it",
    b"BZh": "compressed by bzip2; unpack it",
    b"\xfd7zXZ\0": "compressed by xz; unpack it",
    b"(\xb5/\xfd": "compressed by zstd; unpack it",
    b"\x89HDF": "HDF5, as Keras writes it",
    b"\x93NUMPY": "an array of NumPy",
    b"version https://git-lfs": "a pointer of Git LFS; git lfs pull fetches the file",
}
"""How files begin that are taken for weights."""


class WeightsFile(NamedTuple):
    """What a weights file contains."""

    state: State
    architecture: str | None
    """The model's name, where the file records it: timm's train.py does."""
    arguments: dict[str, Any]
    """What timm's train.py was called with, or nothing."""
    epoch: int | None = None
    """The epoch, from 0, after which timm's train.py wrote it."""
    metric: float | None = None
    """What was measured then: of top-1, percent."""


def read(path: Path) -> WeightsFile:
    """Read a safetensors or PyTorch file; raises `WeightsError` with one line."""
    weights_file(path)
    try:
        content = _content(path)
    except Exception as error:
        raise WeightsError(
            f"{path}: not readable as safetensors or as PyTorch weights without pickled code ({_reason(path, error)})"
        ) from error
    if not isinstance(content, Mapping):
        raise WeightsError(f"{path}: expected a state dict, found {type(content).__name__}; save model.state_dict()")
    state = _state(path, content)
    if state is None:
        raise WeightsError(f"{path}: no weights in it; its keys are {_listed(content)}; save model.state_dict()")
    arguments = content.get("args")
    name, epoch, metric = content.get("arch"), content.get("epoch"), content.get("metric")
    return WeightsFile(
        state,
        name if isinstance(name, str) else None,
        dict(vars(arguments)) if isinstance(arguments, argparse.Namespace) else {},
        epoch if isinstance(epoch, int) else None,
        float(metric) if isinstance(metric, int | float) else None,
    )


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as handle:
            state = State({name: handle.get_tensor(name) for name in handle.keys()})  # noqa: SIM118
            with suppress(ValueError):  # another program's, under the same key
                state = of_file(state.tensors, handle.metadata() or {})
            return state.state_dict()
    with torch.serialization.safe_globals([argparse.Namespace]):  # timm's train.py keeps its options; plain values
        return torch.load(path, map_location="cpu", weights_only=True)


def _reason(path: Path, error: Exception) -> str:
    """Why a file cannot be read, in our own words: torch's advise to unpickle whatever is in it."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except Exception:
        names = _GLOBAL.findall(str(error))  # of the format before zip
    foreign = [name for name in names if name != "argparse.Namespace"]
    if foreign:
        return f"it needs {', '.join(foreign[:3])}; save model.state_dict() alone"
    advice = "weights_only" in str(error)
    if path.suffix == ".safetensors" or (not advice and _is_of_this_machine(error)):
        return one_line(error)
    return _kind(path) or "its content is of neither kind"


def _is_of_this_machine(error: Exception) -> bool:
    return isinstance(error, OSError | MemoryError) or "memory" in str(error)


def _kind(path: Path) -> str:
    """What a file is that is no whole file of weights, by its content; nothing if that is unknown."""
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        return "it is empty"
    if head.startswith(b"PK") and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist() if "/" in name}
        if "data.pkl" not in names:
            return "it is an archive that torch.save did not write"
        return "it is TorchScript; save model.state_dict()" if "constants.pkl" in names else "it is damaged"
    if head.startswith((b"PK", _LEGACY)):
        return "it is not whole"
    if head[257:262] == b"ustar":
        return "it is a tar archive; unpack it"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size:
        return "it is safetensors; its name must end in .safetensors"
    return next((f"it is {what}" for magic, what in _MAGIC.items() if head.startswith(magic)), "")


def _states(content: Mapping[Any, Any], depth: int = 2) -> dict[str, State]:
    """What may be the state dict in what a file contains, by where it lies: of `ENTRIES` the first, of others all."""
    tensors = {key: value for key, value in content.items() if isinstance(key, str) and isinstance(value, Tensor)}
    inner = {key: value for key, value in content.items() if isinstance(value, Mapping)}
    known = [key for key in ENTRIES if key in inner]
    if tensors and not known:
        return {"": parts(content)._replace(tensors=tensors)}
    if not depth:
        return {}
    found = {
        key: {f"{key}.{place}".rstrip("."): state for place, state in _states(inner[key], depth - 1).items()}
        for key in known or inner
    }
    if known:
        return next(filter(None, found.values()), {})
    return {place: state for states in found.values() for place, state in states.items()}


def _state(path: Path, content: Mapping[Any, Any]) -> State | None:
    """The state dict in what a file contains, wherever it lies; None if there is none.

    Raises `WeightsError` where several may be, as those of a student and its teacher.
    """
    found = _states(content)
    found = {place: state for place, state in found.items() if _has_matrix(state)} or found  # no metrics and the like
    if len(found) > 1:
        names = " and ".join(shorten(place, 60) for place in sorted(found)[:3]) + (" and …" if len(found) > 3 else "")
        raise WeightsError(f"{path}: weights under {names} fit alike; save the state dict of one of them")
    return next(iter(found.values()), None)


def _has_matrix(state: State) -> bool:
    return any(tensor.dim() > 1 and tensor.is_floating_point() for tensor in state.tensors.values())


def without_prefix(path: Path, state: State, expected: Collection[str]) -> State:
    """The part of a model's own keys, without the prefix of a wrapper; all of it where there is no such prefix.

    Raises `WeightsError` where two prefixes fit alike, as those of a student and its teacher do.
    """
    counts: Counter[str] = Counter()
    for key in state.tensors:
        words = key.split(".")
        for place in range(len(words)):
            if ".".join(words[place:]) in expected:
                counts["".join(f"{word}." for word in words[:place])] += 1
    best = counts.most_common(2)
    if not best or not best[0][0] or best[0][1] < len(expected) / 2:
        return state
    if len(best) == 2 and best[1][1] == best[0][1]:
        names = " and ".join(sorted(prefix for prefix, _ in best))
        raise WeightsError(f"{path}: weights under {names} fit alike; save the state dict of one of them")
    return state.without(best[0][0])


def refuse_not_finite(path: Path, state: Mapping[str, Tensor]) -> None:
    """Raise `WeightsError` for NaN and infinite weights, of which no conversion can be verified, and sparse ones."""
    for key, tensor in state.items():
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            raise WeightsError(f"{path}: {shorten(key, 80)}: expected a dense tensor, found a sparse or quantised one")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            wrong = int((~tensor.isfinite()).sum())
            raise WeightsError(
                f"{path}: {key}: {wrong} of {some(tensor.numel(), 'value')} {are(wrong)} NaN or infinite, as after a "
                "training that diverged; take an earlier checkpoint"
            )


def write(path: Path, state: State, out: Path) -> None:
    """Write what `read` has found in a file as safetensors; raises `WeightsError` for tensors without such a form."""
    # Each with a memory of its own: of what shares one, or is a part of another, all of it would be written.
    try:
        tensors = {key: tensor.detach().clone().contiguous() for key, tensor in state.tensors.items()}
        save_file(tensors, out, {"format": "pt"} | state.metadata())
    except (SafetensorError, RuntimeError, ValueError, TypeError, KeyError) as error:  # a type that the format lacks
        raise WeightsError(f"{path}: cannot be written as safetensors: {one_line(error)}") from error


def mismatch(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], classifiers: Collection[str]) -> str | None:
    """How a state dict differs from a model's own: the first key that does, in the model's order, or None."""
    for key, tensor in expected.items():
        if key not in state:
            if key.rpartition(".")[2] == COUNTER:
                continue  # PyTorch adds it
            return f"{key}: expected {tuple(tensor.shape)}, not in the file{_found(expected, state)}"
        found = tuple(state[key].shape)
        if found != tuple(tensor.shape):
            own = found and any(key.startswith(f"{name}.") for name in classifiers)
            hint = f"; the file is for {some(found[0], 'class')}: num_classes={found[0]}" if own else ""
            return f"{key}: expected {tuple(tensor.shape)}, found {found}{hint}"
    extra = next((key for key in state if key not in expected), None)
    return f"{extra}: in the file, not in the model" if extra else None


def none_in(state: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> bool:
    """Whether a model has not one of a file's tensors, under whatever name: its architecture did not take them.

    Tensors of one value only, such as fresh statistics, are alike in all models and do not count.
    """

    def prints(tensors: Mapping[str, Tensor]) -> set[tuple[int, float, float]]:
        wide = (one.detach().double() for one in tensors.values() if one.is_floating_point() and one.numel())
        return {(one.numel(), one.sum().item(), one.norm().item()) for one in wide if one.min() < one.max()}

    own = prints(state)
    return bool(own) and own.isdisjoint(prints(model))


def _found(expected: Collection[str], state: Mapping[str, Tensor]) -> str:
    """What is in a file instead, for a message: its first keys, where none is one of the model's."""
    if any(key in expected for key in state):
        return ""
    return f", whose keys are {_listed(state)}; save the model's own state_dict"


def _listed(content: Mapping[Any, Any]) -> str:
    shown = ", ".join(shorten(str(key), 60) for key in list(content)[:3])
    return shown + (", …" if len(content) > 3 else "") or "none"
