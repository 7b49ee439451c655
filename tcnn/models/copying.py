"""Copy models, with what their modules hold beside parameters and buffers; what cannot be copied is named.

`copy.deepcopy` refuses a tensor with a history of gradients, which a model holds after a training step if its forward
pass keeps one (an auxiliary loss, features) or a hook computes a weight (old spectral norm, weight norm, pruning). It
also refuses locks, open files and what holds these. Functions over the model are made anew (`functions`).
"""

import copy
import copyreg
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from types import FunctionType, NoneType
from typing import Any, TypeVar

from torch import Tensor, nn

from tcnn.errors import RequestError, TcnnError, one_line, out_of_memory, shorten
from tcnn.models.functions import Functions

Memo = dict[int, Any]
"""What `copy.deepcopy` has copied already, by identity."""
Model = TypeVar("Model", bound=nn.Module)
_SHARED = frozenset((NoneType, bool, int, float, str, type, FunctionType))
"""Types whose values `copy.deepcopy` does not copy, and which hold no tensor."""


def copied(model: Model, memo: Memo | None = None) -> Model:
    """A deep copy of a model; tensors with a history of gradients are copied without it.

    Args:
        memo: what is copied already or is to stand in another's place, of `memo_of`; it is added to.

    Raises `RequestError` for a model that holds what cannot be copied, with its attribute and module.
    """
    memo = memo_of(model) if memo is None else memo
    try:
        _copy_modules(model, memo)
        made = copy.deepcopy(model, memo)
        Functions(model, memo).renew_in(made.modules())
        return made
    except TcnnError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise RequestError(_refused(model, error)) from error


def copied_part(value: Any, of: nn.Module, memo: Memo) -> Any:
    """A copy of what somebody has set on a parameter of the model, or on a layer that is replaced: a value, a hook.

    Args:
        memo: that of the model's copy.
    """
    return Functions(of, memo).of_copied(copy.deepcopy(value, memo))


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


def _copy_modules(model: nn.Module, memo: Memo) -> None:
    """Put copies of the modules into the memo, as `copy.deepcopy` makes them but three times as fast.

    It would copy the name of every attribute, too. Modules that are copied in a way of their own are left to it.
    """
    twins: list[tuple[Any, dict[str, Any]]] = []
    left = [model]
    while left:
        module = left.pop()
        if id(module) not in memo and (state := _state(module)) is not None:
            memo[id(module)] = twin = type(module).__new__(type(module))
            twins.append((twin, state))
            left += [child for child in module._modules.values() if child is not None]
    for twin, state in reversed(twins):  # modules before those that hold them
        copies = {key: value if type(value) in _SHARED else copy.deepcopy(value, memo) for key, value in state.items()}
        twin.__setstate__(copies)


def _state(module: nn.Module) -> dict[str, Any] | None:
    """What `copy.deepcopy` copies of a module: its attributes; None where its class says how it is to be copied."""
    if getattr(module, "__deepcopy__", None) is not None or type(module) in copyreg.dispatch_table:
        return None
    reduced: Any = module.__reduce_ex__(4)
    make, given, *state = reduced
    plain = make is copyreg.__newobj__ and given == (type(module),)  # type: ignore[attr-defined]
    return state[0] if plain and len(state) and isinstance(state[0], dict) and not any(state[1:]) else None


def _without_history(model: nn.Module) -> Memo:
    """Copies of the tensors that the model's modules hold and that are results of a computation with gradients."""
    held = [list(vars(module).values()) for module in model.modules()]
    return {id(tensor): tensor.detach().clone() for tensor in tensors_in(held) if not tensor.is_leaf}


def tensors_in(values: Iterable[object]) -> Iterator[Tensor]:
    """Tensors in lists, tuples and dicts, nested, each once; what modules hold is theirs."""
    left, seen = list(values), set[int]()
    while left:
        value = left.pop()
        if type(value) in _SHARED or id(value) in seen:  # a list may hold itself
            continue
        if isinstance(value, Tensor):
            seen.add(id(value))
            yield value
        elif isinstance(value, list | tuple | dict) and value:
            seen.add(id(value))
            left.extend(value.values() if isinstance(value, dict) else value)


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
