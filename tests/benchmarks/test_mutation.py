"""Mutation testing: which faults are put in, which of them are drawn, what a score means, and who notices one;
docs/mutation.md shows what was measured, and coverage is added up by rooms."""

import ast
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mutation_page import PAGE, by_room, covered, equivalents, read, scores

if TYPE_CHECKING:  # loaded for these tests alone: it takes a second
    from mutants import Mutant

Found = list["Mutant"]

SOURCE = '''"""Twice what is given."""

from typing import cast

LIMIT = 3


class Doubling:
    """A docstring."""

    @property
    def factor(self) -> int:
        return 1 + 1

    def double(self, value: object, most: int = LIMIT) -> int:
        if value is None or len([1, 2]) > 5:
            raise ValueError("expected a number, found None")
        found = (
            cast(int, value)
            * self.factor
        )
        return min(found, most)
'''


@pytest.fixture
def mutmut() -> None:
    pytest.importorskip("mutmut", reason="the development tools are older than this checkout")


@pytest.fixture
def found(mutmut: None, tmp_path: Path) -> Found:
    from mutants import mutants

    (tmp_path / "double.py").write_text(SOURCE)
    return mutants(tmp_path, "double.py")


def test_what_functions_do_is_mutated_and_nothing_else(found: Found) -> None:
    changes = {(mutant.before, mutant.after) for mutant in found}
    assert {("1 + 1", "1 - 1"), ("is", "is not"), ("5", "6"), ("min(found, most)", "min(found, )")} <= changes
    assert ("cast(int, value)", "cast(int, None)") in changes
    untouched = ('"A docstring."', '"expected a number, found None"', "3", "[1, 2]", "cast(None, value)")
    assert not [change for change in changes if change[0] in untouched or change[1] in untouched]


def test_a_mutant_is_the_file_with_one_change_and_says_where(found: Found) -> None:
    mutant = next(mutant for mutant in found if mutant.operator == "swap_op" and "* self.factor" in mutant.before)
    assert mutant.function == "Doubling.double"
    assert mutant.lines == (18, 21)
    assert ast.dump(ast.parse(mutant.source())) == ast.dump(ast.parse(SOURCE.replace("* self", "/ self")))
    head = next(mutant for mutant in found if mutant.before == "is")
    assert head.lines == (16, 16), "of the whole `if` the head alone"


def test_the_sample_is_drawn_by_its_seed_and_every_mutant_in_it_is_a_program(found: Found) -> None:
    from mutants import sample

    chosen = sample(found, 8, 1)
    assert chosen == sample(found, 8, 1) != sample(found, 8, 2)
    assert len(chosen) == 8
    assert chosen == [mutant for mutant in found if mutant in chosen], "in the order of the source"
    everything = sample(found, None, 1)
    assert 8 < len(everything) <= len(found)
    for mutant in everything:
        compile(mutant.source(), "double.py", "exec")


@pytest.mark.usefixtures("mutmut")
def test_the_interval_is_wilsons() -> None:
    """Newcombe 1998, table I: 81 of 263 and 0 of 20."""
    from mutants import wilson

    assert wilson(81, 263, 10**6) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20, 10**6) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(18, 20, 20) == (0.9, 0.9), "nothing is unknown where all were tried"
    assert wilson(0, 0, 0) == (0.0, 1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("mutmut")
def test_a_mutant_lives_until_a_test_notices_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mutants import mutants
    from trials import QUICK, Trials

    root = tmp_path / "root"
    (root / "tests").mkdir(parents=True)
    (root / "tests/doubling.py").write_text("def double(value):\n    return value + value\n")
    (root / "tests/test_zero.py").write_text(
        "import doubling\n\ndef test_zero():\n    assert doubling.double(0) == 0\n"
    )
    (root / "tests/test_one.py").write_text("import doubling\n\ndef test_one():\n    assert doubling.double(1) == 2\n")
    subprocess.run("git init -q && git add .", cwd=root, shell=True, check=True)
    for name in ("PYTHONPATH", "OMP_NUM_THREADS", "HYPOTHESIS_STORAGE_DIRECTORY"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # to be as before when the test is over
    trials = Trials(root, tmp_path)
    coverage = trials.cover(["tests/doubling.py"], ["tests/test_zero.py"], QUICK)
    (mutant,) = mutants(root, "tests/doubling.py")
    assert coverage.touching(mutant) == {"tests/test_zero.py::test_zero"}
    assert trials.kill(mutant, ["tests/test_zero.py"], None, 60) is None
    everything = ["tests/test_zero.py", "tests/test_one.py"]
    assert trials.kill(mutant, everything, ["tests/test_one.py::test_one"], 60) == "tests/test_one.py::test_one"
    assert (tmp_path / "tests/doubling.py").read_bytes() == (root / "tests/doubling.py").read_bytes()


def test_the_page_shows_what_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    listed = read("mutation_equivalent.json")
    assert f"<!-- mutation -->\n{scores(read('mutation.json')['rooms'], listed)}\n" in page
    assert f"<!-- equivalent -->\n{equivalents(listed)}\n" in page


def test_lines_and_branches_are_added_up_by_rooms() -> None:
    def file(*counts: int) -> dict[str, dict[str, int]]:
        names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
        return {"summary": dict(zip(names, counts, strict=True))}

    rooms = by_room({
        "tcnn/errors.py": file(9, 10, 0, 0), "tcnn/layers/base.py": file(1, 10, 1, 4),
        "tcnn/layers/terms/scopes.py": file(20, 20, 4, 4), "tcnn_jobs/retry.py": file(5, 5, 0, 0),
    })  # fmt: skip
    assert covered(rooms).splitlines()[2:] == [
        "| `tcnn` | 75.0% of 40 | 62.5% of 8 |",
        "| `tcnn/layers` | 70.0% of 30 | 62.5% of 8 |",
        "| `tcnn_jobs` | 100.0% of 5 | none |",
    ]
