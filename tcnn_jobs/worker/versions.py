"""Versions of workers that share a queue: alike, or for the time of an upgrade those of two releases."""

from functools import cache
from importlib.metadata import version

import structlog

from tcnn.errors import EnvironmentFailure
from tcnn.version import __version__
from tcnn_jobs.model.jobs import REQUEST_VERSION
from tcnn_jobs.store import Store

log = structlog.stdlib.get_logger("tcnn.worker")


@cache  # every heartbeat says it, and it is read from a file
def own() -> str:
    """What has to be the same everywhere for a job to go on to the last bit; what torch was built for need not be."""
    return f"tcnn {__version__}, torch {version('torch').partition('+')[0]}"


def check_fellows(store: Store) -> None:
    """Raise `EnvironmentFailure` if workers were heard of lately that are more than one release apart from this one.

    Of others with other versions the log is told: a job may go from one to the other.
    """
    fellows = store.versions()
    apart = sorted(name for name, requests in fellows.items() if abs(requests - REQUEST_VERSION) > 1)
    if apart:
        raise EnvironmentFailure(
            f"this worker has {own()}, but workers with {' and '.join(apart)} are at this queue, more than one release "
            "apart; install the same here, or stop those and wait for their TCNN_LEASE"
        )
    others = sorted(set(fellows) - {own()})
    if others:
        log.warning("workers of other versions are at this queue; bring all of them to one", own=own(), others=others)
