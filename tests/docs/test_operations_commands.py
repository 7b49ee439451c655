"""docs/operations.md shows every command that works on the service's database; test_commands.py runs them."""

import pages

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
