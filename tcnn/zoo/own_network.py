"""Networks that timm does not know, built by what a user names, `PACKAGE.MODULE:NAME`: for the files that have their
weights, and as models to begin with, whose name is then this one."""

import copy
import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcnn.errors import RequestError, one_line

if TYPE_CHECKING:
    from torch import nn

GIVE_SOURCE = "in Python, give its module as `source`, as in tcnn.load(FILE, source=MODULE)"
"""Advice of the library; the command line has `--module` for it, where a command has."""
FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
SHAPE = "expected PACKAGE.MODULE:NAME, as nets.small:build"
_named: ContextVar[str | None] = ContextVar("network", default=None)


@contextmanager
def network_named(name: str) -> Iterator[None]:
    """Have every checkpoint that is loaded within be of this network; it is built when the first one is.

    Raises `RequestError` for a name of another form.
    """
    if not FORM.fullmatch(name):
        raise RequestError(f"--module: {SHAPE}, found {name!r}")
    token = _named.set(name)
    try:
        yield
    finally:
        _named.reset(token)


def network_name() -> str | None:
    """The name that was given, None where none was."""
    return _named.get()


def import_module() -> None:
    """Import the module of the network that was named, if one was; raises as `network` does."""
    name = _named.get()
    if name is not None:
        with _of_the_user(name):
            importlib.import_module(name.partition(":")[0])


def network() -> "nn.Module | None":
    """The network that was named, built anew; None where none was.

    It is what `PACKAGE.MODULE:NAME` is, a module, or returns: a function or class that needs no arguments.

    Raises `RequestError` for what cannot be imported, fails, or is no module.
    """
    name = _named.get()
    if name is None:
        return None
    place, _, path = name.partition(":")
    with _of_the_user(name):
        made: Any = importlib.import_module(place)
        for part in path.split("."):
            made = getattr(made, part)
        made = copy.deepcopy(made) if _is_module(type(made)) else made() if callable(made) else made
    if not _is_module(type(made)):
        found = type(made).__name__
        raise RequestError(
            f"--module {name}: expected a torch.nn.Module, or a function that returns one, found {found}"
        )
    module: nn.Module = made
    return module


@contextmanager
def _of_the_user(name: str) -> Iterator[None]:
    """Context in which the user's code runs, which may fail in any way.

    The working directory is looked through last, so that nothing in it takes the place of what is installed.
    """
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        yield
    except Exception as error:
        raise RequestError(f"--module {name}: {type(error).__name__}: {one_line(error)}") from error
    finally:
        if added:  # what the module itself has added stays
            sys.path.remove(here)


def _is_module(kind: type) -> bool:
    """Whether it is a class of torch's modules; by name, for torch is not loaded to read a command's options."""
    return any((one.__module__, one.__qualname__) == ("torch.nn.modules.module", "Module") for one in kind.__mro__)
