"""A module's state dict, and its form in a file: tensors, and as JSON what PyTorch keeps beside them.

Every module has a version, by which its class tells how to read the state of an earlier one. `state_dict()` keeps them
in an attribute, `_metadata`, that a plain dict does not have: what is rebuilt, filtered or renamed loses them, and is
then read as a state of the oldest version, with an error, or with other weights. So nothing else rebuilds one.
A module may also have an extra state, of any type (`get_extra_state`). In a file it is a Python literal, which keeps a
tuple a tuple, and of which nothing is executed.
"""

import ast
import json
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

VERSIONS = "module_versions"
"""The metadata key of the versions."""
EXTRA = "extra_state"
"""The metadata key of extra states that are no tensors; with `_` before it, the last part of their names."""
FIRST = {"version": 1}
"""What PyTorch keeps of a module whose class says nothing else."""
COUNTER = "num_batches_tracked"
"""What batch norms have only since their second version."""

DAMAGED = "its versions of modules or their extra states are damaged; copy or download it again"
NO_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
"""What `ast.literal_eval` raises, and `json.loads`."""
Versions = dict[str, dict[str, Any]]
"""What PyTorch keeps of modules beside their state, by their names: the version and, rarely, more."""


class State(NamedTuple):
    """A state dict in its parts."""

    tensors: dict[str, Tensor]
    versions: Versions | None = None
    """Those of the modules that differ from `FIRST`; None: not known."""
    extra: Mapping[str, Any] = MappingProxyType({})
    """Extra states that are no tensors."""

    @property
    def bytes(self) -> int:
        """Of its tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def metadata(self, prefix: str = "") -> dict[str, str]:
        """What a file keeps beside the tensors, of extra states those that `is_plain`.

        Raises `TypeError` for what JSON cannot hold.
        """
        extra = {name: repr(value) for name, value in self.extra.items() if is_plain(value)}
        return ({} if self.versions is None else {f"{prefix}{VERSIONS}": json.dumps(self.versions)}) | (
            {f"{prefix}{EXTRA}": json.dumps(extra)} if extra else {}
        )

    def without(self, prefix: str) -> "State":
        """The part whose names begin with a prefix that ends with a dot, by the rest of their names."""
        versions = None if self.versions is None else _rest(self.versions, prefix, end=".")
        return State(_rest(self.tensors, prefix), versions, _rest(self.extra, prefix))

    def state_dict(self) -> "OrderedDict[str, Any]":
        """The state dict of these parts."""
        made: OrderedDict[str, Any] = OrderedDict({**self.tensors, **self.extra})
        if self.versions is not None:
            made._metadata = {name: dict(one) for name, one in self.versions.items()}  # type: ignore[attr-defined]
        return made

    def to_load(self, own: Mapping[str, Any]) -> "OrderedDict[str, Any]":
        """The state dict for a module whose own is `own`, which also has the versions where they are not known.

        Batch norms without their counters are of the first version, to which PyTorch adds them.
        """
        of_module: Versions = own._metadata  # type: ignore[attr-defined]
        if self.versions is None:
            missing = (key.rpartition(".") for key in own if key not in self.tensors)
            added = {name for name, _, last in missing if last == COUNTER}
            known = {name: FIRST if name in added else one for name, one in of_module.items()}
        else:
            known = {name: self.versions.get(name, FIRST) for name in of_module}
        return self._replace(versions=known).state_dict()


def parts(state: Mapping[str, Any]) -> State:
    """The parts of a state dict, as `state_dict()` or `torch.load` returns it."""
    found = getattr(state, "_metadata", None)
    versions = None if found is None else {name: dict(one) for name, one in found.items() if one != FIRST}
    extra = {name: value for name, value in state.items() if _is_extra(name) and not isinstance(value, Tensor)}
    return State({name: value for name, value in state.items() if name not in extra}, versions, extra)


def is_plain(value: object) -> bool:
    """Whether a value is a Python literal: None, numbers, strings, and lists, tuples, dicts and sets of these."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (*NO_LITERAL, RuntimeError):  # what a comparison of tensors raises
        return False


def _is_extra(name: object) -> bool:
    return isinstance(name, str) and name.rpartition(".")[2] == f"_{EXTRA}"


def of_file(tensors: dict[str, Tensor], metadata: Mapping[str, str], prefix: str = "") -> State:
    """The state that a file holds; raises `ValueError` where what is beside the tensors is damaged.

    Older files have nothing there.
    """
    try:
        versions = json.loads(metadata.get(f"{prefix}{VERSIONS}", "null"))
        texts = json.loads(metadata.get(f"{prefix}{EXTRA}", "{}"))
        extra = {name: ast.literal_eval(text) for name, text in texts.items()}
    except (*NO_LITERAL, AttributeError) as error:
        raise ValueError(DAMAGED) from error
    if not isinstance(versions, dict | None) or not all(isinstance(one, dict) for one in (versions or {}).values()):
        raise ValueError(DAMAGED)
    return State(tensors, versions, extra)


def _rest(named: Mapping[str, Any], prefix: str, end: str = "") -> dict[str, Any]:
    """The entries whose names begin with a prefix, by the rest of their names; `end` completes names of modules."""
    return {
        f"{name}{end}".removeprefix(prefix).removesuffix(end): value
        for name, value in named.items()
        if f"{name}{end}".startswith(prefix)
    }


def unshared(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU without shared memory, as safetensors needs them; only shared ones are copied."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in state.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        tensors[name] = tensor
    return tensors
