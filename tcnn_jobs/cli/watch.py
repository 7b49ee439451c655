"""Watching a job: a progress bar as of a local run, and an exit code that says how it ended."""

import contextlib
from typing import TYPE_CHECKING, Any

import typer

from tcnn.cli.output import console
from tcnn.formatting import some
from tcnn_jobs.cli.options import print_json

if TYPE_CHECKING:
    from tcnn_jobs.client.client import Client
    from tcnn_jobs.client.connection import Json

INTERRUPTED = 130
CANCELLED = 75
"""As of a local run that was asked to stop: what was done is kept, and it can be resumed."""
SURROUNDINGS = frozenset(
    {"worker_lost", "crashed", "quarantined", "out_of_memory", "no_progress", "timed_out", "source_failed"}
)
"""Failures that are none of tcnn's own errors: the job's process or its host went away, a limit ended it, or what it
waited for failed."""


def follow(client: "Client", job: str, as_json: bool) -> int:
    """Show a job until it has ended, then its result or its error; returns the exit code."""
    from tcnn.training.runs.callbacks import Progress

    ended: Json | None = None
    with console.training(quiet=as_json) as (report, say), contextlib.suppress(KeyboardInterrupt):

        def progress(now: "Json") -> None:
            whole = {name: now.get(name) or 0 for name in ("epoch", "epochs", "step", "steps", "percent")}
            report(Progress(**{**now, **whole}))

        def event(kind: str, data: "Json") -> None:
            if line := event_line(kind, data):
                say(line)

        ended = client.watch(job, progress, event)
    if ended is None:
        typer.echo(
            f"{job} continues: `tcnn jobs watch {job}` shows it again, `tcnn jobs cancel {job}` ends it", err=True
        )
        return INTERRUPTED
    if as_json:
        print_json(ended)
    else:
        show_end(ended)
    return exit_code(ended)


def event_line(kind: str, data: "Json") -> str | None:
    """Format an event as one line; None for what the progress bar shows anyway."""
    lines: dict[str, str] = {
        "started": f"started on {data.get('worker')}, attempt {data.get('attempt')}",
        "message": str(data.get("text")),
        "converted": f"converted {some(data.get('layers', 0), 'layer')}",
        "retrying": f"failed: {data.get('message')}; tried again in {data.get('after')} s",
        "stalled": f"its worker {data.get('worker')} is silent; it goes to another",
        "handed_back": "its worker leaves; it goes to another",
        "handed_on": f"{data.get('to')} has enough free slots; it goes there",
        "cancel_requested": "cancelling",
        "resumed": "resumed",
    }
    if kind == "epoch":
        return _epoch(data)
    return lines.get(kind)


def exit_code(job: "Json") -> int:
    """0 succeeded, 75 cancelled; a failed job's is that of a local run with the same error."""
    from tcnn import errors
    from tcnn_jobs.retry import error_code

    if job["status"] != "failed":
        return CANCELLED if job["status"] == "cancelled" else 0
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TcnnError)]
    codes = {error_code(kind()): kind.exit_code for kind in kinds}
    code = (job["error"] or {}).get("code", "")
    return errors.EnvironmentFailure.exit_code if code in SURROUNDINGS else codes.get(code, 1)


def show_end(job: "Json") -> None:
    """Print the result of a job on stdout, or its error on stderr."""
    if job["status"] == "cancelled":
        typer.echo(f"{job['id']}: cancelled; `tcnn jobs resume {job['id']}` continues it", err=True)
    elif job["status"] == "failed":
        typer.echo(f"error: {job['id']}: {' '.join(job['error']['message'].split())}", err=True)
    else:
        for line in result_lines(job):
            typer.echo(line)


def result_lines(job: "Json") -> list[str]:
    """Format the result of a succeeded job, line by line."""
    result = job["result"] or {}
    metrics = result.get("metrics") or {}
    lines = [f"{job['id']}: succeeded"]
    if result.get("verification"):
        verified = result["verification"]
        lines.append(
            f"verified: {'equal' if verified.get('passed') else 'not equal'} (τ = {verified['temperature']:.4g})"
        )
    if isinstance(metrics.get("best_top1"), float):
        lines.append(f"top-1 {metrics['best_top1']:.2%}, of epoch {metrics['best_epoch'] + 1} of {metrics['epochs']}")
    for row in metrics.get("rows", ()):
        clean = row.get("clean") or {}
        lines.append(f"{row['model']} at {row['height']}×{row['width']}: top-1 {clean.get('top1', 0.0):.2%}")
    lines += [f"note: {note}" for note in result.get("notes", ())]
    lines += [f"file: {file['name']} ({console.scale(file['size'])}B)" for file in result.get("files", ())]
    if result.get("checkpoint"):
        lines.append(f"get the checkpoint: tcnn jobs download {job['id']} OUT.safetensors")
    return lines


def _epoch(data: "Json") -> str:
    top1 = (data.get("val") or {}).get("top1") if isinstance(data.get("val"), dict) else None
    parts = [f"epoch {data['epoch'] + 1}" if isinstance(data.get("epoch"), int) else "epoch"]
    if isinstance(data.get("train_loss"), float):
        parts.append(f"loss {data['train_loss']:.3f}")
    if isinstance(top1, float):
        parts.append(f"top-1 {top1:.2%}")
    return ", ".join(parts)


def subject(job: "Json") -> Any:
    """The model of a job, as its request names it."""
    request = job["request"]
    return next((request[name] for name in ("model", "job", "checkpoint") if request.get(name)), "–")


def standing(job: "Json") -> str:
    """Where a job stands, in a few words."""
    if job["status"] == "queued":
        if job.get("waiting_for"):
            return str(job["waiting_for"])
        return "next" if not job["queue_position"] else f"{job['queue_position']} before it"
    now = job["progress"]
    if job["status"] != "running" or not now:
        return ""
    epoch = f" epoch {now['epoch']}/{now['epochs']}" if now.get("epochs") else ""
    percent = f" {now['percent']:.0f}%" if now.get("percent") is not None else ""
    return f"{now['phase']}{epoch}{percent}"
