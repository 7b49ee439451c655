"""`GET /metrics`: Prometheus metrics of this server, and of the queue.

The queue's are read from the database at every scrape, so that all servers report the same of it.
"""

from collections.abc import Iterable

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector
from starlette.responses import Response

from tcnn_api.deps import AUTHENTICATED, ServiceDep
from tcnn_api.description import examples
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import TERMINAL, Kind
from tcnn_jobs.model.operation import Statistics
from tcnn_jobs.store import Store

router = APIRouter(tags=["operation"])


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    dependencies=AUTHENTICATED,
    responses={200: examples.answer('tcnn_jobs_queued{kind="finetune"} 3.0\n', "Metrics.", "text/plain")},
)
def metrics(parts: ServiceDep) -> Response:
    """Prometheus metrics of the queue, the workers and this server. Requires a key if the server has API keys."""
    return Response(generate_latest(parts.registry), media_type=CONTENT_TYPE_LATEST)


class QueueCollector(Collector):
    """Asks the store once for every scrape. Of a database that accepts no change there is only `tcnn_database_up` 0."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance, so that registering asks no database."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Gauges of the queue and of the workers, and a summary of what has ended."""
        up = GaugeMetricFamily("tcnn_database_up", "1 if the database answers and accepts changes.")
        try:
            self.store.check_lately()
            statistics = self.store.statistics()
        except StoreUnavailable:
            up.add_metric((), 0)
            return [up]
        up.add_metric((), 1)
        return [up, *_queue(statistics), *_workers(statistics)]


def _queue(statistics: Statistics) -> list[Metric]:
    queued = GaugeMetricFamily("tcnn_jobs_queued", "Jobs that wait.", labels=("kind",))
    blocked = GaugeMetricFamily("tcnn_jobs_blocked", "Jobs that wait for other jobs.", labels=("kind",))
    held = GaugeMetricFamily("tcnn_jobs_held", "Those of tcnn_jobs_queued that a quota holds back.", labels=("kind",))
    running = GaugeMetricFamily("tcnn_jobs_running", "Jobs that run.", labels=("kind",))
    for kind in Kind:
        queued.add_metric((kind,), statistics.queued.get(kind, 0))
        blocked.add_metric((kind,), statistics.blocked.get(kind, 0))
        held.add_metric((kind,), statistics.held.get(kind, 0))
        running.add_metric((kind,), statistics.running.get(kind, 0))
    oldest = GaugeMetricFamily(
        "tcnn_queue_oldest_seconds", "Age of the oldest job that could start.", statistics.oldest_queued_seconds
    )
    ended = SummaryMetricFamily(
        "tcnn_job_seconds", "How long jobs ran, and how many ended so.", labels=("kind", "outcome")
    )
    for kind in Kind:
        for outcome in sorted(TERMINAL):  # zeros, too: of a counter that begins at one nobody sees the first increase
            jobs, seconds = statistics.finished.get(kind, {}).get(outcome, (0, 0.0))
            ended.add_metric((kind, outcome), jobs, seconds)
    return [queued, blocked, held, running, oldest, ended]


def _workers(statistics: Statistics) -> list[Metric]:
    age = GaugeMetricFamily(
        "tcnn_worker_heartbeat_age_seconds", "Since a worker was last heard of.", labels=("worker", "host", "version")
    )
    slots = GaugeMetricFamily("tcnn_worker_slots", "Slots of a worker that is present.", labels=("worker",))
    busy = GaugeMetricFamily("tcnn_slots_busy", "Slots that its running jobs take.", labels=("worker",))
    waiting = GaugeMetricFamily("tcnn_jobs_at_worker_waiting", "Its jobs that wait for its slots.", labels=("worker",))
    labels = ("worker", "gpu", "name")
    used = GaugeMetricFamily("tcnn_gpu_memory_used_bytes", "Memory in use, by anybody.", labels=labels)
    total = GaugeMetricFamily("tcnn_gpu_memory_total_bytes", "Memory of a GPU.", labels=labels)
    for worker in statistics.workers:
        age.add_metric((worker.name, worker.host, worker.version), worker.heartbeat_at or 0.0)
        for gpu in worker.gpus:
            place = (worker.name, str(gpu.get("index", "")), str(gpu.get("name", "")))
            if "memory_total" in gpu:
                used.add_metric(place, gpu["memory_used"])
                total.add_metric(place, gpu["memory_total"])
    for name, (all_of_them, taken, held) in statistics.slots.items():
        slots.add_metric((name,), all_of_them)
        busy.add_metric((name,), taken)
        waiting.add_metric((name,), held)
    return [age, slots, busy, waiting, used, total]
