"""On which of two databases a test of the store is quick: where one shows what both do, the other one's is slow."""

import pytest


def quick_on(database: str, fixture: str = "url") -> pytest.MarkDecorator:
    """Both databases as parameters of a fixture; all but this one are slow."""
    both = [name if name == database else pytest.param(name, marks=pytest.mark.slow) for name in ("sqlite", "postgres")]
    return pytest.mark.parametrize(fixture, both, indirect=True)


ON_SQLITE = quick_on("sqlite")
"""For rules of the queue: both databases are asked by the same statements."""
ON_POSTGRES = quick_on("postgres")
"""For races: many write at once in PostgreSQL, and one after the other in SQLite."""
