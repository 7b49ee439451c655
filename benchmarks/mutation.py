"""Do the tests notice a fault? Mutation testing (DeMillo, Lipton & Sayward 1978) of the rooms where one would be worst.

python benchmarks/mutation.py --json benchmarks/results/mutation.json      a sample of every room
python benchmarks/mutation.py --modules terms --all                        every mutant of one
python benchmarks/mutation.py --slow --json FILE                           what slow tests say to those that survived

A fault is put into one file at a time (`mutants.py`), and that room's tests run until one fails (`trials.py`), those
first that run the mutated statement. A mutant survives if all pass. `results/mutation_equivalent.json` names those that
no test could kill, because the program still does the same, each with the reason.
"""

import argparse
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from mutants import Mutant, mutants, sample, wilson
from mutation_rooms import ROOMS, ROOT, Room
from reporting import processor, versions
from trials import EVERYTHING, QUICK, SLOW, Coverage, Trials

CASES = 3
"""Of one test's parameters."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", nargs="+", choices=ROOMS, default=list(ROOMS), help="which rooms")
    parser.add_argument("--sample", type=int, default=60, help="mutants of each room")
    parser.add_argument("--all", action="store_true", help="all mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--quick", action="store_true", help="few cases of each test, and no other tests")
    parser.add_argument("--slow", action="store_true", help="survivors meet the slow tests, too, which do not count")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout, to compare with")
    parser.add_argument("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    os.nice(10)
    before = (
        json.loads(options.json.read_text(encoding="utf-8"))["rooms"] if options.json and options.json.exists() else {}
    )
    for name in options.modules:
        known = {key(row): row["killer"] for row in before.get(name, {}).get("tried", []) if row["killer"]}
        with tempfile.TemporaryDirectory(prefix="tcnn-mutation-") as folder:
            trials = Trials(options.root.resolve(), Path(folder))
            size = None if options.all else options.sample
            thorough = not options.quick
            for found in measure(trials, name, size, options.seed, known, thorough=thorough, slow=options.slow):
                if options.json:
                    write(options.json, name, found)


def measure(
    trials: Trials,
    name: str,
    size: int | None,
    seed: int,
    known: dict[tuple[object, ...], str],
    *,
    thorough: bool,
    slow: bool,
) -> Iterator[dict[str, Any]]:
    """Try a sample of a room's mutants, but for those `known` to be killed; yields what is written, after each anew."""
    room = ROOMS[name]
    files = sorted(
        str(path.relative_to(trials.folder))
        for given in room.files
        for path in ([trials.folder / given] if given.endswith(".py") else (trials.folder / given).glob("*.py"))
    )
    population = [mutant for file in files for mutant in mutants(trials.folder, file)]
    numbers, seen = {}, Counter[tuple[str, ...]]()
    for mutant in population:
        seen[same := (mutant.file, mutant.function, mutant.before, mutant.after)] += 1
        numbers[id(mutant)] = seen[same]
    chosen = sample(population, size, seed)
    fates = Fates(trials, room, files)
    print(f"{name}: {len(chosen)} of {len(population)} mutants, {len(fates.coverage.seconds)} tests, "
          f"{sum(fates.coverage.seconds.values()):.0f} s", flush=True)  # fmt: skip
    rows = []
    for mutant in chosen:
        row: dict[str, Any] = {
            "file": mutant.file, "line": mutant.lines[0], "function": mutant.function, "operator": mutant.operator,
            "before": mutant.before, "after": mutant.after, "number": numbers[id(mutant)],
        }  # fmt: skip
        row["killer"] = known.get(key(row)) or fates.fate(mutant, thorough)
        if slow and row["killer"] is None:
            row["slow"] = fates.among_slow(mutant)
        rows.append(row)
        print(*(row[part] for part in ("file", "line", "before")), "→", row["after"], "|", row["killer"] or "SURVIVED",
              f"but for {row['slow']}" if row.get("slow") else "", flush=True)  # fmt: skip
        yield summary(rows, len(population)) | {
            "files": room.files, "tests": [*room.tests, *room.others], "seed": seed, "processor": processor(),
            "versions": versions("torch", "mutmut", "pytest"), "tried": rows,
        }  # fmt: skip


def key(row: dict[str, Any]) -> tuple[object, ...]:
    """By which a mutant is known again: `number` counts those that look alike in one function."""
    return tuple(row[part] for part in ("file", "function", "before", "after", "number"))


class Fates:
    """What kills the mutants of a room: of the tests that run the mutated statement the cheapest first."""

    def __init__(self, trials: Trials, room: Room, files: list[str]) -> None:
        self._trials, self._room, self._files = trials, room, files
        self.coverage = trials.cover(files, list(room.tests), QUICK)

    @cached_property
    def _others(self) -> Coverage:
        return self._trials.cover(self._files, list(self._room.others), EVERYTHING)

    def fate(self, mutant: Mutant, thorough: bool) -> str | None:
        """A test's name, or how else it ended; None if it lives.

        Of each test's cases few are tried at first. If `thorough`, then all of the room's tests, since what they share,
        fixtures and what is computed once for a process, runs in the first alone; and what its other tests have.
        """
        cases = Counter[str]()
        near = []
        for name in self._touching(self.coverage, mutant):
            cases[function := name.partition("[")[0]] += 1
            if cases[function] <= CASES:
                near.append(name)
        killer = self._run(self.coverage, mutant, near, QUICK)
        if killer is None and thorough and near:
            seconds = sum(self.coverage.seconds.values())
            killer = self._trials.kill(mutant, [*QUICK, *self._room.tests], None, 60 + 5 * seconds)
        if killer is None and thorough and self._room.others:
            killer = self._run(self._others, mutant, self._perhaps(self._others, mutant), EVERYTHING)
        return killer

    @cached_property
    def _slow(self) -> Coverage:
        files = dict.fromkeys((*self._room.tests, *self._room.others, *self._room.slow))
        return self._trials.cover(self._files, list(files), SLOW)

    def among_slow(self, mutant: Mutant) -> str | None:
        """The slow test that kills a mutant which lives through the others; None if it lives through all."""
        return self._run(self._slow, mutant, self._perhaps(self._slow, mutant), SLOW)

    @staticmethod
    def _touching(coverage: Coverage, mutant: Mutant) -> list[str]:
        return sorted(coverage.touching(mutant), key=coverage.seconds.__getitem__)

    @staticmethod
    def _perhaps(coverage: Coverage, mutant: Mutant) -> list[str]:
        """With those that may run it in another process."""
        return sorted({*coverage.touching(mutant), *coverage.elsewhere()}, key=coverage.seconds.__getitem__)

    def _run(self, coverage: Coverage, mutant: Mutant, names: list[str], which: tuple[str, ...]) -> str | None:
        limit = 20 + 5 * sum(coverage.seconds[name] for name in names)
        return self._trials.kill(mutant, [*which, *_files(names)], names, limit) if names else None


def _files(tests: list[str]) -> list[str]:
    return list(dict.fromkeys(name.partition("::")[0] for name in tests))


def summary(rows: list[dict[str, Any]], population: int) -> dict[str, Any]:
    """Counts, and the score with its interval."""
    killed = sum(row["killer"] is not None for row in rows)
    return {
        "mutants": population, "sample": len(rows), "killed": killed, "score": round(killed / len(rows), 4),
        "interval": [round(end, 4) for end in wilson(killed, len(rows), population)],
    }  # fmt: skip


def write(path: Path, name: str, found: dict[str, Any]) -> None:
    """Put one room's results into the file, in the table's order, a mutant a line."""
    rooms = json.loads(path.read_text(encoding="utf-8"))["rooms"] if path.exists() else {}
    rooms[name] = found
    ordered = {room: rooms[room] for room in ROOMS if room in rooms}
    text = json.dumps({"rooms": ordered}, indent=1, ensure_ascii=False)
    path.write_text(re.sub(r"\n {5,}|\n {4}(?=\})", " ", text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
