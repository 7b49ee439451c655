"""`tcnn fold`: fold convolutional heads of a checkpoint into convolutions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcnn.cli.options.shared import AsJson, Force, Network, TcnnCheckpoint
from tcnn.cli.output import console
from tcnn.errors import RequestError
from tcnn.processes import loading

if TYPE_CHECKING:
    from tcnn.folding.report import FoldResult


def command(
    checkpoint: TcnnCheckpoint,
    output: Annotated[Path, typer.Argument(help="A .safetensors file.", metavar="OUT")],
    max_error: Annotated[
        float | None,
        typer.Option(help="Largest relative error allowed in the logits; default: only exact folding.", metavar="E"),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Measure on the images in this directory instead of on noise.", metavar="DIR")
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Remove heads whose centres are too far away or coincide, or whose attention is flat."
        ),
    ] = False,
    far: Annotated[
        float | None,
        typer.Option(help="With --prune: centres beyond this are too far; default: outside the map.", metavar="PIXELS"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="With --prune: measure the accuracy before and after on these images.", metavar="DATASET"),
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="With --data: side of the images in pixels.", min=1, metavar="PIXELS")
    ] = None,
    module: Network = None,
    device: Annotated[str, typer.Option(help="Device to compare and time the models on.")] = "cpu",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Merge convolutional heads back into one convolution and drop unused ones; exit code 3 beyond --max-error."""
    from tcnn.files import check_file

    if max_error is not None and not 0 <= max_error < float("inf"):
        raise RequestError(f"--max-error: expected a relative error of 0 or more, such as 1e-3, found {max_error}")
    if far is not None and not 0 < far < float("inf"):
        raise RequestError(f"--far: expected a distance in pixels above 0, such as 8, found {far:g}")
    check_file(output, force)  # before torch is loaded: a wrong path is answered at once

    with loading():
        from tcnn.evaluation.comparing.paired import measure_on
        from tcnn.workflows.fold_file import fold_to_file

    accuracy = None if data is None else measure_on(checkpoint, data, size)
    with console.steps(8, quiet=as_json) as progress:
        result = fold_to_file(
            checkpoint, output, max_error, images, device=device, pruning=prune, far=far, force=force,
            progress=progress, accuracy=accuracy,
        )  # fmt: skip
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
    for line in report.told():
        out.print(line, markup=False)
    if result.accuracy is not None:
        found = result.accuracy
        out.print(
            f"top-1 {found.before:.2%} → {found.after:.2%} on {console.some(found.images, 'image')} of {found.data}, "
            f"{100 * found.difference:+.2f} points ({100 * found.low:+.2f} to {100 * found.high:+.2f})"
            + (", held out of training" if found.held_out else "")
            + (", which it was trained on" if found.trained_on else "")
        )
    speed = result.speed
    out.print(
        f"speed: {speed.before:.1f} → {speed.after:.1f} images/s, {speed.after / speed.before:.2f}× "
        f"({speed.device}, batch {speed.batch_size})"
    )
    kind = f"the plain state dict of {result.base_model}" if result.format == "timm" else "a tcnn checkpoint"
    out.print(f"wrote {result.output} ({kind}, {console.scale(result.bytes)}B) in {result.seconds:.1f} s", markup=False)
