"""Options that all of `tcnn jobs` share: server, key, and output format."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tcnn.cli.output import console

if TYPE_CHECKING:
    from tcnn_jobs.client.client import Client

DEFAULT = "http://127.0.0.1:8000"

Server = Annotated[
    str | None, typer.Option("--server", help=f"The server; default TCNN_SERVER or {DEFAULT}.", metavar="URL")
]
Key = Annotated[str | None, typer.Option("--key", help="API key; default TCNN_API_KEY.", metavar="KEY")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JobId = Annotated[str, typer.Argument(help="A job's id.", metavar="JOB")]


@contextmanager
def connect(server: str | None, key: str | None) -> "Iterator[Client]":
    """A client of the server that was named; what the server advises is said in commands."""
    from tcnn_jobs.client.client import Client
    from tcnn_jobs.client.refusals import RefusedError
    from tcnn_jobs.errors import for_commands

    url = server or os.environ.get("TCNN_SERVER") or DEFAULT
    with Client(url, key or os.environ.get("TCNN_API_KEY"), patience=60.0) as client:
        try:
            yield client
        except RefusedError as error:
            told = for_commands(str(error))
            if told == str(error):
                raise
            raise RefusedError(error.status, {**error.problem, "detail": told}) from error


def print_json(value: Any) -> None:
    """One JSON object on stdout and nothing else."""
    console.print_json_text(json.dumps(value, ensure_ascii=False, indent=2))
