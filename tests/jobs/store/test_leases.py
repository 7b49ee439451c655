"""Leases: one process at a time has one; who is killed is followed by another when it is over, and not before."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from deeds import Child
from sampled import ON_SQLITE
from sqlalchemy import text

from tcnn_jobs.store import Store
from tcnn_jobs.store.fleet import HOUSE


def _shift(store: Store, seconds: float) -> None:
    """The database's clock goes back by so much: what it has given lies as much further in the future."""
    with store.writing() as connection:
        connection.execute(text("UPDATE leases SET ends_at = ends_at + :by"), {"by": seconds})


def test_one_at_a_time_has_it_and_renews_it(store: Store) -> None:
    assert store.hold(HOUSE, "w1", 10).mine
    other = store.hold(HOUSE, "w2", 10)
    assert not other.mine and 8 < other.left <= 10
    _shift(store, -5)
    assert store.hold(HOUSE, "w2", 10).left < 6
    assert store.hold(HOUSE, "w1", 10).mine
    assert store.hold(HOUSE, "w2", 10).left > 8
    assert store.hold("another", "w2", 10).mine


@ON_SQLITE
def test_who_leaves_is_followed_at_once(store: Store) -> None:
    assert store.hold(HOUSE, "w1", 60).mine
    store.give_up("w2")
    assert not store.hold(HOUSE, "w2", 60).mine
    store.give_up("w1")
    assert store.hold(HOUSE, "w2", 60).mine
    assert not store.hold(HOUSE, "w1", 60).mine


def test_who_is_killed_is_followed_when_its_lease_is_over(store: Store, url: str) -> None:
    child = Child("keep", url, "w2", 600.0)
    assert child.hear() == "True"
    child.kill()
    assert not store.hold(HOUSE, "w1", 60).mine
    _shift(store, -300)
    assert not store.hold(HOUSE, "w1", 60).mine
    _shift(store, -300)
    assert store.hold(HOUSE, "w1", 60).mine


@ON_SQLITE
def test_a_clock_that_is_set_back_does_not_keep_it_for_the_dead(store: Store) -> None:
    assert store.hold(HOUSE, "dead", 60).mine
    _shift(store, 3600)
    assert store.hold(HOUSE, "w1", 60).mine


@pytest.mark.parametrize("before", ["free", "over"])
def test_of_many_who_ask_at_once_one_gets_it(store: Store, url: str, before: str) -> None:
    if before == "over":
        store.hold(HOUSE, "dead", 60)
        _shift(store, -61)

    def ask(name: str) -> bool:
        own = Store(url)
        try:
            return own.hold(HOUSE, name, 60).mine
        finally:
            own.close()

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(ask, [f"w{number}" for number in range(6)])) == [False] * 5 + [True]
