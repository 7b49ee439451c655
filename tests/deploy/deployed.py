"""What the tests of this folder share: reading the files of a deployment."""

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer
import yaml

from tcnn.cli.group import COMMAND_GROUP

ROOT = Path(__file__).resolve().parents[2]


class Compose(yaml.SafeLoader):
    """YAML with Compose's own tags."""


Compose.add_constructor("!reset", lambda loader, node: None)


def compose(name: str) -> dict[str, Any]:
    """A compose file, with anchors resolved and variables as they stand."""
    return yaml.load((ROOT / name).read_text(), Compose)


def parse_command(arguments: list[str]) -> dict[str, Any]:
    """What a command of the service is given, by name; raises a usage error for what it does not take."""
    name, *rest = arguments
    (entry,) = [entry for entry in entry_points(group=COMMAND_GROUP) if entry.name == name]
    alone = typer.Typer()
    alone.command(name)(entry.load())
    command: Any = typer.main.get_command(alone)
    context = command.make_context(name, rest)
    sources = {p.name: context.get_parameter_source(p.name).name for p in command.params}
    return {name: context.params[name] for name, source in sources.items() if source == "COMMANDLINE"}


def seconds(duration: str) -> float:
    """A duration as Compose and systemd write it: 90s, 90."""
    found = re.fullmatch(r"(\d+)s?", str(duration))
    assert found, duration
    return float(found[1])
