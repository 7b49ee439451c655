"""`tcnn verify`: verify a checkpoint against its source."""

from pathlib import Path
from typing import Annotated

import typer

from tcnn.cli import console
from tcnn.processes import loading


def command(
    checkpoint: Annotated[Path, typer.Argument(help="A .safetensors file or hub-layout directory.", metavar="CKPT")],
    against: Annotated[
        str | None, typer.Option(help="The source to compare with; default the one it was made from.", metavar="MODEL")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Load the source's weights from this file.", metavar="FILE")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Compare on the pictures of this directory, not on noise.", metavar="DIR")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest relative error allowed in float32 (default 1e-5).", metavar="E")
    ] = None,
    device: Annotated[str, typer.Option(help="Where the models are compared.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare a checkpoint with its source, layer by layer and end to end; exit code 3 when they differ."""
    from tcnn.config import VerificationConfig, build
    from tcnn.errors import VerificationError

    bounds = {} if tolerance is None else {"tolerance_float32": tolerance, "tolerance_float64": min(tolerance, 1e-10)}
    settings = build(VerificationConfig, bounds)

    from tcnn.cli.convert import show_verdict

    with loading():
        from tcnn.workflows.recheck import recheck

    with console.steps(7, quiet=as_json) as progress:
        report = recheck(checkpoint, settings, against, weights, images, device, progress)
    if as_json:
        console.print_json(report)
    else:
        show_verdict(report, console.stdout())
    failure = report.failure()
    if failure and not as_json:
        raise VerificationError(f"{checkpoint}: {failure}")
    if failure:
        raise typer.Exit(VerificationError.exit_code)
