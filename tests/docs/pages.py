"""Running a page of the documentation: its code blocks in order, in one directory, as a reader would.

- ```` ```python ````: run, in one namespace a page; a ```` ```text ```` block right behind it is what it must print.
- ```` ```console ````: each `$ tcnn …` is run, and what stands below is what it must print.
- ```` ```bash ````: every `tcnn …` line must parse; test_commands.py runs them, with the models and images of desk.py.

Pretrained weights need a network, so `pretrained=True` is run as `pretrained=False`, but for `local-dir:`, which needs
none.
"""

import contextlib
import functools
import io
import re
import shlex
import signal
from pathlib import Path
from typing import Any, NamedTuple

from tcnn.cli.group import command_group
from tcnn.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$(?:\n\1```text\n(.*?)^\1```$)?", re.MULTILINE | re.DOTALL)
PRETRAINED = re.compile(r'(create_model\("(?!local-dir:)[^)]*)pretrained=True')
MEASURED = re.compile(
    r"\d+\.\d+e[+-]\d+|(?<=at τ = )\S+ \d+\.\d+%|(?<=in )\d+\.\d+(?= s\b)|^\d+ s$|(?<=worst layer )\S+", re.MULTILINE
)
"""Rounding errors, the layer with the largest one, drifts and times: they may differ between machines, and nothing
else."""
DRIFT = re.compile(r"at τ = \S+ (\d+\.\d+)%")


class Block(NamedTuple):
    language: str
    code: str
    output: str | None


class Command(NamedTuple):
    arguments: list[str]
    output: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, each with the output that is stated behind it."""
    found = BLOCK.findall((ROOT / page).read_text())
    return [
        Block(language, re.sub(f"^{indent}", "", code, flags=re.M), out or None)
        for indent, language, code, out in found
    ]


def commands(block: Block) -> list[Command]:
    """The `tcnn` command lines of a console or bash block, with the output that is stated."""
    if block.language == "bash":
        lines = [shlex.split(line, comments=True) for line in block.code.splitlines()]
        tails = [line[line.index("tcnn") + 1 :] for line in lines if "tcnn" in line and line[0] != "make"]
        return [Command(tail, "") for tail in tails]
    parts = re.split(r"^\$ ", block.code, flags=re.MULTILINE)
    assert parts[0] == "", f"a console block begins with a command: {block.code[:80]!r}"
    found = []
    for part in parts[1:]:
        line, _, output = part.partition("\n")
        name, *arguments = shlex.split(line)
        assert name == "tcnn", f"not a tcnn command: {line}"
        found.append(Command(arguments, output))
    return found


def leaf(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command that a line names, be it `convert` or `jobs submit finetune`, and what it is given."""
    command: Any = _group(arguments[0] if arguments else "")
    rest = list(arguments)
    while hasattr(command, "commands"):
        assert rest and rest[0] in command.commands, f"no command {' '.join(arguments)!r}"
        command = command.commands[rest.pop(0)]
    return command, rest


@functools.cache
def _group(first: str) -> Any:
    """The commands, made once for each first word: that takes longer than to parse a line."""
    return command_group([first])


def parse(arguments: list[str]) -> dict[str, Any]:
    """What a command gets from its command line, defaults left out: by ``--option``, or by an argument's name.

    Raises a usage error for a line that the command does not take.
    """
    command, rest = leaf(arguments)
    context = command.make_context(command.name, [argument for argument in rest if argument != "--debug"])
    given = [p for p in command.params if context.get_parameter_source(p.name).name == "COMMANDLINE"]
    return {_spelling(p, context.params[p.name]): context.params[p.name] for p in given}


def _spelling(parameter: Any, value: object) -> str:
    """`--worker`, or `--no-worker` if that is what a switch was set to."""
    return max(parameter.secondary_opts if value is False and parameter.secondary_opts else parameter.opts, key=len)


def canonical(arguments: list[str]) -> set[str]:
    """The options of a command line, each by its longest spelling."""
    command, rest = leaf(arguments)
    longest = {
        name: max(names, key=len)
        for parameter in command.params
        for names in (parameter.opts, parameter.secondary_opts)
        for name in names
    }
    names = [word.partition("=")[0] for word in rest if word.startswith("-") and word != "--debug"]
    return {longest.get(name, name) for name in names}


def run(arguments: list[str]) -> tuple[int, str]:
    """Exit code, and what the command prints on stdout and stderr together."""
    printed = io.StringIO()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            main(arguments)
    except SystemExit as end:
        return int(end.code or 0), printed.getvalue()
    finally:
        signal.signal(signal.SIGTERM, before)
    raise AssertionError("main always exits")


def execute(code: str, namespace: dict[str, object], page: str) -> str:
    """What a Python block prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(PRETRAINED.sub(r"\1pretrained=False", code), page, "exec"), namespace)
    return printed.getvalue()


def assert_prints(printed: str, stated: str | None, what: object) -> None:
    """Fail unless a page states what was printed, drifts within one point of a hundred."""
    stated = stated or ""
    assert comparable(printed) == comparable(stated), what
    for found, expected in zip(DRIFT.findall(printed), DRIFT.findall(stated), strict=True):
        assert abs(float(found) - float(expected)) <= 1, (what, found, expected)


def comparable(output: str) -> str:
    """The output without what was measured, and without the blanks that pad tables."""
    return "\n".join(line.rstrip() for line in MEASURED.sub("#", output).strip().splitlines())
