"""Run-time type checks of arguments by annotation: one line that names the argument, what was expected, and found."""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from functools import lru_cache, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from tcnn.errors import RequestError, shorten

P = ParamSpec("P")
R = TypeVar("R")
WORDS: dict[object, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "None",
}
"""What an annotation is called where a value does not fit it."""
CLASSES = {"Module": "a module", "Tensor": "a tensor", "Path": "a path"}
"""Those of torch and of paths, by name: this module loads neither."""
UNIONS = (Union, UnionType)
SEVERAL = (Sequence, Collection, Iterable)


def typed(*own: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that raises `RequestError` for an argument that its annotation does not allow.

    Modules, tensors, configurations and paths are left to the function, whose messages say where to get one, and so are
    ranges, and the arguments named in `own`. Numbers may be NumPy's.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            signature, kinds = _kinds(function)
            given: Mapping[str, Any] = {}
            with suppress(TypeError):  # below, Python says which argument is missing, or none of the function's
                given = signature.bind(*args, **kwargs).arguments
            for name, value in given.items():  # the first that is wrong is told
                if name in kinds and name not in own and not fits(value, kinds[name]):
                    raise _refused(name, value, kinds[name])
            return function(*args, **kwargs)

        return call

    return decorate


def _refused(name: str, value: Any, kind: Any) -> RequestError:
    """What is said of a value; of a list, of the first in it that is of another kind."""
    lists = [one for one in (get_args(kind) if get_origin(kind) in UNIONS else [kind]) if get_origin(one) in SEVERAL]
    if lists and isinstance(value, list | tuple):
        inner = get_args(lists[0])[0]
        name, value, kind = next((f"{name}[{i}]", one, inner) for i, one in enumerate(value) if not fits(one, inner))
    return RequestError(f"{name}: expected {told(kind)}, found {shorten(repr(value), 80)}")


def at_least(least: int, **counts: int) -> None:
    """Raise `RequestError` for the first of these numbers, given by the names of their arguments, that is smaller."""
    for name, count in counts.items():
        if count < least:
            raise RequestError(f"{name}: expected {least} or more, found {count}")


def at_most(most: int, **counts: int) -> None:
    """Raise `RequestError` for the first of these numbers, given by the names of their arguments, that is larger."""
    for name, count in counts.items():
        if count > most:
            raise RequestError(f"{name}: expected {most} or less, found {count}")


@lru_cache
def _kinds(function: Callable[..., object]) -> tuple[inspect.Signature, dict[str, object]]:
    """A function's signature, and the annotations of the arguments that are checked by theirs."""
    signature = inspect.signature(function, eval_str=True)
    plain = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and _is_plain(parameter.annotation)
    }
    return signature, plain


def _is_plain(kind: object) -> bool:
    if get_origin(kind) in UNIONS:
        return all(map(_is_plain, get_args(kind)))
    return kind in WORDS or get_origin(kind) in (Literal, tuple, dict, Mapping, Callable, *SEVERAL)


def fits(value: object, kind: Any) -> bool:
    """Whether a value is of an annotated kind; of lists, what they contain is looked at, too."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in UNIONS:
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin in SEVERAL or origin is tuple:
        if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
            return False
        if origin is tuple and inner[-1] is not Ellipsis:
            return isinstance(value, Sized) and len(value) == len(inner) and all(map(fits, value, inner))
        return not isinstance(value, list | tuple) or all(fits(one, inner[0]) for one in value)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return callable(value) if origin is Callable else isinstance(value, origin or kind)


def told(kind: Any) -> str:
    """An annotated kind in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(inner)
    if origin in UNIONS:
        *others, last = map(told, inner)
        return f"{', '.join(others)} or {last}" if others else last
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"({', '.join(map(told, inner))})"
    if origin in SEVERAL or origin is tuple:
        return "a list"
    if origin in (dict, Mapping):
        return "a dict"
    if origin is Callable:
        return "a function"
    name = (origin or kind).__name__
    return WORDS.get(kind) or CLASSES.get(name, name)
