"""Training on a Ray cluster: the job's process is a driver on this host, and takes one slot however wide the job."""

from collections.abc import Sequence

from tcnn.config.placement import Placement
from tcnn_jobs.engines.local import LocalEngine


class RayEngine(LocalEngine):
    """The driver converts, publishes and tells; `launch.on_ray`, which only it loads, places the training.

    Args:
        address: HOST:PORT of a cluster that this host belongs to. grace: as the worker's, in seconds.
    """

    def __init__(self, address: str, grace: float, passed: Sequence[str] = ()) -> None:
        super().__init__(passed=("RAY_AUTH_TOKEN*", *passed))
        self._address, self._grace = address, grace

    def placement(self, num_workers: int) -> Placement:
        """On the cluster, be it one process or many."""
        return Placement(engine="ray", num_workers=num_workers, address=self._address, grace=self._grace)
