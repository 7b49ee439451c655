"""What was fetched: within its bounds, whole or not there, and never taken from under anybody."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tcnn_jobs.artifacts.cache import YOUNG, Cache, Held


def put(size: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(bytes(size)) and None


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path, limit=100)


def aged(held: Held) -> Held:
    """Used for the last time long ago, those that were aged first longest."""
    aged.count += 1  # type: ignore[attr-defined]
    at = held.path.stat().st_mtime - 2 * YOUNG + aged.count  # type: ignore[attr-defined]
    os.utime(held.path, (at, at))
    return held


aged.count = 0  # type: ignore[attr-defined]


def names(cache: Cache) -> list[str]:
    return sorted(path.name for path in cache.folder.iterdir())


def test_the_least_recently_used_goes_first_and_what_is_used_stays(cache: Cache) -> None:
    used = aged(cache.hold("a", 40, put(40)))
    for name in ("b", "c"):
        aged(cache.hold(name, 30, put(30))).release()
    cache.hold("d", 20, put(20)).release()
    assert names(cache) == ["a", "c", "d"], "b was the oldest that nobody held"
    used.release()
    with capture_logs() as told:
        cache.hold("e", 30, put(30)).release()
    assert names(cache) == ["c", "d", "e"]
    assert told == [{"event": "made room", "entry": "a", "bytes": 40, "log_level": "info"}]


def test_what_was_asked_for_just_now_stays(cache: Cache) -> None:
    for name in ("a", "b", "c"):
        cache.hold(name, 60, put(60)).release()
    assert names(cache) == ["a", "b", "c"]


def test_a_fetch_that_fails_leaves_nothing(cache: Cache) -> None:
    def broken(path: Path) -> None:
        path.mkdir()
        (path / "half").write_bytes(b"x")
        raise ValueError("the store is away")

    with pytest.raises(ValueError, match="away"):
        cache.hold("a", 1, broken)
    assert names(cache) == []


def test_nothing_is_fetched_twice_and_a_dropped_entry_is_fetched_again(cache: Cache) -> None:
    fetched = []

    def fetch(path: Path) -> None:
        fetched.append(path)
        path.write_bytes(b"x")

    for _ in range(3):
        cache.hold("a", 1, fetch).release()
    assert len(fetched) == 1
    cache.drop("a")
    assert cache.hold("a", 1, fetch).path.read_bytes() == b"x"
    assert len(fetched) == 2


def test_half_fetched_things_are_swept(cache: Cache) -> None:
    (cache.folder / ".0123.tmp").mkdir()
    cache.sweep(older=3600)
    assert names(cache) == [".0123.tmp"]
    cache.sweep(older=-1)
    assert names(cache) == []
