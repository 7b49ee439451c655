"""`tcnn export`: export a checkpoint to ONNX or torch.export, or as a page that needs no server."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tcnn.cli.options.shared import AsJson, Force, ModelKwargs, Network, TcnnCheckpoint
from tcnn.cli.options.spellings import model_arguments, sides
from tcnn.cli.output import console
from tcnn.processes import loading


def command(
    checkpoint: TcnnCheckpoint,
    output: Annotated[Path, typer.Argument(help="A .onnx or .pt2 file; with --explorer, a directory.", metavar="OUT")],
    explorer: Annotated[
        bool,
        typer.Option("--explorer", help="Write a web page that shows every head's attention; any file server will do."),
    ] = False,
    format: Annotated[
        str | None, typer.Option(help="onnx or torch; default: from OUT's suffix.", metavar="FORMAT")
    ] = None,
    opset: Annotated[int, typer.Option(help="ONNX opset.", metavar="N")] = 18,
    size: Annotated[
        str | None, typer.Option(help="Size of the example in pixels; default: the model's own.", metavar="HxW")
    ] = None,
    batch: Annotated[int, typer.Option(help="Batch size of the example.", metavar="N")] = 1,
    dynamic: Annotated[
        str, typer.Option(help="Dynamic axes, where the model allows them.", metavar="AXES")
    ] = "batch,height,width",
    model_kwargs: ModelKwargs = None,
    module: Network = None,
    fixed: Annotated[bool, typer.Option("--fixed", help="No dynamic axes: the example's shape only.")] = False,
    tolerance: Annotated[float, typer.Option(help="Largest relative error allowed in the logits.", metavar="E")] = 1e-5,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Export a model to ONNX, to a torch.export program, or to a web page that runs it; checked against PyTorch.

    Exit code 3 if the export does not match.
    """
    shape, arguments = None if size is None else sides(size), model_arguments(model_kwargs)
    if explorer:
        _explorer(checkpoint, arguments, output, shape, tolerance, force, as_json)
        return
    from tcnn.exporting.interface import check_axes, check_options, format_of, parse_axes, require_onnx
    from tcnn.files import check_file

    # Before torch is loaded: a wrong request is answered at once.
    kind = format_of(output, format)
    axes = () if fixed else parse_axes([name.strip() for name in dynamic.split(",") if name.strip()])
    check_axes(dynamic, fixed)
    check_options(shape, batch, tolerance)
    check_file(output, force)
    if kind == "onnx":
        require_onnx()

    with loading():
        from tcnn.checkpoints.opening import open_model
        from tcnn.exporting.export import export

    with console.steps(8, quiet=as_json) as progress:
        progress("reading")
        model = open_model(checkpoint, **arguments)
        report = export(
            model, output, kind, size=shape, batch=batch, dynamic=axes, opset=opset, tolerance=tolerance,
            force=force, progress=progress,
        )  # fmt: skip
    if as_json:
        console.print_json(report)
    else:
        console.stdout().print(str(report), markup=False, soft_wrap=True)


def _explorer(
    checkpoint: str, arguments: dict[str, Any], folder: Path, size: tuple[int, int] | None, tolerance: float,
    force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write the page."""
    from tcnn.exporting.interface import check_options, require_onnx
    from tcnn.files import check_folder

    check_options(size, 1, tolerance)
    check_folder(folder, force)
    require_onnx()
    with loading():
        from tcnn.checkpoints.opening import open_model
        from tcnn.explorer.export import export_explorer

    with console.steps(6, quiet=as_json) as progress:
        progress("reading")
        model = open_model(checkpoint, **arguments)
        report = export_explorer(model, folder, size=size, tolerance=tolerance, force=force, progress=progress)
    if as_json:
        console.print_json(report)
    else:
        console.stdout().print(str(report), markup=False, soft_wrap=True)
