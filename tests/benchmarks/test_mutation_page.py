"""docs/mutation.md shows what was measured; coverage is added up by rooms."""

from mutation_page import PAGE, by_room, covered, equivalents, read, scores


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
