"""Reading a Dockerfile: its stages, what they set, what they run."""

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    """One instruction of a Dockerfile, its continued lines joined."""

    name: str
    text: str


def stages(dockerfile: Path) -> list[list[Instruction]]:
    """The instructions of every stage, each beginning with its FROM."""
    lines = [line for line in dockerfile.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    found: list[list[Instruction]] = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, text = line.strip().partition(" ")
        if name == "FROM":
            found.append([])
        if name and found:
            found[-1].append(Instruction(name, text.strip()))
    return found


def environment(stage: list[Instruction]) -> dict[str, str]:
    """What a stage's ENV lines set."""
    pairs = [pair for name, text in stage if name == "ENV" for pair in shlex.split(text)]
    return dict(pair.split("=", 1) for pair in pairs)


def words(stage: list[Instruction], name: str) -> list[str]:
    """The words of an instruction in exec form, such as CMD."""
    text = next(text for found, text in stage if found == name)
    return list(json.loads(text[text.index("[") :]))
