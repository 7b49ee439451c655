"""`tcnn report`: a run as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from tcnn.cli.options.shared import AsJson, Evaluations, Network
from tcnn.cli.output import console
from tcnn.errors import RequestError


def command(
    run: Annotated[Path, typer.Argument(help="The directory of a fine-tuning run.", metavar="RUN_DIR")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; default: RUN_DIR/report.html.", metavar="FILE")
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="An image or a folder of images to draw attention maps of.", metavar="DIR")
    ] = None,
    module: Network = None,
    evaluation: Evaluations = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Summarise a run in one HTML file: conversion, curves, gates, evaluations, settings. Needs no network."""
    from tcnn.analysis.plots import require_plots
    from tcnn.files import check_file

    require_plots()
    if images is not None and not Path(images).exists():
        raise RequestError(f"--images: expected a picture or a folder of pictures, found nothing at {images}")
    file = run / "report.html" if out is None else out
    if run.is_dir():
        check_file(file, force)

    from tcnn.analysis.pages.report import write

    written = write(run, file, images, evaluation or (), force)
    if as_json:
        console.print_json(written)
    else:
        for line in (*(f"missing: {line}" for line in written.missing), f"wrote {file}"):
            console.stdout().print(line, markup=False, soft_wrap=True)
