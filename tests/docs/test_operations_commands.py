"""Every command of docs/operations.md that works on the service's database is run, in the page's order."""

import re
from pathlib import Path

import pages
import pytest

PAGE = "docs/operations.md"
GROUPS = {"keys": {"create", "list", "revoke"}, "tenants": {"set", "list"}, "audit": {"--tenant", "--key"}}
"""Commands that need a database and nothing else."""


def shown() -> list[list[str]]:
    """What follows `tcnn` in the page's blocks, of these groups."""
    blocks = [block for block in pages.blocks(PAGE) if block.language == "bash"]
    found = [command.arguments for block in blocks for command in pages.commands(block)]
    return [arguments for arguments in found if arguments and arguments[0] in GROUPS]


def test_the_page_shows_each_of_them() -> None:
    assert {tuple(arguments[:2]) for arguments in shown()} == {
        (group, name) for group, names in GROUPS.items() for name in names
    }


def test_they_do_what_they_are_there_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id on the page stands for the last one that was printed."""
    monkeypatch.setenv("TCNN_HOME", str(tmp_path / "home"))
    made = ""
    for arguments in shown():
        code, printed = pages.run([made if re.fullmatch(r"key_\w+", word) else word for word in arguments])
        assert code == 0, (arguments, printed)
        made = next(iter(re.findall(r"\bkey_[0-9a-f]{24}\b", printed)), made)
