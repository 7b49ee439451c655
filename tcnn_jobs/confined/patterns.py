"""Matching of a client's regular expression, in a process with a time limit.

Backtracking can take a short expression longer than the universe is old: `(.+)+!` doubles its time with every character
of a name. Meanwhile `re` gives no other thread of its process a turn, so that a server that matched it would answer
nobody. What to match is Python's `re` nevertheless, as the job does later.

`matches` asks; `search` answers, in the process.
"""

import json
import signal
from collections.abc import Sequence
from types import FrameType
from typing import Any

from tcnn.errors import RequestError
from tcnn_jobs.confined.process import ask

SECONDS = 2.0
"""CPU time of matching; thousands of names take a usual expression milliseconds."""
PATIENCE = 30
"""Seconds for the process altogether, on a machine that is busy with other things."""
MEMORY = 1 << 30
"""Bytes that it may take."""


async def matches(pattern: str, names: Sequence[str]) -> bool | None:
    """Whether a valid regular expression matches the whole of one of the names; None if that takes too long to tell.

    Call it from the thread that lives longest; raises `EnvironmentFailure` when the process could not be started.
    """
    plain = pattern.replace("\\.", ".").split("|")
    if set(plain) <= set(names):  # names themselves, one or several, need no process
        return True
    try:
        said = await ask(__name__, "search", pattern, json.dumps(names), memory=MEMORY, seconds=PATIENCE)
    except RequestError:  # it had to be killed
        return None
    found: bool | None = said["matches"]
    return found


def search(pattern: str, names: str) -> dict[str, Any]:
    """The answer as JSON has it. `re` looks for signals now and then, in the main thread of a process."""
    import re

    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        expression = re.compile(pattern)
        return {"matches": any(expression.fullmatch(name) for name in json.loads(names))}
    except (TimeoutError, RecursionError):
        return {"matches": None}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError
