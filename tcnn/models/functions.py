"""Functions that a model holds, made anew for a copy of it: a lambda over `self`, a hook over a layer of the model.

`copy.deepcopy` takes a function as it is. What it refers to (variables of the scope in which it was made, defaults) is
the model that was copied: a copy would run layers of that, read its weights and train them.
"""

import copy
import functools
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from types import BuiltinMethodType, CellType, FunctionType, MethodType, NoneType
from typing import Any

from torch import nn

_TABLES = frozenset(("_parameters", "_buffers", "_modules"))
"""What a module holds by name; no function is among it."""
_PLAIN = frozenset((NoneType, bool, int, float, str, type))
_EMPTY = frozenset((tuple, list, dict, set, OrderedDict))
"""Kinds of tables of which a module has a dozen, most of them empty."""


class Functions:
    """What a copy of a model has in the place of functions that refer to the model, or to what was copied with it.

    Whatever else a function refers to, as a list outside of the model to which a hook appends, it shares with the
    copy's. A list or dict that holds a part of the model is another one for the copy.

    Args:
        memo: of `copy.deepcopy`: what was copied, by identity. It is added to.
    """

    def __init__(self, model: nn.Module, memo: dict[int, Any]) -> None:
        self._memo = memo
        self._tensors = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def renew_in(self, modules: Iterable[nn.Module]) -> None:
        """Replace the functions that these modules of the copy hold, hooks among them, in place."""
        seen: set[int] = set()
        for module in modules:
            for key, value in vars(module).items():
                if type(value) in _PLAIN or key in _TABLES or (type(value) in _EMPTY and not value):
                    continue
                if (new := self.of_copied(value, seen)) is not value:
                    vars(module)[key] = new

    def of_copied(self, value: Any, seen: set[int] | None = None) -> Any:
        """What was copied, with its functions replaced; in place in lists and dicts, which are the copy's own."""
        seen = set() if seen is None else seen
        if isinstance(value, list | dict) and id(value) not in seen:  # a list may hold itself
            seen.add(id(value))
            for key, part in _items(value):
                if (new := self.of_copied(part, seen)) is not part:
                    value[key] = new
        elif isinstance(value, tuple):
            parts = [self.of_copied(part, seen) for part in value]
            return _tuple(value, parts) if any(new is not old for new, old in zip(parts, value, strict=True)) else value
        elif not isinstance(value, list | dict):
            return self._renewed(value)
        return value

    def _renewed(self, value: Any) -> Any:
        """What stands for a value in the copy: itself, unless it is of the model or refers to what is."""
        if id(value) in self._memo:
            return self._memo[id(value)]
        if id(value) in self._tensors:  # of a layer that is replaced, so that nothing has copied it yet
            return copy.deepcopy(value, self._memo)
        if not self._refers(value):
            return value
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return self._method(value)
        if isinstance(value, BuiltinMethodType):
            return getattr(self._renewed(value.__self__), value.__name__)
        if isinstance(value, functools.partial):
            named = {key: self._renewed(part) for key, part in value.keywords.items()}
            new = type(value)(self._renewed(value.func), *map(self._renewed, value.args), **named)
            new.__dict__.update(vars(value))
            return new
        if isinstance(value, tuple):
            return _tuple(value, [*map(self._renewed, value)])
        if isinstance(value, list | dict):
            self._memo[id(value)] = twin = copy.copy(value)
            for key, part in _items(value):
                twin[key] = self._renewed(part)
            return twin
        return functools.lru_cache(**value.cache_parameters())(self._renewed(value.__wrapped__))

    def _method(self, old: MethodType) -> MethodType:
        """The method of what the copy has; of a layer of another class in its place, the method of the same name."""
        function: Any = old.__func__
        owner, name = self._renewed(old.__self__), getattr(function, "__name__", "")
        if type(owner) is not type(old.__self__) and getattr(type(old.__self__), name, None) is function:
            function = getattr(type(owner), name, function)
        return MethodType(self._renewed(function), owner)

    def _function(self, old: FunctionType) -> FunctionType:
        """The function with other variables, where these refer to the model; all others are one for both."""
        changed = [cell for cell in _cells(old) if id(cell) not in self._memo and self._refers(cell)]
        self._memo.update((id(cell), CellType()) for cell in changed)  # each may be in the scope of other functions
        cells = tuple(self._memo.get(id(cell), cell) for cell in _cells(old))
        self._memo[id(old)] = new = FunctionType(old.__code__, old.__globals__, old.__name__, closure=cells)
        for cell in changed:
            self._memo[id(cell)].cell_contents = self._renewed(cell.cell_contents)
        new.__defaults__ = self._renewed(old.__defaults__)
        new.__kwdefaults__ = self._renewed(old.__kwdefaults__)
        new.__dict__.update({key: self._renewed(value) for key, value in vars(old).items()})
        new.__doc__, new.__qualname__, new.__annotations__ = old.__doc__, old.__qualname__, old.__annotations__
        return new

    def _refers(self, value: Any) -> bool:
        """Whether a function, or what else holds some, leads to what was copied, or to a tensor of the model."""
        left, seen = [value], {id(value)}
        while left:
            for part in _parts(left.pop()):
                if id(part) in self._memo or id(part) in self._tensors:
                    return True
                if id(part) not in seen:
                    seen.add(id(part))
                    left.append(part)
        return False


def _parts(value: Any) -> list[Any]:
    """What a function refers to, or a partial, method or container within what it refers to."""
    if isinstance(value, FunctionType):
        return [*_cells(value), value.__defaults__, value.__kwdefaults__, *vars(value).values()]
    if isinstance(value, CellType):
        return [value.cell_contents] if value != CellType() else []  # one that is not set yet
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, BuiltinMethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, list | tuple):
        return [*value]
    if isinstance(value, dict):
        return [*value.values()]
    return [value.__wrapped__] if isinstance(value, functools._lru_cache_wrapper) else []


def _cells(function: FunctionType) -> tuple[CellType, ...]:
    return function.__closure__ or ()


def _items(value: list[Any] | dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    yield from value.items() if isinstance(value, dict) else enumerate(value)


def _tuple(like: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    """A tuple of the same kind, which may have names for its parts."""
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
