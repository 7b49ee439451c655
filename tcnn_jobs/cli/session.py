"""Options that all of `tcnn jobs` share: server, key, and output format."""

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tcnn_jobs.client.client import Client

DEFAULT = "http://127.0.0.1:8000"

Server = Annotated[
    str | None, typer.Option("--server", help=f"The server; default TCNN_SERVER or {DEFAULT}.", metavar="URL")
]
Key = Annotated[str | None, typer.Option("--key", help="API key; default TCNN_API_KEY.", metavar="KEY")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JobId = Annotated[str, typer.Argument(help="A job's id.", metavar="JOB")]


def connect(server: str | None, key: str | None) -> "Client":
    """A client of the server that was named."""
    from tcnn_jobs.client.client import Client

    url = server or os.environ.get("TCNN_SERVER") or DEFAULT
    return Client(url, key or os.environ.get("TCNN_API_KEY"), patience=60.0)


def print_json(value: Any) -> None:
    """One JSON object on stdout and nothing else."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))
