"""`tcnn worker`: take jobs from the queue and run them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tcnn_jobs.settings import QueueSettings

EXAMPLES = (
    "tcnn worker",
    "tcnn worker --slots 2 --burst",
    "tcnn worker --database-url postgresql://tcnn@db/tcnn --home /shared/tcnn",
)
"""What the help of `tcnn worker` ends with."""


def command(
    home: Annotated[
        Path | None, typer.Option(help="Directory for jobs and uploads; default: TCNN_HOME or ~/.tcnn.", metavar="DIR")
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(help="The queue: postgresql://…; default: a SQLite file in --home.", metavar="URL")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(help="Concurrent jobs; default: one per GPU, or one without a GPU.", metavar="N", min=1),
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="Exit when the queue is empty.")] = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run jobs from the queue, which several hosts can share. SIGTERM returns the jobs to the queue and exits."""
    import signal

    from tcnn.processes import die_with_parent
    from tcnn_jobs.settings import QueueSettings, load_settings

    if parent is not None:  # the server that started it: without it, save what there is and leave
        die_with_parent(signal.SIGTERM, parent)
    settings = load_settings(QueueSettings, home=home, database_url=database_url, slots=slots)

    from tcnn_jobs.worker.service import work

    if parent is None:  # else the server has said it
        _tell_of_doubts(settings)
    work(settings, until_empty=burst)


def _tell_of_doubts(settings: "QueueSettings") -> None:
    import structlog

    from tcnn_jobs import logs
    from tcnn_jobs.settings import doubts

    logs.configure(settings.log_format, settings.log_level)
    for doubt in doubts(settings):
        structlog.get_logger("tcnn.worker").warning(doubt)
