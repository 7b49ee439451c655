"""What is said to a caller in Python: arguments by their names, where the library's messages name a command's options.

Messages have the options of the command line; the top level of `tcnn` and timm's `create_model`, which are Python's way
in, say ``resume=True`` for ``--resume``. The server has words of its own (`tcnn_jobs.errors`).
"""

import re
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from pydantic import BaseModel

from tcnn.errors import OutOfMemoryError, TcnnError, no_memory, out_of_memory

P = ParamSpec("P")
R = TypeVar("R")

FLAGS = "resume|force|allow-changes|convert|pretrained"
"""Options without a value, but for where a message begins with one; with ``no-`` before them they are False."""
TEXTS = "preset|anneal|out|device|format|baseline"
"""Options whose value is text."""
_SPOKEN: tuple[tuple[str, str], ...] = (
    (r"what builds a network of your own is given with --module \S+",
     "give a network of your own itself, a torch.nn.Module"),
    (r"`tcnn models` lists", "timm.list_models('t_*') lists"),
    (r"--resume --out ([^;]+)", r"resume=True, out='\1'"),
    (r"--resume --set ", "resume=True, "),
    (r"--content-heads (\d+) \([^)]*--set conversion\.content_heads=\d+\)",
     r"content_heads=\1 (a CNN that is converted on the way: conversion={'content_heads': \1})"),
    (r"did you mean (\w+)\.(\w+)\?", r"did you mean \1={'\2': …}?"),
    (rf"--no-({FLAGS})\b", r"\1=False"),
    (rf"^--({FLAGS})(?=:)", r"\1"),
    (rf"--({FLAGS})\b(?!-)", r"\1=True"),
    (r"--set ", ""),
    (r"--fixed\b", "dynamic=()"),
    (rf"--({TEXTS}) ([^\s,;:()]+(?::\d+)?)", r"\1='\2'"),
    (r"--([a-z][a-z-]*) (FILE\b|\d[\d.e-]*\b)", r"--\1=\2"),
)  # fmt: skip
_OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
_COMMAND = re.compile(r"(\btcnn [a-z]+ (?:[^\s;,)`]+ )*?--[^;,)`]*)")
"""A whole command, which stays one."""
GOING_ON = "tcnn finetune … --resume", "tcnn.finetune(…, resume=True)"

NOTES = "notes", "problems"
"""The fields of reports that say something to the caller, a line each."""


def in_python(text: str) -> str:
    """The text with arguments of Python in place of options.

    --batch-size 8                 batch_size=8
    --resume --out runs/photos     resume=True, out='runs/photos'
    --no-pretrained                pretrained=False
    --set micro_batch=4            micro_batch=4
    choose another --out           choose another out
    tcnn finetune … --resume       tcnn.finetune(…, resume=True)
    """
    parts = _COMMAND.split(text.replace(*GOING_ON))
    return "".join(part if number % 2 else _spoken(part) for number, part in enumerate(parts))


def _spoken(text: str) -> str:
    for pattern, words in _SPOKEN:
        text = re.sub(pattern, words, text)
    return _OPTION.sub(lambda found: found[1].replace("-", "_"), text.replace("allow-changes", "allow_changes"))


def asked_in_python(function: Callable[P, R]) -> Callable[P, R]:
    """The function as Python's callers have it: what it raises of tcnn's own, notes and says is told `in_python`.

    Out of memory is one line, too, with PyTorch's error as its cause.
    """

    @wraps(function)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        say = kwargs.get("say")
        if callable(say):
            kwargs["say"] = lambda message: say(in_python(message))
        try:
            return _told(function(*args, **kwargs))
        except TcnnError as error:
            error.args = tuple(in_python(one) if isinstance(one, str) else one for one in error.args)
            raise
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise _out_of_memory(type(error))(no_memory(error)) from error

    return asked


def _out_of_memory(kind: type[Exception]) -> type[OutOfMemoryError]:
    """`OutOfMemoryError`, which handlers of PyTorch's own or Python's catch as well."""
    if issubclass(OutOfMemoryError, kind):
        return OutOfMemoryError
    return type("OutOfMemoryError", (OutOfMemoryError, kind), {})


def _told(result: R) -> R:
    """A report with its notes and problems `in_python`, and those of a report in it: a plan has one of the baseline."""
    if not isinstance(result, BaseModel):
        return result
    told: dict[str, object] = {}
    for name, value in result:
        if name in NOTES:
            told[name] = type(value)(map(in_python, value))
        elif isinstance(value, BaseModel) and (inner := _told(value)) is not value:
            told[name] = inner
    return result.model_copy(update=told) if told else result


def warn_caller(text: str) -> None:
    """Warn of something at the line outside of tcnn that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "tcnn":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
