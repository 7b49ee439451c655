"""`tcnn keys`: API keys in the service's database; a running server knows of a change within seconds."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tcnn.cli.options.shared import AsJson
from tcnn.errors import RequestError
from tcnn_jobs.cli.options import DatabaseOption, HomeOption, opened, print_json, print_table, when

if TYPE_CHECKING:
    from tcnn_jobs.model.accounts import ApiKey

EXAMPLES = (
    'tcnn keys create team --name "laptop of Ann" --days 90',
    "tcnn keys list --tenant team --all",
    "tcnn keys revoke key_0123456789abcdef01234567",
)
"""What the help of `tcnn keys` ends with."""

app = typer.Typer(
    name="keys", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Manage the service's API keys, in its database.",
)  # fmt: skip
DAY = 86400.0


@app.command()
def create(
    tenant: Annotated[str, typer.Argument(help="The tenant that owns the key.", metavar="TENANT")],
    name: Annotated[str, typer.Option(help="What the key is for.", metavar="TEXT")] = "",
    scopes: Annotated[
        str, typer.Option(help="Comma-separated scopes: read, submit, admin.", metavar="SCOPES")
    ] = "read,submit",
    days: Annotated[float | None, typer.Option(help="Days until the key expires; default: never.")] = None,
    home: HomeOption = None,
    database_url: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Create a key. Its secret is printed once, alone on stdout, and cannot be retrieved later."""
    from pydantic import ValidationError

    from tcnn_jobs.model.accounts import NewKey

    given = {
        "tenant": tenant, "name": name, "scopes": [word.strip() for word in scopes.split(",") if word.strip()],
        "lasts": None if days is None else days * DAY,
    }  # fmt: skip
    try:
        new = NewKey.model_validate(given)
    except ValidationError as error:
        raise RequestError(_option_error(error.errors()[0])) from error
    with opened(home, database_url, new=True) as store:
        key, secret = store.create_key(new)
    if as_json:
        print_json({**_shown(key), "secret": secret})
        return
    typer.echo(secret)
    until = when(key.expires_at)
    expires = f"until {until}" if until else "until it is revoked"
    typer.echo(f"{key.id} of {key.tenant} ({', '.join(sorted(key.scopes))}) {expires}; shown once: keep it", err=True)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's keys.", metavar="TENANT")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Include expired and revoked keys.")] = False,
    home: HomeOption = None,
    database_url: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """List the keys, oldest first, without their secrets."""
    with opened(home, database_url) as store:
        found = [key for key in store.api_keys(tenant) if key.valid or everything]
    if as_json:
        print_json({"object": "list", "data": [_shown(key) for key in found]})
        return
    rows = []
    for key in found:
        until = f"revoked {when(key.revoked_at)}" if key.revoked_at else when(key.expires_at) or "–"
        used = when(key.used_at) or "–"
        scopes = ",".join(sorted(key.scopes))
        rows.append((key.id, key.tenant, key.name, scopes, when(key.created_at), used, until))
    print_table(("key", "tenant", "name", "scopes", "created", "last used", "until"), rows, whole="key")


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="The key's id, key_….", metavar="KEY")],
    home: HomeOption = None,
    database_url: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key: running servers reject it within seconds. Jobs submitted with it continue."""
    with opened(home, database_url) as store:
        found = store.revoke_key(key)
    if as_json:
        print_json(_shown(found))
    else:
        typer.echo(f"{found.id} of {found.tenant}: revoked {when(found.revoked_at)}")


def _shown(key: "ApiKey") -> dict[str, Any]:
    return {
        "id": key.id, "tenant": key.tenant, "name": key.name, "scopes": sorted(key.scopes), "valid": key.valid,
        "created_at": when(key.created_at), "expires_at": when(key.expires_at), "revoked_at": when(key.revoked_at),
        "used_at": when(key.used_at),
    }  # fmt: skip


def _option_error(error: Any) -> str:
    """A validation error as one line that names the option."""
    from tcnn_jobs.model.accounts import LONGEST_LIFE, Scope

    field = error["loc"][0]
    if field == "scopes":
        return f"--scopes: expected one or more of {', '.join(Scope)}, with commas between"
    if field == "lasts":
        return f"--days: expected a number above 0, at most {LONGEST_LIFE / DAY:g}, found {error['input'] / DAY:g}"
    label = "TENANT" if field == "tenant" else "--name"
    return f"{label}: {str(error['msg']).removeprefix('Value error, ')}, found {error['input']!a}"
