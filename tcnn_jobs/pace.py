"""Polling and heartbeat intervals: `poll` while there are few workers, longer the more there are.

Reaping and webhooks are the housekeeper's (`election`), which asks as often however many there are. A heartbeat is each
worker's own: a cancelled job hears of it later in a large fleet, though never later than a sixth of the lease.
Claims keep their pace, since a free slot waits for nobody else's question. `benchmarks/jobqueue/simulation.py`
compares this with asking at a fixed pace.
"""

import random

TOGETHER = 20
"""Workers that ask once a `poll` each; more of them ask as often as these do together."""
EARLIEST, LATEST = 0.5, 0.9
"""Parts of an interval between which the next question is drawn. Workers that were started, or lost their database,
together would else ask together for ever. Below 1, so that with the worker's tick it is still within the interval."""


def shared(poll: float, workers: int) -> float:
    """Seconds between two times that one of so many workers asks, so that they do not ask more the more they are."""
    return poll * max(1.0, workers / TOGETHER)


def heartbeat(poll: float, workers: int, lease: float, *, busy: bool) -> float:
    """Seconds between two heartbeats of one of so many workers: the idle have nothing to tell."""
    longest = lease / 6
    return min(shared(poll, workers), max(poll, longest)) if busy else longest


def answering(workers: int) -> float:
    """The part of so many workers that look at the queue at once when a job is said to be due."""
    return min(1.0, TOGETHER / max(1, workers))


def spread(interval: float) -> float:
    """A length near this interval, and not above it, that is another one every time."""
    return interval * random.uniform(EARLIEST, LATEST)  # noqa: S311 - nobody gains from guessing it
