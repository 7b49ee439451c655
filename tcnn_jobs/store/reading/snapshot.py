"""A value that takes long to read from the database, and is believed for a multiple of that time."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar, cast

OLDEST, SHARE = 1.0, 20.0
"""Lifetime of a value, whichever is more: seconds, and multiples of the time that it took to read."""
LONGEST = 20.0
"""Seconds for which a reader is waited for."""
T = TypeVar("T")


class Snapshot(Generic[T]):
    """Keeps the last value. One thread at a time reads a new one; meanwhile the others get the old one, unless that is
    older than twice its lifetime: then they wait for the new one.

    So at most a twentieth of a processor is spent on it, however often it is asked for.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._value: T | None = None
        self._read_from = self._good_until = self._served_until = float("-inf")

    def get(self, read: Callable[[], T], lasts: Callable[[T], bool] = lambda value: True) -> T:
        """The value, from `read` if it is too old, or if the last one does not last."""
        asked = time.monotonic()
        if asked < self._good_until:
            return self._last
        old = asked < self._served_until
        if not self._turn.acquire(timeout=0.0 if old else LONGEST):
            return self._last if old else read()
        try:
            if self._read_from >= asked or time.monotonic() < self._good_until:  # by the one that was waited for
                return self._last
            return self._new(read, lasts)
        finally:
            self._turn.release()

    def _new(self, read: Callable[[], T], lasts: Callable[[T], bool]) -> T:
        began = time.monotonic()
        value = read()
        ended = time.monotonic()
        life = max(OLDEST, SHARE * (ended - began)) if lasts(value) else 0.0
        self._value, self._read_from = value, began
        self._good_until, self._served_until = ended + life, ended + 2 * life
        return value

    @property
    def _last(self) -> T:
        return cast(T, self._value)
