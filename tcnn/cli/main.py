"""Run the `tcnn` command: errors and signals become one line each and an exit code.

The first signal unwinds the command, so that nothing is left half-written; the second ends it at once.
"""

import contextlib
import errno
import io
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Collection
from typing import Any

import typer

from tcnn.cli.group import ALIASES, command_group, is_joined, spellings_of
from tcnn.cli.options.spellings import TAKES_TIMMS, timms
from tcnn.cli.output import console
from tcnn.errors import (
    EnvironmentFailure,
    OutOfMemoryError,
    Stopped,
    StorageError,
    TcnnError,
    no_memory,
    out_of_memory,
)
from tcnn.processes import QuickExit
from tcnn.signals import pending, received, unwinding
from tcnn.zoo.own_network import GIVE_SOURCE

INTERRUPTED = 130
UsageError: Any = typer.BadParameter.__mro__[1]
"""Base class of command line errors: click's own, or the copy in newer typers."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors of the system that say that something cannot be written there."""

WEIGHTS, RANDOM = "--weights", "--no-pretrained"
BOTH = f"give {WEIGHTS} FILE, or {RANDOM} for random ones"
CACHE = "fill the cache (HF_HOME) on a connected machine"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the code of the result or error (see README)."""
    leaving = arguments is None
    leave = QuickExit() if leaving else sys.exit
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    console.silenced = "--quiet" in arguments or "-q" in arguments
    arguments = [argument for argument in arguments if argument not in ("--debug", "--quiet", "-q")]
    if arguments and ALIASES.get(arguments[0], arguments[0]) in TAKES_TIMMS:
        arguments = timms(arguments)
    if arguments:
        arguments[0] = ALIASES.get(arguments[0], arguments[0])
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever called; a file opened later would take its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        _print_what_it_can(getattr(sys, name))
    with unwinding(leaving):
        try:
            code = _run(arguments, debug)
        except (KeyboardInterrupt, SystemExit):
            if not received:
                raise
            code = _interrupted(received[0])  # returned: a process that ends by an exception takes a second for it
    leave(code)


def _run(arguments: list[str], debug: bool) -> int:
    if not debug:
        warnings.filterwarnings("ignore")  # libraries' warnings are not the user's; errors are shown
    try:
        code = command_group(arguments)(args=arguments, prog_name="tcnn", standalone_mode=False)
        sys.stdout.flush()  # what cannot be written is to be known here
    except TcnnError as error:
        if received and not isinstance(error, Stopped):
            return _interrupted(received[0])
        _show(type(error).__name__, fitting(str(error), spellings_of(arguments)), arguments, error if debug else None)
        return error.exit_code
    except UsageError as error:
        message = str(error.format_message()).strip().rstrip(".")
        if message:  # without arguments the help has been shown, and there is nothing to add
            command = error.ctx.command_path if error.ctx else "tcnn"
            _show("UsageError", f"{message}; `{command} --help` shows how", arguments)
        return 2
    except BrokenPipeError:  # whoever read has read enough, as `head` does
        return _closed_pipe()
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # typer has met it first, and would leave with 1
            return _closed_pipe()
        raise
    except Exception as error:  # nothing unforeseen may end in a traceback either
        if received:
            return _interrupted(received[0])
        failure = _environment_failure(error, arguments)
        if failure is not None:
            _show(type(failure).__name__, str(failure), arguments, error if debug else None)
            return failure.exit_code
        message = f"unexpected {type(error).__name__}: {error}; run again with --debug and report what it shows"
        _show("InternalError", message, arguments, error if debug else None)
        return 1
    if pending():  # it got lost in a library: who asked for an end is not told that all is done
        return _interrupted(received[0])
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code
        return _interrupted(signal.SIGINT)
    return code if isinstance(code, int) else 0


def _print_what_it_can(stream: object) -> None:
    """Have a terminal or file whose encoding lacks → or τ show a question mark, rather than fail after the work."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):  # the latter: LC_ALL=C
        stream.reconfigure(errors="replace")


def _closed_pipe() -> int:
    """Exit code of a command whose reader has gone; what is still to be written goes nowhere, without a complaint."""
    with contextlib.suppress(OSError, ValueError):  # io.UnsupportedOperation, where stdout is no file, is both
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + 13  # as if ended by SIGPIPE, which is what other programs are


def _interrupted(number: int) -> int:
    """Exit after a signal; what an interrupted library raises is ignored: safetensors calls it a damaged file."""
    if number == signal.SIGINT:
        typer.echo("interrupted", err=True)
    return 128 + number


def _environment_failure(error: Exception, arguments: list[str]) -> EnvironmentFailure | None:
    """A full disk, too little memory, or a missing library of a joined command as tcnn's own error, or None."""
    if isinstance(error, OSError) and error.errno in FULL:
        place = error.filename or "the output"
        return StorageError(
            f"{place}: {str(error.strerror).lower()} while writing; free some space, or write elsewhere"
        )
    if out_of_memory(error):
        traceback.clear_frames(error.__traceback__)  # what they hold is needed for what follows
        return OutOfMemoryError(no_memory(error))
    library = error.name if isinstance(error, ModuleNotFoundError) else None
    ours = library and library.partition(".")[0] in ("tcnn", "tcnn_jobs", "tcnn_api")
    if library and not ours and any(is_joined(name) for name in arguments[:1]):
        return EnvironmentFailure(
            f'`tcnn {arguments[0]}` needs {library}, which is not installed: pip install "tcnn[serve]"'
        )
    return None


def _show(kind: str, message: str, arguments: list[str], error: Exception | None = None) -> None:
    if error is not None:
        traceback.print_exception(error)
    message = " ".join(message.split())
    if "--json" in arguments:
        with contextlib.suppress(OSError):  # where stdout is what is full, the line below says it
            typer.echo(json.dumps({"error": {"code": kind, "message": message}}, ensure_ascii=False))
            return
    typer.echo(f"error: {message}", err=True)


def fitting(message: str, options: Collection[str]) -> str:
    """The library's advice in the words of a command: the options that it has are named, and no others."""
    if "--module" in options:
        message = message.replace(GIVE_SOURCE, "name what builds it with --module PACKAGE.MODULE:NAME")
    if BOTH not in message or RANDOM in options:
        return message
    if WEIGHTS in options:
        return message.replace(f"{CACHE}, {BOTH}", f"{CACHE}, or give {WEIGHTS} FILE").replace(
            BOTH, f"give {WEIGHTS} FILE"
        )
    made = f"make a checkpoint with tcnn convert, which takes {WEIGHTS} FILE"
    return message.replace(f"{CACHE}, {BOTH}", f"{CACHE}, or {made}").replace(BOTH, made)
