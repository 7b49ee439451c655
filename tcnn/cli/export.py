"""`tcnn export`: export a checkpoint to ONNX or torch.export."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcnn.cli.output import console
from tcnn.processes import loading

if TYPE_CHECKING:
    from tcnn.exporting.report import ExportReport


def command(
    checkpoint: Annotated[str, typer.Argument(help=console.T_CNN, metavar="CKPT")],
    output: Annotated[Path, typer.Argument(help="A .onnx or .pt2 file.", metavar="OUT")],
    format: Annotated[
        str | None, typer.Option(help="onnx or torch; default: by OUT's suffix.", metavar="FORMAT")
    ] = None,
    opset: Annotated[int, typer.Option(help="ONNX opset.", metavar="N")] = 18,
    size: Annotated[
        str | None, typer.Option(help="Pixels of the example; default: the model's own.", metavar="HxW")
    ] = None,
    batch: Annotated[int, typer.Option(help="Images of the example.", metavar="N")] = 1,
    dynamic: Annotated[
        str, typer.Option(help="Axes that stay free, where the model allows it.", metavar="AXES")
    ] = "batch,height,width",
    fixed: Annotated[bool, typer.Option("--fixed", help="No free axis: the example's shape only.")] = False,
    tolerance: Annotated[float, typer.Option(help="Largest relative error of the logits.", metavar="E")] = 1e-5,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a model as ONNX or as a torch.export program, checked against PyTorch; exit code 3 if it differs."""
    from tcnn.exporting.options import check_axes, check_options, format_of, parse_axes, parse_size, require_onnx
    from tcnn.files import check_output

    # Before torch is loaded: a wrong request is answered at once.
    kind = format_of(output, format)
    shape = None if size is None else parse_size(size)
    axes = () if fixed else parse_axes([name.strip() for name in dynamic.split(",") if name.strip()])
    check_axes(dynamic, fixed)
    check_options(shape, batch, tolerance)
    check_output(output, force)
    if kind == "onnx":
        require_onnx()

    with loading():
        from tcnn.checkpoints.opening import open_model
        from tcnn.exporting.export import export

    with console.steps(8, quiet=as_json) as progress:
        progress("reading")
        model = open_model(checkpoint)
        report = export(
            model, output, kind, size=shape, batch=batch, dynamic=axes, opset=opset, tolerance=tolerance,
            force=force, progress=progress,
        )  # fmt: skip
    if as_json:
        console.print_json(report)
    else:
        _show(report)


def _show(report: "ExportReport") -> None:
    """Print the axes, every check, and what was written."""
    out = console.stdout()
    parts = [f"{axis.name} {f'from {axis.minimum}' if axis.dynamic else f'{axis.size} only'}" for axis in report.axes]
    out.print(f"takes {', '.join(parts)}", markup=False)
    for check in report.checks:
        out.print(
            f"same on {'×'.join(map(str, check.shape))}: relative error {check.error.worst:.1e}, "
            f"top-1 agreement {check.top1_agreement:.0%}",
            markup=False,
        )
    for note in report.notes:
        out.print(f"note: {note}", markup=False, soft_wrap=True)
    kind = f"ONNX, opset {report.opset}" if report.format == "onnx" else "torch.export program"
    out.print(f"wrote {report.output} ({kind}, {console.scale(report.bytes)}B) in {report.seconds:.1f} s", markup=False)
