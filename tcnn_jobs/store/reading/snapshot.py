"""A value that takes long to read from the database, and is believed for a multiple of that time."""

import time
from collections.abc import Callable
from typing import Generic, TypeVar

OLDEST, SHARE = 1.0, 20.0
"""Lifetime of a value, whichever is more: seconds, and multiples of the time that it took to read."""
T = TypeVar("T")


class Snapshot(Generic[T]):
    """Keeps the last value. One thread at a time reads a new one; meanwhile the others get the old one.

    So at most a twentieth of a processor is spent on it, however often it is asked for.
    """

    def __init__(self, first: T) -> None:
        self._value = first
        self._good_until = 0.0

    def get(self, read: Callable[[], T], lasts: Callable[[T], bool] = lambda value: True) -> T:
        """The value, from `read` if it is too old, or if the last one does not last."""
        began = time.monotonic()
        if began < self._good_until:
            return self._value
        self._good_until = began + 60.0
        try:
            self._value = value = read()
        except BaseException:
            self._good_until = began
            raise
        ended = time.monotonic()
        self._good_until = ended + max(OLDEST, SHARE * (ended - began)) if lasts(value) else ended
        return value
