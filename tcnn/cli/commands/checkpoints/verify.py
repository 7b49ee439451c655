"""`tcnn verify`: verify a checkpoint against its source."""

from pathlib import Path
from typing import Annotated

import typer

from tcnn.cli.options.shared import AsJson, ModelKwargs, Network, Tolerance
from tcnn.cli.options.spellings import model_arguments
from tcnn.cli.output import console
from tcnn.errors import RequestError, VerificationError
from tcnn.processes import loading


def command(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="A T-CNN: a checkpoint, a timm name prefixed with t_, hf-hub:ORG/NAME, or a checkpoint of timm's "
            "train.py; with --against, any model.",
            metavar="CKPT",
        ),
    ],
    against: Annotated[
        str | None, typer.Option(help="The source to compare with; default: the recorded one.", metavar="MODEL")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Load the source's weights from this file.", metavar="FILE")
    ] = None,
    model_kwargs: ModelKwargs = None,
    module: Network = None,
    images: Annotated[
        Path | None, typer.Option(help="Compare on the images in this directory instead of on noise.", metavar="DIR")
    ] = None,
    tolerance: Tolerance = None,
    explain: Annotated[
        Path | None,
        typer.Option(help="Write a page that shows which layer deviates first, where, and why.", metavar="HTML"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page of --explain.")] = False,
    device: Annotated[str, typer.Option(help="Device to compare the models on.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Compare a checkpoint with its source, layer by layer and end to end; exit code 3 if they differ.

    With --against, this also compares two models of the same architecture, neither of which is converted.
    """
    from tcnn.config import VerificationConfig, build

    if tolerance is not None and not 0 < tolerance < float("inf"):
        raise RequestError(f"--tolerance: expected a relative error above 0, such as 1e-5, found {tolerance:g}")
    bounds = {} if tolerance is None else {"tolerance_float32": tolerance, "tolerance_float64": min(tolerance, 1e-10)}
    settings = build(VerificationConfig, bounds)
    arguments = model_arguments(model_kwargs)
    if force and explain is None:
        raise RequestError("--force: there is no --explain page to replace")
    if explain is not None:
        from tcnn.analysis.plots import require_plots
        from tcnn.files import check_file

        require_plots()
        check_file(explain, force)
    with loading():
        from tcnn.workflows.recheck import compare, explained, is_plain, open_pair, open_two

    plain = against is not None and is_plain(checkpoint)
    with console.steps(7, quiet=as_json) as progress:
        if plain:
            pair = open_two(checkpoint, str(against), weights, images, device, progress, **arguments)
        else:
            pair = open_pair(checkpoint, against, weights, images, device, progress, **arguments)
        report = None if plain else compare(pair, settings, progress)
        found = explained(pair, settings) if plain or explain is not None else None
    if explain is not None and found is not None:
        from tcnn.analysis.pages.explanation import write

        write(found, against or "its source", checkpoint, explain, force)
    if as_json:
        console.print_json(report or found)  # type: ignore[arg-type]
    elif report is not None:
        console.stdout().print(str(report), markup=False)
    elif found is not None:
        console.stdout().print(f"{found.verdict}\n{found.advice}", markup=False)
    if explain is not None and not as_json:
        console.stdout().print(f"explained in {explain}", markup=False)
    if report is not None:
        failure = report.failure()
    else:
        failure = found.verdict if found is not None and not found.equal else None
    if failure and not as_json:
        raise VerificationError(f"{checkpoint}: {failure}")
    if failure:
        raise typer.Exit(VerificationError.exit_code)
