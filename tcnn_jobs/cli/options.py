"""Options that commands share, and what they open: a server by address and key, or the service's database itself."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tcnn.cli.output import console
from tcnn.errors import RequestError

if TYPE_CHECKING:
    from tcnn_jobs.client.client import Client
    from tcnn_jobs.store import Store

DEFAULT = "http://127.0.0.1:8000"

Server = Annotated[
    str | None, typer.Option("--server", help=f"URL of the server; default: TCNN_SERVER or {DEFAULT}.", metavar="URL")
]
Key = Annotated[str | None, typer.Option("--key", help="API key; default: TCNN_API_KEY.", metavar="KEY")]
JobId = Annotated[str, typer.Argument(help="The job's id.", metavar="JOB")]


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


HomeOption = Annotated[
    Path | None, typer.Option("--home", help="The service's TCNN_HOME; default: ~/.tcnn.", metavar="DIR")
]
DatabaseOption = Annotated[
    str | None, typer.Option("--database-url", help="The queue: postgresql://…; default: a SQLite file in --home.",
                             metavar="URL")
]  # fmt: skip


@contextmanager
def opened(home: Path | None, database_url: str | None, new: bool = False) -> "Iterator[Store]":
    """Context with the service's store, migrated first, as a worker would.

    Where there is no database, one is made if it may be `new`, with a note on stderr: a server with another home would
    not see what is in it. Otherwise raises `RequestError`.
    """
    from tcnn_jobs.artifacts.layout import Home
    from tcnn_jobs.model.operation import Actor, acting
    from tcnn_jobs.settings import QueueSettings, load_settings
    from tcnn_jobs.store import Store

    settings = load_settings(QueueSettings, home=home, database_url=database_url)
    if settings.database_url is None:
        file = settings.root / "tcnn.db"
        if not file.exists() and not new:
            raise RequestError(
                f"{settings.root}: no database of a service; name its TCNN_HOME (--home) or its TCNN_DATABASE_URL"
            )
        if not file.exists():
            typer.echo(f"{file}: a new database, for a server with this TCNN_HOME", err=True)
        Home(settings.root).create()
    store = Store(settings.database)
    store.migrate()
    try:
        with acting(Actor(tenant=_user(), key="command line")):
            yield store
    finally:
        store.close()


def _user() -> str:
    """Who types, for the audit log."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user that has no name
        return str(os.getuid())


def when(seconds: float | None) -> str | None:
    """Format a time of the database as ISO 8601 in UTC; one that no calendar has as its last second."""
    from datetime import UTC, datetime

    if seconds is None:
        return None
    last = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()
    return datetime.fromtimestamp(min(seconds, last), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | None]], whole: str | None = None) -> None:
    """Print rows as a table on stdout; long values are folded, but for those of the column `whole`: an id is copied."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="ellipsis" if column == whole else "fold", no_wrap=column == whole)
    for row in rows:
        table.add_row(*(Text(cell or "") for cell in row))  # as it is: brackets in a name are no markup
    console.stdout().print(table)
