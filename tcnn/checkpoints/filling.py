"""Fill a model that was built without data with what a file holds.

The file's tensors come into a copy of the model, in the place of the model's own, wherever modules hold these: as
parameters and buffers, under several names, and in lists, tuples and dicts (the groups of an optimizer, the weights
that a penalty sums). To assign them by name would leave the lists with what the model was built with. Then the state is
loaded as PyTorch loads one, in place, which modules with a way of their own rely on.

Buffers that are in no state dict (the filters of anti-aliasing, tables of positions) are computed anew when the
architecture is built, in its dtype; a file says in which they were. It also says which names are one tensor: of what
somebody tied by hand the architecture knows nothing.
"""

import json
from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor, nn

from tcnn.errors import CheckpointError, one_line, shorten
from tcnn.models.copying import Memo, copied, memo_of, tensors_in
from tcnn.models.running import weights_dtype
from tcnn.state import of_file

BUFFERS = "buffer_dtypes"
"""The metadata key of the dtypes of floating-point buffers that are not in the file."""
SHARED = "shared_tensors"
"""The metadata key of the names that are one parameter or buffer, a list for each."""


def beside(model: nn.Module, tensors: Collection[str]) -> dict[str, str]:
    """The metadata for `filled`, where there is something to say; `tensors` are the names of those in the file."""
    dtypes = {name: str(one.dtype).removeprefix("torch.") for name, one in _computed(model, tensors)}
    names: dict[int, list[str]] = {}
    for name, tensor in _named_tensors(model):
        if name in tensors:
            names.setdefault(id(tensor), []).append(name)
    shared = [group for group in names.values() if len(group) > 1]
    return {key: json.dumps(found) for key, found in ((BUFFERS, dtypes), (SHARED, shared)) if found}


def filled(
    model: nn.Module, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], file: str, advice: str = ""
) -> nn.Module:
    """A copy of a model with a file's state, in the file's dtypes; raises `CheckpointError` if it does not fit.

    Args:
        model: of the file's architecture, with data or without.
        advice: the end of what is said of one that does not fit.
    """
    _refuse_parted(model, tensors, file)
    memo = memo_of(model) | _cast(model, tensors, _dtypes(metadata, file))
    memo |= _twins(model, tensors, _shared(metadata, file))
    try:
        made = copied(model, memo)
        state = of_file(_to_read(model, tensors), metadata)
        made.load_state_dict(state.to_load(made.state_dict()), strict=True)
    except Exception as error:  # a module reads its state as it likes
        reason = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), one_line(error))
        told = f"{file}: does not fit {metadata['base_model']}: {shorten(reason)}{advice}"
        raise CheckpointError(told) from error
    _refuse_without_values(made, file)
    return made


def _twins(model: nn.Module, tensors: Mapping[str, Tensor], shared: Mapping[str, str]) -> Memo:
    """By identity, what takes the place of a model's parameters and buffers: the file's tensors.

    Args:
        shared: by name, the first name of the same tensor, where it has several.
    """
    memo: Memo = {}
    made: dict[tuple[str, bool], Tensor] = {}
    for name, own in _named_tensors(model):
        if name in tensors and tensors[name].shape == own.shape:
            trained, given = isinstance(own, nn.Parameter), tensors[name]
            key = shared.get(name, name), trained
            twin = memo.get(id(own), made.get(key))
            if twin is None:
                twin = nn.Parameter(given, own.requires_grad) if trained else given
            memo[id(own)] = made[key] = twin
    return memo


def _computed(model: nn.Module, tensors: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    """The floating-point buffers that are not in a file with these tensors, by name."""
    for name, buffer in model.named_buffers():
        if name not in tensors and buffer.is_floating_point():
            yield name, buffer


def _cast(model: nn.Module, tensors: Mapping[str, Tensor], recorded: Mapping[str, torch.dtype]) -> Memo:
    """By identity, the floating-point buffers that are not in the file in the dtypes that they had.

    Of a file that does not say, as older ones, those in the dtype of the architecture's weights are of the file's.
    """
    named = model.named_parameters()
    stored = next((tensors[name].dtype for name, one in named if name in tensors and one.is_floating_point()), None)
    follows = {} if stored is None else {weights_dtype(model): stored}
    return {
        id(buffer): buffer.detach().to(recorded.get(name, follows.get(buffer.dtype, buffer.dtype)))
        for name, buffer in _computed(model, tensors)
    }


def _dtypes(metadata: Mapping[str, str], file: str) -> dict[str, torch.dtype]:
    """The dtypes that `beside` wrote; raises `CheckpointError` for anything else."""
    try:
        found = {name: getattr(torch, str(dtype)) for name, dtype in json.loads(metadata.get(BUFFERS, "{}")).items()}
    except (ValueError, AttributeError):
        found = {"": None}
    if not all(isinstance(one, torch.dtype) and one.is_floating_point for one in found.values()):
        raise CheckpointError(f"{file}: what it says of its buffers is damaged; copy or download it again")
    return found


def _shared(metadata: Mapping[str, str], file: str) -> dict[str, str]:
    """By name, the first name of the same tensor, as `beside` wrote it; raises `CheckpointError` for anything else."""
    try:
        return {name: first for first, *others in json.loads(metadata.get(SHARED, "[]")) for name in (first, *others)}
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{file}: what it says of shared tensors is damaged; copy or download it again"
        ) from error


def _to_read(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The file's tensors, copies of those that a module reads in a way of its own: into these same tensors."""
    usual = nn.Module._load_from_state_dict
    modules = model.named_modules()
    own = tuple(f"{name}.".lstrip(".") for name, one in modules if type(one)._load_from_state_dict is not usual)
    return {name: tensor.clone() if name.startswith(own) else tensor for name, tensor in tensors.items()}


def _named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers under all their names."""
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def _refuse_parted(model: nn.Module, tensors: Mapping[str, Tensor], file: str) -> None:
    """Raise `CheckpointError` for parameters that are one in the architecture and two in the file."""
    first: dict[int, str] = {}
    for name, own in model.named_parameters(remove_duplicate=False):
        if name not in tensors or tensors[name].shape != own.shape:
            continue
        other = first.setdefault(id(own), name)
        if other != name and not torch.equal(tensors[other].nan_to_num(), tensors[name].nan_to_num()):
            raise CheckpointError(
                f"{file}: {other} and {name} are one parameter of {type(model).__name__}, and differ in the file; "
                "give a source that keeps them apart"
            )


def _refuse_without_values(model: nn.Module, file: str) -> None:
    """Raise `CheckpointError` for a tensor that neither the file nor the architecture gave values."""
    for name, module in model.named_modules():
        for key, value in _held(module):
            if any(tensor.is_meta for tensor in tensors_in([value])):
                raise CheckpointError(
                    f"{file}: expected values of {f'{name}.{key}'.lstrip('.')} in the file or in the source, found "
                    "none: the source is on the meta device; build it on another"
                )


def _held(module: nn.Module) -> list[tuple[str, object]]:
    """What a module holds beside its children, by name."""
    tables = ("_parameters", "_buffers", "_modules")
    own = [(key, value) for key, value in vars(module).items() if key not in tables]
    return [*module._parameters.items(), *module._buffers.items(), *own]
