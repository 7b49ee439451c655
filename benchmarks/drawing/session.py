"""Record the first ten minutes on a terminal: docs/session.md, and docs/session.cast for asciinema's players.

    python -m benchmarks.drawing.session DIRECTORY

Every command is run as it is typed, one after the other in a directory, which is empty at first; nothing is downloaded.
What they print is kept as it is. It resumes: what has been run stands in
the directory's typed.json.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.reporting import hardware, versions

ROOT = Path(__file__).parents[2]
PAGE, CAST = ROOT / "docs" / "session.md", ROOT / "docs" / "session.cast"
WIDTH = 100
MARKS = "<!-- session -->", "<!-- /session -->"
COMMANDS = (
    ("What can be converted, and what would that be?", "tcnn models 'resnet??d'"),
    ("", "tcnn convert resnet18 --dry-run"),
    ("The whole journey on real handwritten digits, with the CNN beside it:", "tcnn demo --out demo"),
    ("What is in the file that it wrote?", "tcnn info demo/t_resnet-scenes.safetensors"),
    ("How good is it on the images held out, and what does it see?",
     "tcnn evaluate demo/finetuned-t-cnn --data demo/scenes"),
    ("", "tcnn predict demo/finetuned-t-cnn {image} --top 3"),
    ("The run as one page:", "tcnn report demo/finetuned-t-cnn"),
)  # fmt: skip
"""What is said before a command, and the command; `{image}` is the first image held out."""


class Typed(NamedTuple):
    """A command that was run."""

    before: str
    line: str
    output: str
    seconds: float


def record(directory: Path) -> list[Typed]:
    """Run every command in the directory that has not been run there; raises if one fails."""
    kept = directory / "typed.json"
    before_now = {one[1]: Typed(*one) for one in json.loads(kept.read_text())} if kept.exists() else {}
    environment = os.environ | {"COLUMNS": str(WIDTH), "HF_HUB_OFFLINE": "1", "TERM": "dumb"}
    done: list[Typed] = []
    for before, command in COMMANDS:
        line = command.format(image=_image(directory)) if "{" in command else command
        if line in before_now:
            done.append(before_now[line]._replace(before=before))
            continue
        started = time.monotonic()
        program = [sys.executable, "-m", "tcnn", *shlex.split(line)[1:]]
        ran = subprocess.run(
            program,
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise SystemExit(f"{line}: exit code {ran.returncode}\n{ran.stdout}")
        done.append(Typed(before, line, _clean(ran.stdout), time.monotonic() - started))
        kept.write_text(json.dumps(done))
        print(f"$ {line}\n{done[-1].output}", file=sys.stderr)
    return done


def _image(directory: Path) -> str:
    found = sorted((directory / "demo" / "scenes").glob("val*/*/*"))
    return str(found[0].relative_to(directory))


def _clean(output: str) -> str:
    """Without the blanks that pad tables."""
    return "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output).splitlines()).strip("\n")


def as_page(typed: list[Typed]) -> str:
    """The commands and what they printed, as Markdown."""
    parts = []
    for one in typed:
        if one.before:
            parts.append(one.before)
        parts.append(f"```text\n$ {one.line}\n{one.output}\n```")
    names = ", ".join(f"{name} {version}" for name, version in versions("tcnn", "torch", "timm").items())
    return "\n\n".join([*parts, f"Recorded on {hardware('cpu')}, with {names}."])


def as_cast(typed: list[Typed]) -> str:
    """The same in asciinema's format, version 2: a head, then [seconds, "o", text] a line; ten keys a second."""
    lines = [json.dumps({"version": 2, "width": WIDTH, "height": 30, "title": "tcnn: the first ten minutes"})]
    now = 0.0
    for one in typed:
        for key in f"$ {one.line}":
            lines.append(json.dumps([round(now, 2), "o", key]))
            now += 0.1
        now += min(one.seconds, 5.0)  # nobody wants to watch a minute of waiting
        text = f"\r\n{one.output}\r\n".replace("\r\n", "\n").replace("\n", "\r\n")
        lines.append(json.dumps([round(now, 2), "o", text]))
        now += 2.0
    return "\n".join(lines) + "\n"


def main() -> None:
    """Record, and write both files."""
    typed = record(Path(sys.argv[1]))
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    tail = rest.partition(MARKS[1])[2]
    PAGE.write_text(f"{head}{MARKS[0]}\n{as_page(typed)}\n{MARKS[1]}{tail}", encoding="utf-8")
    CAST.write_text(as_cast(typed), encoding="utf-8")


if __name__ == "__main__":
    main()
