"""The `tcnn` command: its sub-commands, and what becomes of every error."""

import json
import signal
import sys
import traceback
import warnings
from types import FrameType
from typing import Any

import typer

from tcnn.cli import convert, demo, evaluate, finetune, models, verify
from tcnn.errors import TcnnError
from tcnn.version import __version__

INTERRUPTED = 130
UsageError: Any = typer.BadParameter.__mro__[1]
"""The base class of what is wrong with a command line: click's own, or the copy that newer typers carry."""

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
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


app.command("convert")(convert.command)
app.command("verify")(verify.command)
app.command("models")(models.command)
app.command("finetune")(finetune.command)
app.command("evaluate")(evaluate.command)
app.command("demo")(demo.command)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the code that DESIGN's table gives."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        code = _run(arguments, debug)
    finally:
        signal.signal(signal.SIGTERM, before)  # what Python does on its way out is not to be unwound
    sys.exit(code)


def _run(arguments: list[str], debug: bool) -> int:
    if not debug:
        warnings.filterwarnings("ignore")  # libraries' warnings are not the user's; errors are shown
    try:
        code = app(args=arguments, prog_name="tcnn", standalone_mode=False)
    except TcnnError as error:
        _show(type(error).__name__, str(error), arguments, error if debug else None)
        return error.exit_code
    except UsageError as error:
        message = str(error.format_message()).strip().rstrip(".")
        if message:  # without arguments the help has been shown, and there is nothing to add
            command = error.ctx.command_path if error.ctx else "tcnn"
            _show("UsageError", f"{message}; `{command} --help` shows how", arguments)
        return 2
    except Exception as error:  # nothing unforeseen may end in a traceback either
        message = f"unexpected {type(error).__name__}: {error}; run again with --debug and report what it shows"
        _show("InternalError", message, arguments, error if debug else None)
        return 1
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code
        typer.echo("interrupted", err=True)
    return code if isinstance(code, int) else 0


def _show(kind: str, message: str, arguments: list[str], error: Exception | None = None) -> None:
    if error is not None:
        traceback.print_exception(error)
    message = " ".join(message.split())
    if "--json" in arguments:
        typer.echo(json.dumps({"error": {"code": kind, "message": message}}, ensure_ascii=False))
    else:
        typer.echo(f"error: {message}", err=True)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # unwinds, so that temporary files are removed
