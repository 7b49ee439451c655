"""`tcnn convert`: convert a pretrained CNN into an equivalent T-CNN, in one file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcnn.cli.options.shared import (
    AsJson,
    Force,
    ModelKwargs,
    NetworkOrFiles,
    Pretrained,
    Tolerance,
    beginning,
    given,
    with_output,
)
from tcnn.cli.options.spellings import image_size, source_arguments
from tcnn.cli.output import console
from tcnn.errors import RequestError
from tcnn.processes import loading

if TYPE_CHECKING:
    from tcnn.workflows.pipeline import ConversionResult


def command(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A timm name, local-dir:PATH, hf-hub:ORG/NAME, a checkpoint of timm's train.py, or the run of a CNN "
            "trained with --no-convert.",
            metavar="MODEL",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Argument(help="A .safetensors file, or a directory for timm's hub layout.", metavar="OUT"),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="Load the source's weights from this safetensors or PyTorch file.", metavar="FILE"),
    ] = None,
    module: NetworkOrFiles = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="Pixels of the images that the network of --module is for: 32 or 224x160 (height × width); default "
            "224.",
            metavar="S",
        ),
    ] = None,
    model_kwargs: ModelKwargs = None,
    pretrained: Pretrained = True,
    stride: Annotated[
        str,
        typer.Option(
            help="keep: equivalent to the CNN; remove: run the last stage at stride 1, as in the paper; dilate: the "
            "same, with later kernels dilated, so that the pixels of the original map keep their values.",
            metavar="keep/remove/dilate",
        ),
    ] = "keep",
    stage: Annotated[int, typer.Option(help="Index of the stage, as in timm's out_indices; -1 is the last.")] = -1,
    target: Annotated[
        str | None, typer.Option(help="Convert the convolutions whose full dotted name matches.", metavar="REGEX")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Temperature τ: 1/46 (default) is the CNN, 1 is where the paper starts.", metavar="T"),
    ] = None,
    head_dim: Annotated[int | None, typer.Option(help="Width of a head's queries and keys.")] = None,
    content_heads: Annotated[
        int, typer.Option(help="Extra heads that attend by content alone; they contribute nothing at first.", min=0)
    ] = 0,
    query_key: Annotated[
        str, typer.Option(help="Initialisation of query and key weights: normal or mimetic.", metavar="normal/mimetic")
    ] = "normal",
    position: Annotated[
        str,
        typer.Option(
            help="How heads attend by position: isotropic, around a centre; quadratic, by a Gaussian of any shape; "
            "relative, by learned embeddings of shifts; relative-content, by these and the query's content.",
            metavar="KIND",
        ),
    ] = "isotropic",
    position_reach: Annotated[
        int | None,
        typer.Option(help="Largest shift with a relative embedding of its own; default 15.", metavar="PIXELS"),
    ] = None,
    content: Annotated[
        str,
        typer.Option(
            help="What content attention sees: global, window:W (W×W pixels) or pooled:R (means on an R×R grid); "
            "append ,unpadded to leave the padding out.",
            metavar="SCOPE",
        ),
    ] = "global",
    tolerance: Tolerance = None,
    num_classes: Annotated[int | None, typer.Option(help="Width of the classifier.", min=0)] = None,
    seed: Annotated[int, typer.Option(help="Seed of query and key weights, and of random source weights.", min=0)] = 0,
    device: Annotated[str, typer.Option(help="Device to compare the models on: cpu, cuda, cuda:1, mps.")] = "cpu",
    force: Force = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be converted; needs no weights.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replace the k×k convolutions of the last stage with attention that computes the same function, and verify it."""
    from tcnn.checkpoints.files import is_stored
    from tcnn.config import ConversionConfig, VerificationConfig, build
    from tcnn.zoo import catalogue

    model, output = with_output(model, output, module)
    name = beginning(model, module)
    chosen = given(
        input_size=image_size(size), stage=stage, stride=stride, content=content, content_heads=content_heads,
        query_key=query_key, seed=seed, temperature=temperature, head_dim=head_dim, target=target, position=position,
        position_reach=position_reach,
    )  # fmt: skip
    config = build(ConversionConfig, chosen)
    bounds = {} if tolerance is None else {"tolerance_float32": tolerance, "tolerance_float64": min(tolerance, 1e-10)}
    verification = build(VerificationConfig, {**bounds, "seed": seed})
    arguments = source_arguments(model_kwargs)
    if output is None and not dry_run:
        raise typer.BadParameter(
            "missing; name a .safetensors file or a directory, or give --dry-run", param_hint="OUT"
        )
    if dry_run and weights is not None and not weights.is_file():
        raise RequestError(f"--weights: {weights} is no file")
    if output is not None and not dry_run:
        from tcnn.files import check_output

        check_output(output, force)  # before torch is loaded: a wrong path is answered at once
    if not is_stored(name) and not Path(name).exists():
        catalogue.check(name, default_choice=stage == -1 and target is None)

    with loading():
        from tcnn.workflows import pipeline

    if dry_run or output is None:
        result = pipeline.plan(name, config, num_classes, **arguments)
    else:
        with console.steps(pipeline.STEPS, quiet=as_json) as progress:
            result = pipeline.convert_to_file(
                name, output, config, verification, pretrained=pretrained, weights=weights, num_classes=num_classes,
                device=device, force=force, progress=progress, **arguments,
            )  # fmt: skip
    if as_json:
        console.print_json(result)
    else:
        show(result)


def show(result: "ConversionResult") -> None:
    """Print the conversion as a table, and the verification in a few lines."""
    from rich.table import Table

    out = console.stdout()
    report = result.conversion
    table = Table(
        title=f"{result.model}: {report.stage if report.config.target else f'stage {report.stage}'}",
        title_justify="left",
    )
    for name, justify in (
        ("layer", "left"),
        ("was", "left"),
        ("channels", "right"),
        ("heads × width", "right"),
        ("parameters", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for layer in report.layers:
        kernel = "×".join(map(str, layer.kernel_size))
        stride = f" /{layer.stride[0]}" if max(layer.stride) > 1 else ""
        table.add_row(
            layer.name,
            f"{layer.source} {kernel}{stride}{f', {layer.groups} groups' if layer.groups > 1 else ''}",
            f"{layer.in_channels} → {layer.out_channels}",
            f"{layer.heads} × {layer.head_dim}",
            f"{console.scale(layer.parameters_before)} → {console.scale(layer.parameters_after)}",
        )
    out.print(table)
    for skipped in report.skipped:
        out.print(f"left alone: {skipped.name}: {skipped.reason}", markup=False)
    if report.config.position != "isotropic":
        out.print(f"positional attention: {report.config.position}")
    if report.config.content != "global":
        out.print(f"content attention: {report.config.content}")
    for note in dict.fromkeys(layer.note for layer in report.layers if layer.note):
        out.print(f"note: {note}")
    out.print(f"parameters: {console.scale(report.parameters_before)} → {console.scale(report.parameters_after)}")
    for note in result.notes:
        out.print(f"note: {note}", markup=False)
    if result.verification is not None:
        out.print(str(result.verification), markup=False)
    if result.output is not None:
        out.print(
            f"wrote {result.output} ({console.scale(result.bytes or 0)}B) in {result.seconds:.1f} s", markup=False
        )
