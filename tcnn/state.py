"""A module's state dict, and its form in a file: tensors, and as JSON what PyTorch keeps beside them.

Every module has a version, by which its class tells how to read the state of an earlier one. `state_dict()` keeps them
in an attribute, `_metadata`, that a plain dict does not have: what is rebuilt, filtered or renamed loses them, and is
then read as a state of the oldest version, with an error, or with other weights. So nothing else rebuilds one.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

VERSIONS = "module_versions"
"""The metadata key of the versions."""
FIRST = {"version": 1}
"""What PyTorch keeps of a module whose class says nothing else."""

Versions = dict[str, dict[str, Any]]
"""What PyTorch keeps of modules beside their state, by their names: the version and, rarely, more."""


class State(NamedTuple):
    """A state dict in its parts."""

    tensors: dict[str, Tensor]
    versions: Versions | None = None
    """Those of the modules that differ from `FIRST`; None: not known."""

    def metadata(self, prefix: str = "") -> dict[str, str]:
        """What a file keeps beside the tensors; raises `TypeError` for what JSON cannot hold."""
        return {} if self.versions is None else {f"{prefix}{VERSIONS}": json.dumps(self.versions)}

    def without(self, prefix: str) -> "State":
        """The part whose names begin with a prefix that ends with a dot, by the rest of their names."""
        versions = None if self.versions is None else _rest(self.versions, prefix, end=".")
        return State(_rest(self.tensors, prefix), versions)

    def state_dict(self) -> "OrderedDict[str, Any]":
        """The state dict of these parts."""
        made = OrderedDict(self.tensors)
        if self.versions is not None:
            made._metadata = {name: dict(one) for name, one in self.versions.items()}  # type: ignore[attr-defined]
        return made

    def to_load(self, own: Mapping[str, Any]) -> "OrderedDict[str, Any]":
        """The state dict for a module whose own is `own`, which also has the versions where they are not known."""
        of_module: Versions = own._metadata  # type: ignore[attr-defined]
        known = of_module if self.versions is None else {name: self.versions.get(name, FIRST) for name in of_module}
        return self._replace(versions=known).state_dict()


def parts(state: Mapping[str, Any]) -> State:
    """The parts of a state dict, as `state_dict()` or `torch.load` returns it."""
    found = getattr(state, "_metadata", None)
    versions = None if found is None else {name: dict(one) for name, one in found.items() if one != FIRST}
    return State(dict(state), versions)


def of_file(tensors: dict[str, Tensor], metadata: Mapping[str, str], prefix: str = "") -> State:
    """The state that a file holds; raises `ValueError` where its versions are damaged. Older files have none."""
    if (text := metadata.get(f"{prefix}{VERSIONS}")) is None:
        return State(tensors)
    try:
        versions = json.loads(text)
    except (ValueError, RecursionError):
        versions = None
    if not isinstance(versions, dict) or not all(isinstance(one, dict) for one in versions.values()):
        raise ValueError("its versions of modules are damaged; copy or download it again")
    return State(tensors, versions)


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
