"""`tcnn audit`: who did what with which key, from the service's database."""

from typing import Annotated

import typer

from tcnn.cli.options.shared import AsJson
from tcnn_jobs.cli.options import DatabaseOption, HomeOption, opened, print_json, print_table, when

EXAMPLES = ("tcnn audit", "tcnn audit --tenant team --limit 20", "tcnn audit --json")
"""What the help of `tcnn audit` ends with."""


def command(
    tenant: Annotated[
        str | None, typer.Option(help="Only changes to this tenant's resources.", metavar="TENANT")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Only changes made with this key (its id).", metavar="KEY")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of entries.", metavar="N", min=1, max=1_000_000)] = 100,
    after: Annotated[
        int | None, typer.Option(help="Only entries older than this number.", metavar="NUMBER", min=0, max=2**63 - 1)
    ] = None,
    home: HomeOption = None,
    database_url: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the audit log: every change made over HTTP or on the command line, newest first."""
    with opened(home, database_url) as store:
        found, more = store.audit(tenant=tenant, key=key, after=after, limit=limit)
    if as_json:
        data = [{**entry.model_dump(mode="json"), "at": when(entry.at)} for entry in found]
        print_json({"object": "list", "data": data, "has_more": more})
        return
    rows = [
        (str(entry.number), when(entry.at), entry.action, entry.tenant, entry.by, entry.key, entry.resource)
        for entry in found
    ]
    print_table(("number", "at", "action", "of", "by", "key", "resource"), rows, whole="resource")
    if more:
        typer.echo(f"more: --after {found[-1].number}")
