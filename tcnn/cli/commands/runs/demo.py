"""`tcnn demo`: convert, verify and fine-tune on real images, with no download and no GPU."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcnn.cli.options.shared import AsJson
from tcnn.cli.output import console
from tcnn.errors import Stopped
from tcnn.processes import keep_freed_memory, loading

if TYPE_CHECKING:
    from tcnn.demo.journey import DemoResult


def command(
    out: Annotated[
        Path | None,
        typer.Option(help="Keep images, checkpoints and runs in this directory.", metavar="DIR"),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of the source CNN.", min=1)] = 6,
    finetune_epochs: Annotated[int, typer.Option(help="Fine-tuning epochs, for the CNN and for the T-CNN.", min=1)] = 4,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Train a small ResNet on digits in clutter, convert, verify, save and reload it, fine-tune both, and compare."""
    from tcnn.files import make_directory, scratch_directory

    with loading():
        from tcnn.demo.journey import run

    keep_freed_memory()
    if out is not None:
        make_directory(out)
    with (
        scratch_directory() as scratch,
        console.steps(epochs + 2 * finetune_epochs + 5, quiet=as_json) as progress,
    ):
        try:
            result = run(out or scratch, out is not None, epochs, finetune_epochs, seed, progress)
        except Stopped as error:
            raise without_resume(error) from error
    if as_json:
        console.print_json(result)
    else:
        _show(result)


def without_resume(error: Stopped) -> Stopped:
    """What a run that was stopped says of going on is not true of the demo, which keeps no resume point."""
    told = Stopped("the demo was stopped, and begins anew when it is started again")
    told.exit_code = 130 if error.exit_code == 130 else 128 + signal.SIGTERM
    return told


def _show(result: "DemoResult") -> None:
    from rich.table import Table

    out = console.stdout()
    table = Table(title=f"tcnn demo: {result.images}", title_justify="left")
    for name in ("model", "top-1", "parameters", "equivalence error"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for row in result.rows:
        error = "" if row.equivalence_error is None else f"{row.equivalence_error:.1e}"
        table.add_row(row.model, f"{row.top1:.1%}", console.scale(row.parameters), error)
    out.print(table)
    out.print(f"All {result.held_out} held-out predictions are the same before and after, in a fresh process too.")
    gain = " to ".join(f"{100 * value:+.1f}" for value in (result.gain.low, result.gain.high))
    out.print(
        f"Fine-tuned T-CNN minus fine-tuned CNN, after the same updates: {100 * result.gain.mean:+.1f} points "
        f"(95 % interval {gain})."
    )
    if result.checkpoint:
        out.print(f"checkpoint: {result.checkpoint}", markup=False)
        out.print(f"fine-tuning: {result.run}", markup=False)
    else:
        out.print("Keep images, checkpoints and runs with --out DIR.")
    out.print(f"{result.seconds:.0f} s")
