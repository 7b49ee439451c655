"""An empty word in the place of a name or a path is refused: as a path it would be the working directory.

It is what a shell makes of a variable that is not set, as in ``--out "$OUT"``.
"""

import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from tcnn.errors import RequestError


def refuse(command: Any) -> None:
    """Have a command refuse empty words, by the option or argument whose value each is.

    Not those of a command with sub-commands: there one may say that something is to be taken away.
    """
    if hasattr(command, "commands"):
        return
    parse = command.parse_args

    def parse_args(context: Any, words: list[str]) -> Any:
        given = list(words)  # parsing takes words away
        for name in _options(given, _switches(command)):
            raise RequestError(f"{name}: expected a value, found an empty word")
        rest = parse(context, words)
        if "" in given:
            raise RequestError(f"{_argument(context)}: expected a name, found an empty word")
        return rest

    command.parse_args = parse_args


def _switches(command: Any) -> set[str]:
    """The options that take no value: an empty word after one of them is not its own."""
    switches = [one for one in command.params if getattr(one, "is_flag", False)]
    return {"--"} | {name for one in switches for name in (*one.opts, *one.secondary_opts)}


def _options(words: Sequence[str], switches: Collection[str]) -> list[str]:
    """The options that have an empty value, as ``--out ""`` or ``--out=``."""
    pairs = itertools.pairwise(words)
    apart = [before for before, word in pairs if not word and before.startswith("-") and before not in switches]
    joined = [word[:-1] for word in words if word.startswith("--") and word.find("=") == len(word) - 1]
    return apart + joined


def _argument(context: Any) -> str:
    """The argument that is an empty word."""
    for one in context.command.params:
        value = context.params.get(one.name)
        values = value if isinstance(value, list | tuple) else [value]
        if one.param_type_name == "argument" and any(word in ("", Path()) for word in values):
            return str(one.metavar or one.name)
    return str(context.info_name)
