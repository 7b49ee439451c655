"""`tcnn tenants`: quotas of tenants in the service's database, and what they use."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tcnn.cli.options.shared import AsJson
from tcnn.errors import RequestError
from tcnn_jobs.cli.options import DatabaseOption, HomeOption, opened, print_json, print_table, when

if TYPE_CHECKING:
    from tcnn_jobs.model.accounts import Tenant

EXAMPLES = (
    "tcnn tenants set team --queued 200 --running 4 --gpu-hours 500",
    "tcnn tenants set team --webhook-secret new",
    "tcnn tenants list --tenant team --json",
)
"""What the help of `tcnn tenants` ends with."""

app = typer.Typer(
    name="tenants", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Manage the service's tenants: quotas and usage.",
)  # fmt: skip
GB = 1e9


def _quota(what: str) -> Any:
    return typer.Option(help=f"{what}; none: unlimited.", metavar="N|none")


@app.command("set")
def set_quotas(
    tenant: Annotated[str, typer.Argument(help="Name of the tenant, as in its keys.", metavar="TENANT")],
    queued: Annotated[str | None, _quota("Maximum number of queued jobs")] = None,
    running: Annotated[str | None, _quota("Maximum number of running jobs")] = None,
    gpu_hours: Annotated[str | None, _quota("GPU hours within 30 days")] = None,
    stored_gb: Annotated[str | None, _quota("Storage for uploads and results in GB (10⁹ bytes)")] = None,
    webhook_secret: Annotated[
        str | None,
        typer.Option(
            help="Secret that signs the tenant's webhooks: new creates and prints one, - reads it from stdin, none "
            "falls back to the service's.",
            metavar="new|-|none",
        ),
    ] = None,
    home: HomeOption = None,
    database_url: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Set the given quotas or webhook secret of a tenant; takes effect without a restart."""
    from tcnn_jobs.model.accounts import is_tenant

    if not is_tenant(tenant):
        raise RequestError(f"TENANT: expected ASCII without spaces and colons, found {tenant!a}")
    changes = {
        **_number("queued", queued, whole=True), **_number("running", running, whole=True),
        **_number("gpu_hours", gpu_hours), **_number("stored", stored_gb, option="--stored-gb"),
    }  # fmt: skip
    if changes.get("stored") is not None:
        changes["stored"] = round(changes["stored"] * GB)
    secret = _secret(webhook_secret)
    with opened(home, database_url, new=True) as store:
        if webhook_secret is not None:
            found = store.set_webhook_secret(tenant, secret)
        if changes or webhook_secret is None:
            found = store.set_quotas(tenant, **changes)
    _print([found], as_json, single=True, new_secret=secret if webhook_secret == "new" else None)  # noqa: S105


@app.command("list")
def list_tenants(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.", metavar="TENANT")] = None,
    home: HomeOption = None,
    database_url: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """List tenants with their usage and quotas."""
    with opened(home, database_url) as store:
        found = store.tenants(tenant)
    _print(found, as_json)


def _number(name: str, given: str | None, *, whole: bool = False, option: str = "") -> dict[str, Any]:
    """A quota that is changed; nothing if it is not named."""
    if given is None or given == "none":
        return {} if given is None else {name: None}
    try:
        value: float = int(given) if whole else float(given)
    except ValueError:
        value = -1
    if not 0 <= value < 2**31:
        kind, option = "a whole number" if whole else "a number", option or f"--{name.replace('_', '-')}"
        raise RequestError(f"{option}: expected {kind} of 0 or more, or none, found {given!a}")
    return {name: value}


def _secret(given: str | None) -> str | None:
    """The webhook secret that is meant; never one of the command line, which everybody on the machine can read."""
    import base64
    import secrets
    import sys

    from tcnn_jobs.settings import check_webhook_secret

    if given in (None, "none"):
        return None
    if given == "new":
        return f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"
    if given != "-":
        raise RequestError("--webhook-secret: expected new, none, or - and the secret on stdin, found another text")
    secret = sys.stdin.readline().strip()
    if not secret:
        raise RequestError("--webhook-secret: expected a secret on stdin, found nothing")
    try:
        check_webhook_secret(secret)
    except ValueError as error:
        raise RequestError(f"--webhook-secret: {error}") from error
    return secret


def _print(found: "list[Tenant]", as_json: bool, single: bool = False, new_secret: str | None = None) -> None:
    if as_json:
        shown = [{**one.model_dump(mode="json"), "created_at": when(one.created_at)} for one in found]
        if new_secret is not None:
            shown[0]["webhook_secret"] = new_secret
        print_json(shown[0] if single else {"object": "list", "data": shown})
        return
    rows = []
    for one in found:
        has, may = one.use, one.quotas
        rows.append((
            one.name, _of(has.queued, may.queued), _of(has.running, may.running),
            _of(f"{has.gpu_hours:.1f}", may.gpu_hours), _of(f"{has.stored / GB:.3g}", may.stored and may.stored / GB),
            "own secret" if one.own_webhook_secret else "–",
        ))  # fmt: skip
    print_table(("tenant", "queued", "running", "GPU hours", "GB stored", "webhooks"), rows)
    if new_secret is not None:
        typer.echo(f"webhook secret, shown once: {new_secret}")


def _of(has: object, may: float | None) -> str:
    return str(has) if may is None else f"{has} of {may:g}"
