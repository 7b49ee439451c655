"""`tcnn audit`: who did what with which key, from the service's database."""

from typing import Annotated

import typer

from tcnn_jobs.cli.database import DatabaseOption, HomeOption, opened, when
from tcnn_jobs.cli.session import AsJson, print_json


def command(
    tenant: Annotated[
        str | None, typer.Option(help="Only what was done to things of this tenant.", metavar="TENANT")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Only what was done with this key, by its id.", metavar="KEY")] = None,
    limit: Annotated[int, typer.Option(help="So many at most, the newest first.", metavar="N", min=1)] = 100,
    after: Annotated[int | None, typer.Option(help="Only older ones than this number.", metavar="NUMBER")] = None,
    home: HomeOption = None,
    database_url: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the audit log: every change that somebody asked for, by HTTP or on the command line, the newest first."""
    with opened(home, database_url) as store:
        found, more = store.audit(tenant=tenant, key=key, after=after, limit=limit)
    if as_json:
        data = [{**entry.model_dump(mode="json"), "at": when(entry.at)} for entry in found]
        print_json({"object": "list", "data": data, "has_more": more})
        return
    from rich.table import Table

    from tcnn.cli import console

    table = Table(box=None, pad_edge=False)
    for column in ("number", "at", "action", "of", "by", "key"):
        table.add_column(column, overflow="fold")
    table.add_column("resource", no_wrap=True)
    for entry in found:
        table.add_row(
            str(entry.number), when(entry.at), entry.action, entry.tenant, entry.by, entry.key, entry.resource
        )
    out = console.stdout()
    out.print(table)
    if more:
        out.print(f"more: --after {found[-1].number}", markup=False)
