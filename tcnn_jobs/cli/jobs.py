"""`tcnn jobs`: a server's jobs from the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcnn.cli.options.shared import AsJson
from tcnn.errors import RequestError
from tcnn.formatting import some
from tcnn_jobs.cli import listing, submit
from tcnn_jobs.cli.options import JobId, Key, Server, connect, print_json

if TYPE_CHECKING:
    from tcnn_jobs.client.connection import Json

EXAMPLES = (
    "tcnn jobs submit transform resnet50d --data photos/ --preset quick --watch",
    "tcnn jobs submit evaluate t_resnet50d.safetensors --data photos/ --against resnet50d",
    "tcnn jobs list --search 'resnet50d pets' --sort=-metrics.accuracy",
    "tcnn jobs label job_0123456789abcdef01234567 --name 'no mixup' --tag ablation",
    "tcnn jobs download job_0123456789abcdef01234567 t_resnet50d.safetensors",
)
"""What the help of `tcnn jobs` ends with."""

app = typer.Typer(
    name="jobs", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Submit, watch and manage jobs on a server (`tcnn serve`).",
)  # fmt: skip
app.add_typer(submit.app, name="submit")
app.command("list")(listing.list_jobs)


@app.command()
def show(job: JobId, server: Server = None, key: Key = None, as_json: AsJson = False) -> None:
    """Show a job: its status, and its result or error."""
    with connect(server, key) as client:
        found = client.job(job)
    if as_json:
        print_json(found)
        return
    from tcnn_jobs.cli.watch import result_lines, standing, subject

    lines = result_lines(found) if found["status"] == "succeeded" else [f"{found['id']}: {found['status']}"]
    lines.insert(1, f"{found['kind']} of {subject(found)}, attempt {found['attempt']} of {found['max_attempts']}")
    if now := standing(found):
        lines.append(now)
    if found["error"]:
        lines.append(f"{found['error']['code']}: {found['error']['message']}")
    for line in lines:
        typer.echo(line)


@app.command()
def watch(job: JobId, server: Server = None, key: Key = None, as_json: AsJson = False) -> None:
    """Follow a job until it ends; the exit code reflects the outcome. Ctrl-C does not stop the job."""
    from tcnn_jobs.cli.watch import follow

    with connect(server, key) as client:
        code = follow(client, job, as_json)
    raise typer.Exit(code)


@app.command()
def log(
    job: JobId,
    attempt: Annotated[int | None, typer.Option(help="Attempt number, from 1; default: the last start.", min=1)] = None,
    tail: Annotated[int | None, typer.Option(help="Only the last BYTES bytes.", metavar="BYTES", min=1)] = None,
    server: Server = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Print the output of a job's process so far."""
    with connect(server, key) as client:
        found = client.log(job, attempt=attempt, tail=tail)
    if as_json:
        print_json({"id": job, "log": found})
    else:
        typer.echo(found, nl=False)


@app.command()
def label(
    job: JobId,
    name: Annotated[str | None, typer.Option(help="The job's name; '' removes it.", metavar="NAME")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="Replace the job's tags with this one; repeatable; '' removes all.", metavar="TAG"),
    ] = None,
    note: Annotated[str | None, typer.Option(help="Free text; '' removes it.", metavar="NOTE")] = None,
    server: Server = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Set a job's name, tags or note. What is not given is left unchanged."""
    said = {"name": name, "tags": None if tag is None else [one for one in tag if one], "note": note}
    given = {word: value for word, value in said.items() if value is not None}
    if not given:
        raise RequestError("expected --name, --tag or --note, found none of them")
    with connect(server, key) as client:
        found = client.label(job, **given)
    if as_json:
        print_json(found)
    else:
        typer.echo(" ".join([f"{found['id']}:", found["name"] or "no name", *(f"#{one}" for one in found["tags"])]))


@app.command()
def cancel(job: JobId, server: Server = None, key: Key = None, as_json: AsJson = False) -> None:
    """Cancel a job. Training progress is kept, so the job can be resumed."""
    with connect(server, key) as client:
        _print_status(client.cancel(job), as_json)


@app.command()
def resume(job: JobId, server: Server = None, key: Key = None, as_json: AsJson = False) -> None:
    """Queue a failed or cancelled job again; it continues from its last checkpoint."""
    with connect(server, key) as client:
        _print_status(client.resume(job), as_json)


@app.command()
def delete(job: JobId, server: Server = None, key: Key = None, as_json: AsJson = False) -> None:
    """Delete a finished job and its files."""
    with connect(server, key) as client:
        client.delete(job)
    if as_json:
        print_json({"id": job, "deleted": True})
    else:
        typer.echo(f"{job}: deleted")


@app.command()
def download(
    job: JobId,
    out: Annotated[Path, typer.Argument(help="The file to write.", metavar="OUT")],
    name: Annotated[
        str | None, typer.Option("--file", help="File to download; default: the checkpoint.", metavar="NAME")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Download all files, the log and the job's JSON as one zip.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing OUT.")] = False,
    server: Server = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Download a job's checkpoint, verified by its SHA-256; OUT appears only once it is complete."""
    from tcnn.cli.output import console
    from tcnn.files import check_output

    if everything and name is not None:
        raise RequestError(f"--file {name}: with --all every file is in the zip; give one of the two")
    check_output(out, force)
    with connect(server, key) as client:
        if everything:
            client.download_all(job, out, force=force)
        else:
            client.download(job, out, name=name, force=force)
    size = out.stat().st_size
    if as_json:
        print_json({"id": job, "output": str(out), "bytes": size})
    else:
        typer.echo(f"wrote {out} ({console.scale(size)}B)")


@app.command()
def share(
    job: JobId,
    days: Annotated[float | None, typer.Option(help="Days until the link expires; default 7.", metavar="N")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the job's valid links.")] = False,
    revoke: Annotated[str | None, typer.Option(help="Revoke this link.", metavar="SHARE")] = None,
    server: Server = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Create a link that shows this one job, read-only, to anyone; it expires, or can be revoked."""
    if listed and revoke is not None:
        raise RequestError("--list: --revoke ends a link; give one of the two")
    if days is not None and (listed or revoke is not None):
        raise RequestError("--days: applies to new links; leave it out, or --list and --revoke")
    with connect(server, key) as client:
        if revoke is not None:
            client.unshare(job, revoke)
            found: Json = {"id": revoke, "revoked": True}
            lines = [f"{revoke}: revoked"]
        elif listed:
            found = client.shares(job)
            lines = [f"{one['id']} until {one['expires_at'][:16].replace('T', ' ')} UTC" for one in found["data"]]
        else:
            found = client.share(job, days=7 if days is None else days)
            found["url"] = f"{client.url}{found['page']}"
            lines = [found["url"]]
    if as_json:
        print_json(found)
        return
    for line in lines:
        typer.echo(line)


@app.command()
def upload(
    path: Annotated[
        Path,
        typer.Argument(
            help="A folder of class folders, an archive of them, a checkpoint, or a CNN's weights.", metavar="PATH"
        ),
    ],
    server: Server = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Upload a data set, a checkpoint or a CNN's weights; prints the id to use in jobs."""
    from tcnn_jobs.cli.named import FileKind, in_run, kind_of, left_out

    path = in_run(path)
    kind = kind_of(path)
    with connect(server, key) as client:
        send = {
            FileKind.CHECKPOINT: client.upload_checkpoint,
            FileKind.WEIGHTS: client.upload_weights,
            FileKind.DATASET: client.upload_dataset,
        }
        found = send[kind](path)
    if as_json:
        print_json(found)
        return
    about = {
        FileKind.CHECKPOINT: lambda: found["base_model"],
        FileKind.WEIGHTS: lambda: f"{some(found['tensors'], 'tensor')} of {found['architecture'] or 'a CNN'}",
        FileKind.DATASET: lambda: f"{some(found['images'], 'image')} of {some(len(found['classes']), 'class')}",
    }
    typer.echo(found["id"])
    typer.echo(about[kind](), err=True)
    if kind is FileKind.DATASET and (note := left_out(path, found)):
        typer.echo(note, err=True)


def _print_status(job: "Json", as_json: bool) -> None:
    if as_json:
        print_json(job)
    else:
        typer.echo(
            f"{job['id']}: {'cancelling' if job['cancel_requested'] and job['status'] == 'running' else job['status']}"
        )
