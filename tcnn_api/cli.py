"""`tcnn serve`: the HTTP service, with a worker of its own unless told otherwise."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    "tcnn serve",
    "tcnn serve --port 8080 --slots 2 --log-format console",
    "tcnn serve --no-worker --database-url postgresql://tcnn@db/tcnn",
)
"""What the help of `tcnn serve` ends with."""


def command(
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on; default: 127.0.0.1. Other addresses need API keys.", metavar="ADDRESS"
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port to listen on, 0 for any free one; default: 8000.", metavar="N", min=0, max=65535),
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="Directory for jobs and uploads; default: TCNN_HOME or ~/.tcnn.", metavar="DIR")
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(help="The queue: postgresql://…; default: a SQLite file in --home.", metavar="URL")
    ] = None,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Also run a worker; --no-worker if others run the jobs.")
    ] = True,
    slots: Annotated[
        int | None,
        typer.Option(help="Concurrent jobs; default: one per GPU, or one without a GPU.", metavar="N", min=1),
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="Log lines: json, console, or auto.", metavar="FORMAT")] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error; default: info.", metavar="LEVEL")
    ] = None,
) -> None:
    """Serve the HTTP API. Every setting has an environment variable, TCNN_…. SIGTERM returns the jobs to the queue."""
    from tcnn_api.serve import serve
    from tcnn_api.settings import load

    given = {
        "host": host, "port": port, "home": home, "database_url": database_url, "slots": slots,
        "log_format": log_format, "log_level": log_level,
    }  # fmt: skip
    serve(load(**given), worker=worker)
