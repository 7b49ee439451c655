"""The sub-commands of `tcnn`: our own, and those that other packages join to it by an entry point."""

import contextlib
import copy
import functools
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer

from tcnn.cli.commands.checkpoints import convert, export, fold, info, init, models, push, verify
from tcnn.cli.commands.runs import demo, evaluate, finetune, inspect, plan, predict, report
from tcnn.cli.options import help_page, refusals, spellings
from tcnn.cli.output import console
from tcnn.version import __version__

ALIASES = {"train": "finetune", "eval": "evaluate"}
"""What other tools call our commands."""

COMMAND_GROUP = "tcnn.commands"
"""Entry-point group of further commands, each a function or a `typer.Typer`, from other packages (the service)."""

app = typer.Typer(
    name="tcnn",
    help="Turn a pretrained CNN into an equivalent Transformed CNN.",
    epilog="Every command takes --debug, which shows the traceback of an error. Exit codes: 0 success, 2 invalid "
    "request, 3 verification failed, 4 environment failure, 130 interrupted.",
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


for module in (
    convert, verify, info, models, plan, finetune, evaluate, predict, inspect, report, fold, export, init, push, demo,
):  # fmt: skip
    name = module.__name__.rpartition(".")[2]
    app.command(name, epilog=help_page.epilog(name))(module.command)


def command_group(arguments: list[str]) -> Any:
    """Our commands, and of the joined ones those that the arguments may mean: the others are not loaded."""
    group = copy.copy(_own())
    group.commands = dict(group.commands)
    first = next((argument for argument in arguments if not argument.startswith("-")), "")
    if first in group.commands:
        return group
    if is_joined(first):
        group.add_command(_load(_joined()[first]), first)
        return group
    for name, entry in sorted(_joined().items()):  # a list, or a word that is no command
        with contextlib.suppress(ImportError):  # what cannot be loaded is left out
            group.add_command(_load(entry), name)
    return group


def spellings_of(arguments: list[str]) -> set[str]:
    """Every spelling of the options that the command of these arguments has."""
    command = command_group(arguments).commands.get(arguments[0])
    return {name for option in getattr(command, "params", ()) for name in (*option.opts, *option.secondary_opts)}


def is_joined(name: str) -> bool:
    """Whether a command of this name comes from another package."""
    return name in _joined()


@functools.cache
def _own() -> Any:
    """The commands of this package, made once in a process: to make them takes as long as a short command."""
    group: Any = typer.main.get_command(app)
    help_page.without_values(group)
    for name, command in group.commands.items():
        help_page.group(command)
        spellings.add(command)
        _refusing(command, name)
        _printing_results_alone(command)
    return group


@functools.cache
def _joined() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=COMMAND_GROUP)}


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
        command.epilog = help_page.listed(lines)
    help_page.without_values(command)
    _refusing(command, entry.name)
    return command


def _refusing(command: Any, name: str) -> None:
    """Have a command refuse empty words, and options given twice or without effect, before it begins."""
    refusals.refuse_empty(command)
    refusals.refuse_twice(command)
    begin = command.invoke

    def invoke(context: Any) -> Any:
        refusals.check_effects(name, context)
        return begin(context)

    command.invoke = invoke


def _printing_results_alone(command: Any) -> None:
    """Have a command that computes leave stdout to its results, whatever networks and libraries print meanwhile."""
    begin = command.invoke

    def invoke(context: Any) -> Any:
        with console.prints_on_stderr():
            return begin(context)

    command.invoke = invoke
