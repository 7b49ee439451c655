"""The queue as a model of discrete events; part of `simulation.py`.

A worker is `tcnn_jobs/worker/worker.py` without its processes: every tick it looks whether a job has ended, tells the
store, beats, reaps and claims when that is due, one call after the other. Beside it its chores look for webhooks. The
database works on `Costs.at_once` calls at a time, first come, first served.
"""

import random
import statistics
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from heapq import heapreplace
from typing import Any, NamedTuple

import simpy

from benchmarks.jobqueue.costs import Costs
from tcnn_jobs.housekeeping import coordination
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.worker.worker import TICK

POLL, LEASE = QueueSettings().poll, QueueSettings().lease
SPREAD = 0.6
"""Of the lengths of jobs: sigma of their logarithm."""


class Policy(NamedTuple):
    """When a worker asks: at a fixed pace, as it did before, or at the fleet's (`coordination`)."""

    name: str
    fleet: bool

    def heartbeat(self, workers: int, busy: bool) -> float:
        """Seconds until the next heartbeat."""
        if self.fleet:
            return coordination.spread(coordination.heartbeat(POLL, workers, LEASE, busy=busy))
        return POLL if busy else LEASE / 6

    def shared(self, workers: int) -> float:
        """Seconds until the next look for what any worker may do."""
        return coordination.spread(coordination.shared(POLL, workers)) if self.fleet else POLL

    def claim(self) -> float:
        """Seconds until a free slot asks again."""
        return coordination.spread(POLL) if self.fleet else POLL

    def rest(self, busy: bool) -> float:
        """Seconds between two looks of a worker."""
        return TICK if busy or self.fleet else POLL


BEFORE, NOW = Policy("fixed pace", False), Policy("pace of the fleet", True)


class Fleet(NamedTuple):
    """Workers, each with so many slots, that start at random within `starts` seconds."""

    workers: int
    slots: int = 1
    starts: float = 60.0


class Load(NamedTuple):
    """Jobs of a mean length in seconds, all of them queued, or submitted at a `rate` per second once all workers are
    there."""

    jobs: int
    length: float
    rate: float | None = None


@dataclass
class Queue:
    """What is in the database, and what it has done."""

    env: simpy.Environment
    costs: Costs
    lot: random.Random
    jobs: int
    waiting: deque[float] = field(default_factory=deque)
    """Since when each job may be claimed."""
    waits: list[float] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._free = [0.0] * self.costs.at_once

    def ask(self, call: str) -> Generator[simpy.Event]:
        """One call, from being sent to being answered. Whoever asks first is served first by the first to be free."""
        cost = self.costs.calls[call]
        takes = cost.draw(self.lot)
        done = max(self.env.now, self._free[0]) + takes
        heapreplace(self._free, done)
        self.spent[call] = self.spent.get(call, 0.0) + takes
        yield self.env.timeout(done + cost.own - self.env.now)

    @property
    def over(self) -> bool:
        """Whether every job has been claimed."""
        return len(self.waits) >= self.jobs


def worker(queue: Queue, policy: Policy, fleet: Fleet, length: Any) -> Generator[simpy.Event]:
    """One worker, until there is nothing left to claim."""
    env, lot = queue.env, queue.lot
    yield env.timeout(lot.random() * fleet.starts)
    free, ends = [env.now] * fleet.slots, []
    beat = reap = claim = env.now
    env.process(chores(queue, policy, fleet))
    while not queue.over:
        ended = [end for end in ends if end <= env.now]
        if ended:
            ends, claim = [end for end in ends if end > env.now], env.now
            free += ended
            yield from queue.ask("heartbeat")
            for _ in ended:
                yield from queue.ask("finish")
        if env.now >= beat:
            beat = env.now + policy.heartbeat(fleet.workers, bool(ends))
            yield from queue.ask("heartbeat")
        if env.now >= reap:
            reap = env.now + policy.shared(fleet.workers)
            if policy.fleet:
                yield from queue.ask("count")
            yield from queue.ask("reap")
        if free and env.now >= claim:
            claim = env.now + policy.claim()
            before = len(ends)
            while free:
                if not queue.waiting:
                    yield from queue.ask("poll")
                    break
                since = max(queue.waiting.popleft(), free.pop(0))
                yield from queue.ask("claim")
                queue.waits.append(env.now - since)
                ends.append(env.now + length())
            for _ in ends[before:]:
                yield from queue.ask("look up")
            beat = env.now if len(ends) > before else beat
        yield env.timeout(_rest(env.now, policy, ends, min(beat, reap, claim) if free else min(beat, reap)))


def _rest(now: float, policy: Policy, ends: list[float], due: float) -> float:
    """Whole ticks until something is due, so that ticks in which nothing is need not be simulated."""
    tick = policy.rest(bool(ends))
    return tick * max(1.0, -((now - min(due, *ends, now + 60)) // tick))


def chores(queue: Queue, policy: Policy, fleet: Fleet) -> Generator[simpy.Event]:
    """A worker's other thread."""
    while not queue.over:
        yield queue.env.timeout(policy.shared(fleet.workers))
        yield from queue.ask("webhooks")


def submissions(queue: Queue, fleet: Fleet, load: Load) -> Generator[simpy.Event]:
    """Jobs that come one by one to a fleet that is there."""
    yield queue.env.timeout(fleet.starts + 5)
    for _ in range(load.jobs):
        yield queue.env.timeout(queue.lot.expovariate(load.rate or 1.0))
        queue.env.process(_submit(queue))


def _submit(queue: Queue) -> Generator[simpy.Event]:
    yield from queue.ask("enqueue")
    queue.waiting.append(queue.env.now)


def lengths(lot: random.Random, mean: float) -> Any:
    """Draws lengths of jobs, log-normal about this mean."""
    return lambda: mean * lot.lognormvariate(-(SPREAD**2) / 2, SPREAD)


def simulate(costs: Costs, policy: Policy, fleet: Fleet, load: Load, seed: int, length: Any = None) -> dict[str, Any]:
    """Seconds from free slot to claim, how busy the database was, in parts of its capacity, and with what."""
    random.seed(seed)  # tcnn_jobs.housekeeping.coordination draws from the common one
    lot = random.Random(seed)
    env = simpy.Environment()
    queue = Queue(env, costs, lot, load.jobs)
    if load.rate is None:
        queue.waiting.extend([0.0] * load.jobs)
    else:
        env.process(submissions(queue, fleet, load))
    for _ in range(fleet.workers):
        env.process(worker(queue, policy, fleet, length or lengths(lot, load.length)))
    while not queue.over:
        env.step()
    capacity = costs.at_once * env.now
    cuts = statistics.quantiles(queue.waits, n=100)
    return {
        "p50": round(cuts[49], 3),
        "p99": round(cuts[98], 3),
        "max": round(max(queue.waits), 3),
        "busy": round(sum(queue.spent.values()) / capacity, 3),
        "busy_with": {name: round(spent / capacity, 4) for name, spent in sorted(queue.spent.items())},
    }
