"""Workers of one queue are alike: a job may begin with one and end with another, to the last bit."""

from functools import cache
from importlib.metadata import version

from tcnn.errors import EnvironmentFailure
from tcnn.version import __version__
from tcnn_jobs.store import Store


@cache  # every heartbeat says it, and it is read from a file
def own() -> str:
    """What has to be the same everywhere; which CPU or GPU torch was built for need not."""
    return f"tcnn {__version__}, torch {version('torch').partition('+')[0]}"


def check_fellows(store: Store) -> None:
    """Raise `EnvironmentFailure` if workers with other versions were heard of lately."""
    others = sorted(store.versions() - {own()})
    if others:
        raise EnvironmentFailure(
            f"this worker has {own()}, but workers with {' and '.join(others)} are at this queue, and a job may go "
            "from one to another; install the same here, or stop those and wait for their TCNN_LEASE"
        )
