"""Copy models, with what their modules hold beside parameters and buffers; what cannot be copied is named.

`copy.deepcopy` refuses a tensor with a history of gradients, which a model holds after a training step if its forward
pass keeps one (an auxiliary loss, features) or a hook computes a weight (old spectral norm, weight norm, pruning). It
also refuses locks, open files and what holds these.
"""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, TypeVar

from torch import Tensor, nn

from tcnn.errors import RequestError, TcnnError, one_line, out_of_memory, shorten

Memo = dict[int, Any]
"""What `copy.deepcopy` has copied already, by identity."""
Model = TypeVar("Model", bound=nn.Module)


def copied(model: Model, memo: Memo | None = None) -> Model:
    """A deep copy of a model; tensors with a history of gradients are copied without it.

    Args:
        memo: what is copied already or is to stand in another's place, of `memo_of`; it is added to.

    Raises `RequestError` for a model that holds what cannot be copied, with its attribute and module.
    """
    memo = memo_of(model) if memo is None else memo
    try:
        return copy.deepcopy(model, memo)
    except TcnnError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise RequestError(_refused(model, error)) from error


def memo_of(model: nn.Module) -> Memo:
    """A memo for `copied`, in which a copy may stand for any tensor or module of the model before it is made."""
    return {**empty_tables(model), **_without_history(model)}


def empty_tables(model: nn.Module) -> Memo:
    """A memo for `copy.deepcopy` that has the empty tables of all modules: of hooks, buffers, children.

    A module has about ten of them, and to copy them one by one took two fifths of the time of copying a model without
    its data.
    """
    return {
        id(table): type(table)()
        for module in model.modules()
        for table in vars(module).values()
        if type(table) in (dict, OrderedDict) and not table
    }


def _without_history(model: nn.Module) -> Memo:
    """Copies of the tensors that the model's modules hold and that are results of a computation with gradients."""
    memo: Memo = {}
    for module in model.modules():
        for tensor in _tensors_in(list(vars(module).values()), set()):
            if not tensor.is_leaf and id(tensor) not in memo:
                memo[id(tensor)] = tensor.detach().clone()
    return memo


def _tensors_in(value: object, seen: set[int]) -> Iterator[Tensor]:
    """Tensors in lists, tuples and dicts, nested; what modules hold is theirs."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict) and id(value) not in seen:
        seen.add(id(value))  # a list may hold itself
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(part, seen)


def _refused(model: nn.Module, error: Exception) -> str:
    """What is said where a model cannot be copied: the first attribute that cannot, and what to do."""
    held = {id(part): part for part in (*model.modules(), *model.parameters(), *model.buffers())}
    tables = ("_parameters", "_buffers", "_modules")
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key in tables:
                continue
            try:
                copy.deepcopy(value, {**held, **memo_of(module)})
            except Exception as own:
                return (
                    f"{name or type(model).__name__}: its {key} (of type {type(value).__name__}) cannot be copied, as "
                    f"tcnn copies models ({shorten(one_line(own), 120)}); keep it outside the model, or take it away "
                    "meanwhile"
                )
    return (
        f"{type(model).__name__}: expected a model that copy.deepcopy copies, found one that it does not "
        f"({shorten(one_line(error), 160)})"
    )
