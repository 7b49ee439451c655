"""The `tcnn` command: its sub-commands, exit codes and error messages."""

import contextlib
import copy
import errno
import functools
import io
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from importlib.metadata import EntryPoint, entry_points
from types import FrameType
from typing import Any

import typer

from tcnn.cli import (
    convert,
    demo,
    evaluate,
    export,
    finetune,
    fold,
    info,
    init,
    inspect,
    models,
    plan,
    predict,
    push,
    report,
    verify,
)
from tcnn.cli.options import effects, panels, spellings
from tcnn.cli.options.examples import epilog, listed
from tcnn.cli.options.renamed import TAKES_TIMMS, timms
from tcnn.cli.output import console
from tcnn.cli.output.advice import fitting
from tcnn.errors import EnvironmentFailure, Stopped, StorageError, TcnnError
from tcnn.processes import QuickExit
from tcnn.version import __version__

INTERRUPTED = 130
UsageError: Any = typer.BadParameter.__mro__[1]
"""Base class of command line errors: click's own, or the copy in newer typers."""

ALIASES = {"train": "finetune", "eval": "evaluate"}
"""What other tools call our commands."""

COMMAND_GROUP = "tcnn.commands"
"""Entry-point group of further commands, each a function or a `typer.Typer`, from other packages (the service)."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors of the system that say that something cannot be written there."""

_signals: list[int] = []
"""Signals received since the command began."""

app = typer.Typer(
    name="tcnn",
    help="Turn a pretrained CNN into an equivalent Transformed CNN.",
    epilog="Every command takes --debug, which shows the traceback of an error. Exit codes: 0 done, 2 wrong request, "
    "3 verification failed, 4 the environment failed, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tcnn {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", "-V", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


app.command("convert", epilog=epilog("convert"))(convert.command)
app.command("verify", epilog=epilog("verify"))(verify.command)
app.command("info", epilog=epilog("info"))(info.command)
app.command("models", epilog=epilog("models"))(models.command)
app.command("plan", epilog=epilog("plan"))(plan.command)
app.command("finetune", epilog=epilog("finetune"))(finetune.command)
app.command("evaluate", epilog=epilog("evaluate"))(evaluate.command)
app.command("predict", epilog=epilog("predict"))(predict.command)
app.command("inspect", epilog=epilog("inspect"))(inspect.command)
app.command("report", epilog=epilog("report"))(report.command)
app.command("fold", epilog=epilog("fold"))(fold.command)
app.command("export", epilog=epilog("export"))(export.command)
app.command("init", epilog=epilog("init"))(init.command)
app.command("push", epilog=epilog("push"))(push.command)
app.command("demo", epilog=epilog("demo"))(demo.command)


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
    _signals.clear()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever called; a file opened later would take its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        _print_what_it_can(getattr(sys, name))
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _terminate)}
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup has it ignored
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _terminate)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in the background it is ignored, and stays so
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, _once_more
    try:
        code = _run(arguments, debug)
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():  # what Python does on its way out is not to be unwound
            signal.signal(number, signal.SIG_DFL if handler is signal.default_int_handler and leaving else handler)
    leave(code)


def _run(arguments: list[str], debug: bool) -> int:
    if not debug:
        warnings.filterwarnings("ignore")  # libraries' warnings are not the user's; errors are shown
    try:
        code = command_group(arguments)(args=arguments, prog_name="tcnn", standalone_mode=False)
        sys.stdout.flush()  # what cannot be written is to be known here
    except TcnnError as error:
        if _signals and not isinstance(error, Stopped):
            return _interrupted(_signals[0])
        _show(type(error).__name__, fitting(str(error), _options(arguments)), arguments, error if debug else None)
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
        if _signals:
            return _interrupted(_signals[0])
        if isinstance(error, OSError) and error.errno in FULL:
            place = error.filename or "the output"
            full = StorageError(
                f"{place}: {str(error.strerror).lower()} while writing; free some space, or write elsewhere"
            )
            _show(type(full).__name__, str(full), arguments, error if debug else None)
            return full.exit_code
        missing = _missing(error, arguments)
        message = (
            missing or f"unexpected {type(error).__name__}: {error}; run again with --debug and report what it shows"
        )
        _show("EnvironmentFailure" if missing else "InternalError", message, arguments, error if debug else None)
        return EnvironmentFailure.exit_code if missing else 1
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


def command_group(arguments: list[str]) -> Any:
    """Our commands, and of the joined ones those that the arguments may mean: the others are not loaded."""
    group = copy.copy(_own())
    group.commands = dict(group.commands)
    first = next((argument for argument in arguments if not argument.startswith("-")), "")
    if first in group.commands:
        return group
    if first in _joined():
        group.add_command(_load(_joined()[first]), first)
        return group
    for name, entry in sorted(_joined().items()):  # a list, or a word that is no command
        with contextlib.suppress(ImportError):  # what cannot be loaded is left out
            group.add_command(_load(entry), name)
    return group


def _options(arguments: list[str]) -> set[str]:
    """Every spelling of the options that the command of these arguments has."""
    command = command_group(arguments).commands.get(arguments[0])
    return {name for option in getattr(command, "params", ()) for name in (*option.opts, *option.secondary_opts)}


@functools.cache
def _own() -> Any:
    """The commands of this package, made once in a process: to make them takes as long as a short command."""
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        panels.group(command)
        panels.without_values(command)
        spellings.add(command)
        _refusing(command, name)
    return group


@functools.cache
def _joined() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=COMMAND_GROUP)}


def _refusing(command: Any, name: str) -> None:
    """Have a command refuse options without effect before it begins."""
    begin = command.invoke

    def invoke(context: Any) -> Any:
        effects.check(name, context)
        return begin(context)

    command.invoke = invoke


@functools.cache
def _load(entry: EntryPoint) -> Any:
    """A joined command; its help ends with the `EXAMPLES` of its module, if there are any."""
    found = entry.load()
    if isinstance(found, typer.Typer):
        command: Any = typer.main.get_command(found)
    else:
        single = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        single.command(entry.name)(found)
        command = typer.main.get_command(single)
    lines = getattr(sys.modules[entry.module], "EXAMPLES", None)
    if lines:
        command.epilog = listed(lines)
    _refusing(command, entry.name)
    return command


def _missing(error: Exception, arguments: list[str]) -> str | None:
    """Error message if a joined command lacks a library of its extra, or None."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    ours = error.name.partition(".")[0] in ("tcnn", "tcnn_jobs", "tcnn_api")
    if ours or not any(name in _joined() for name in arguments[:1]):
        return None
    return f'`tcnn {arguments[0]}` needs {error.name}, which is not installed: pip install "tcnn[serve]"'


def _show(kind: str, message: str, arguments: list[str], error: Exception | None = None) -> None:
    if error is not None:
        traceback.print_exception(error)
    message = " ".join(message.split())
    if "--json" in arguments:
        with contextlib.suppress(OSError):  # where stdout is what is full, the line below says it
            typer.echo(json.dumps({"error": {"code": kind, "message": message}}, ensure_ascii=False))
            return
    typer.echo(f"error: {message}", err=True)


def _terminate(number: int, frame: FrameType | None) -> None:
    _signals.append(number)
    raise SystemExit(128 + number)  # unwinds, so that temporary files are removed


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _signals:  # asked once more, while what the first one interrupted is put in order: now
        os._exit(128 + number)
    _signals.append(number)
    raise KeyboardInterrupt


def _once_more(dropped: Any) -> None:
    """Send a signal again that came within a callback, as that of a module's lock: what is raised there is lost."""
    if _signals and isinstance(dropped.exc_value, KeyboardInterrupt | SystemExit):
        again = threading.Timer(0.01, os.kill, (os.getpid(), _signals.pop()))  # not here: this is a callback, too
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(dropped)
