"""Fill a model that was built without data with what a file holds.

The file's tensors come into a copy of the model, in the place of the model's own, wherever modules hold these: as
parameters and buffers, under several names, and in lists, tuples and dicts (the groups of an optimizer, the weights
that a penalty sums). To assign them by name would leave the lists with what the model was built with. Then the state is
loaded as PyTorch loads one, in place, which modules with a way of their own rely on.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tcnn.errors import CheckpointError, one_line, shorten
from tcnn.models.copying import Memo, copied, memo_of, tensors_in
from tcnn.state import of_file


def filled(
    model: nn.Module, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], file: str, advice: str = ""
) -> nn.Module:
    """A copy of a model with a file's state, in the file's dtypes; raises `CheckpointError` if it does not fit.

    Args:
        model: of the file's architecture, with data or without.
        advice: the end of what is said of one that does not fit.
    """
    _refuse_parted(model, tensors, file)
    try:
        made = copied(model, memo_of(model) | _twins(model, tensors))
        state = of_file(_to_read(model, tensors), metadata)
        made.load_state_dict(state.to_load(made.state_dict()), strict=True)
    except Exception as error:  # a module reads its state as it likes
        reason = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), one_line(error))
        told = f"{file}: does not fit {metadata['base_model']}: {shorten(reason)}{advice}"
        raise CheckpointError(told) from error
    _refuse_without_values(made, file)
    return made


def _twins(model: nn.Module, tensors: Mapping[str, Tensor]) -> Memo:
    """By identity, what takes the place of a model's parameters and buffers: the file's tensors."""
    memo: Memo = {}
    for name, own in _named_tensors(model):
        if id(own) not in memo and name in tensors and tensors[name].shape == own.shape:
            given = tensors[name]
            memo[id(own)] = nn.Parameter(given, own.requires_grad) if isinstance(own, nn.Parameter) else given
    return memo


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
