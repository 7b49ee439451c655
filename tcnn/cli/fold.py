"""`tcnn fold`: fold convolutional heads of a checkpoint into convolutions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcnn.cli.output import console
from tcnn.processes import loading

if TYPE_CHECKING:
    from tcnn.folding.report import FoldResult


def command(
    checkpoint: Annotated[str, typer.Argument(help=console.T_CNN, metavar="CKPT")],
    output: Annotated[Path, typer.Argument(help="A .safetensors file.", metavar="OUT")],
    max_error: Annotated[
        float | None,
        typer.Option(help="Largest relative error of the logits; default: fold only what changes none.", metavar="E"),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Measure on the pictures of this directory, not on noise.", metavar="DIR")
    ] = None,
    device: Annotated[str, typer.Option(help="Where the models are compared and timed.")] = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Put convolutional heads back into one convolution, and drop what does nothing; exit code 3 beyond --max-error."""
    from tcnn.errors import RequestError
    from tcnn.files import check_output

    if max_error is not None and not 0 <= max_error < float("inf"):
        raise RequestError(f"--max-error: expected a relative error of 0 or more, such as 1e-3, found {max_error}")
    check_output(output, force)  # before torch is loaded: a wrong path is answered at once

    with loading():
        from tcnn.workflows.fold_file import fold_to_file

    with console.steps(8, quiet=as_json) as progress:
        result = fold_to_file(checkpoint, output, max_error, images, device=device, force=force, progress=progress)
    if as_json:
        console.print_json(result)
    else:
        _show(result)


def _show(result: "FoldResult") -> None:
    """Print what every layer's heads became, then the error, the size and the speed."""
    from rich.table import Table

    out = console.stdout()
    report = result.fold
    table = Table(title=f"{result.checkpoint}: {result.base_model}", title_justify="left")
    table.add_column("layer")
    table.add_column("becomes")
    for name in ("convolution", "content only", "attention", "dropped", "parameters"):
        table.add_column(name, justify="right")
    for layer in report.layers:
        counts = (layer.convolution, layer.content, layer.attention, layer.dropped)
        before, after = console.scale(layer.parameters_before), console.scale(layer.parameters_after)
        table.add_row(layer.name, layer.becomes, *map(str, counts), f"{before} → {after}")
    out.print(table)
    for layer in report.layers:
        if layer.note:
            out.print(f"note: {layer.name}: {layer.note}", markup=False)
    allowed = "" if report.max_error is None else f", at most {report.max_error:g} allowed"
    out.print(
        f"relative error of the logits {report.logits.worst:.1e}{allowed} "
        f"(top-1 agreement {report.top1_agreement:.0%}, {report.images})"
    )
    out.print(f"parameters: {console.scale(report.parameters_before)} → {console.scale(report.parameters_after)}")
    speed = result.speed
    out.print(
        f"speed: {speed.before:.1f} → {speed.after:.1f} images/s, {speed.after / speed.before:.2f}× "
        f"({speed.device}, batch {speed.batch_size})"
    )
    kind = "a plain timm state dict" if result.format == "timm" else "a tcnn checkpoint"
    out.print(f"wrote {result.output} ({kind}, {console.scale(result.bytes)}B) in {result.seconds:.1f} s", markup=False)
