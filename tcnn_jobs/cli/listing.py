"""`tcnn jobs list`: a page of a server's jobs as a table, filtered and sorted by the server."""

from typing import TYPE_CHECKING, Annotated

import typer

from tcnn.cli.options.shared import AsJson
from tcnn_jobs.cli.options import Key, Server, connect, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from tcnn_jobs.client.connection import Json


def list_jobs(
    status: Annotated[
        str | None, typer.Option(help="queued, running, succeeded, failed or cancelled.", metavar="STATUS")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="transform, finetune or evaluate.", metavar="KIND")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="made: only jobs that have made a model. expected: only those that will make one if they succeed.",
            metavar="MADE",
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(help="Only jobs with these words in name, tags, note, id, request or uploads.", metavar="WORDS"),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="Only jobs with this tag; repeatable: with all tags.", metavar="TAG")
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="Only jobs of this tenant; of others than your own with an admin's key.", metavar="TENANT"),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="created, started, finished, duration, name, settings.NAME or metrics.NAME, such as metrics.accuracy; "
            "prefix with - for descending order. Default: -created.",
            metavar="ORDER",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of jobs.", metavar="N", min=1, max=100)] = 20,
    after: Annotated[
        str | None, typer.Option(help="Only jobs after this one, or after the page that told it.", metavar="PLACE")
    ] = None,
    server: Server = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first unless --sort says otherwise."""
    with connect(server, key) as client:
        found = client.jobs(
            limit=limit, after=after, status=status, kind=kind, model=model, search=search, tags=tag or (),
            tenant=tenant, sort=sort,
        )  # fmt: skip
    if as_json:
        print_json(found)
        return
    from tcnn.cli.output import console

    out = console.stdout()
    out.print(_table(found["data"], [sort.lstrip("-")] if sort and "." in sort else []))
    if found["has_more"]:
        # 0.2.0 tells no place, and its pages go on after a job.
        out.print(f"more: --after {found.get('next') or found['data'][-1]['id']}", markup=False)


def _table(jobs: list["Json"], column: list[str]) -> "Table":
    """The jobs, a row each, with the number that they are sorted by; with their tenants where there are several."""
    from rich.table import Table
    from rich.text import Text

    from tcnn_jobs.cli.watch import standing, subject
    from tcnn_jobs.model.columns import value_of

    table = Table(box=None, pad_edge=False)
    owner = ["tenant"] if len({job["tenant"] for job in jobs}) > 1 else []
    for name in ("job", *owner, "name", "kind", "status", "model", *column, "created", "progress"):
        table.add_column(name, overflow="fold")
    for job in jobs:
        created = job["created_at"][:19].replace("T", " ")
        values = ["" if (value := value_of(job, name)) is None else f"{value:.6g}" for name in column]
        called = Text(" ".join([job["name"] or "", *(f"#{one}" for one in job["tags"])]).strip())
        whose = [Text(job[name]) for name in owner]
        table.add_row(
            job["id"], *whose, called, job["kind"], job["status"], str(subject(job)), *values, created, standing(job)
        )
    return table
