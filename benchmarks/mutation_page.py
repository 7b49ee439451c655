"""Fills the tables of docs/mutation.md: `python benchmarks/mutation_page.py`, with `--coverage FILE` for what
`coverage json` has written (`make coverage`), of which results/coverage.json keeps what each room comes to."""

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from reporting import fill, versions

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/mutation.md"
RESULTS = ROOT / "benchmarks/results"
COUNTED = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coverage", type=Path, help="a JSON file of coverage.py")
    options = parser.parse_args()
    if options.coverage:
        rooms = by_room(json.loads(options.coverage.read_text(encoding="utf-8"))["files"])
        found = {"versions": versions("tcnn", "coverage", "pytest"), "rooms": rooms}
        (RESULTS / "coverage.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    fill(PAGE, "mutation", scores(read("mutation.json")["rooms"], read("mutation_equivalent.json")))
    fill(PAGE, "equivalent", equivalents(read("mutation_equivalent.json")))
    if (RESULTS / "coverage.json").exists():
        fill(PAGE, "coverage", covered(read("coverage.json")["rooms"]))


def read(name: str) -> Any:
    """One file of results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def by_room(files: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Lines and branches, counted over the files of every room and wing."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for file, found in files.items():
        parts = Path(file).parts
        counted = {part: found["summary"][part] for part in COUNTED}
        for room in {parts[0], "/".join(parts[:2]) if len(parts) > 2 else parts[0]}:
            rooms[room].update(counted)
    return {room: dict(rooms[room]) for room in sorted(rooms)}


def scores(rooms: dict[str, Any], listed: list[dict[str, Any]]) -> str:
    """Of `mutation.py`: a row for each room, and all of them together."""
    lines = [
        "| what | mutants | tried | killed | score, 95 % interval | equivalent | without them |",
        "|---|---|---|---|---|---|---|",
    ]
    total, known = Counter[str](), {key(entry) for entry in listed}
    for found in rooms.values():
        counts = {part: found[part] for part in ("mutants", "sample", "killed")}
        counts["equivalent"] = sum(row["killer"] is None and key(row) in known for row in found["tried"])
        total.update(counts)
        low, high = found["interval"]
        cells = (
            ", ".join(f"`{file}`" for file in found["files"]), found["mutants"], found["sample"], found["killed"],
            f"{found['score']:.0%}, {'all tried' if low == high else f'{low:.0%} to {high:.0%}'}",
            counts["equivalent"], f"{found['killed'] / (found['sample'] - counts['equivalent']):.0%}",
        )  # fmt: skip
        lines.append(_row(*cells))
    share, of_others = (total["killed"] / (total["sample"] - without) for without in (0, total["equivalent"]))
    tried = (total[part] for part in ("mutants", "sample", "killed"))
    lines.append(_row("together", *tried, f"{share:.0%}", total["equivalent"], f"{of_others:.0%}"))
    return "\n".join(lines) + "\n"


def key(row: dict[str, Any]) -> tuple[object, ...]:
    """By which a mutant is known again."""
    return tuple(row[part] for part in ("file", "function", "before", "after", "number"))


def equivalents(listed: list[dict[str, Any]]) -> str:
    """The mutants that no test could kill, each with its reason."""
    lines = ["| where | before | after | why nothing can notice |", "|---|---|---|---|"]
    for entry in listed:
        before, after = (f"`{_cell(entry[part])}`" for part in ("before", "after"))
        lines.append(_row(f"`{entry['file']}` {entry['function']}", before, after, entry["why"]))
    return "\n".join(lines) + "\n"


def covered(rooms: dict[str, dict[str, int]]) -> str:
    """Of `coverage.py`: the share of lines and of branches that ran."""
    lines = ["| room | lines | branches |", "|---|---|---|"]
    for room, found in rooms.items():
        shares = (
            f"{found[f'covered_{what}'] / found[whole]:.1%} of {found[whole]:,}" if found[whole] else "none"
            for what, whole in (("lines", "num_statements"), ("branches", "num_branches"))
        )
        lines.append(_row(f"`{room}`", *shares))
    return "\n".join(lines) + "\n"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _cell(code: str) -> str:
    """Short enough for a table, and without what ends a cell."""
    return (code if len(code) <= 90 else f"{code[:87]} …").replace("|", "\\|")


if __name__ == "__main__":
    main()
