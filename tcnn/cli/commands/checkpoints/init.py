"""`tcnn init`: a vision transformer whose attention begins as convolutions, in a file that timm loads."""

from pathlib import Path
from typing import Annotated

import typer

from tcnn.cli.options.shared import AsJson, Force, given
from tcnn.cli.output import console
from tcnn.errors import RequestError
from tcnn.processes import loading


def command(
    model: Annotated[str, typer.Argument(help="A timm name: vit_*, deit_*, convit_* or convmixer_*.", metavar="MODEL")],
    output: Annotated[
        Path, typer.Argument(help="A .safetensors file, or a directory for timm's hub layout.", metavar="OUT")
    ],
    init: Annotated[
        str | None,
        typer.Option(
            help="impulse: every head (ConvMixer: every filter) attends to one random offset; mimetic: to similar "
            "tokens; convolution, random: positions of a ConViT; default: timm's initialisation. "
            "If not given: convolution for a ConViT, else impulse.",
            metavar="KIND",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="impulse: side of the window of offsets in patches, odd; default 3.", metavar="W"),
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(help="impulse: mean attention weight of the patch at the offset; default 0.5.", metavar="P"),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            help="Positional embedding of the patches: fourier features, or keep timm's; default: fourier, or keep "
            "with --init default.",
            metavar="fourier/keep",
        ),
    ] = None,
    locality: Annotated[
        float | None,
        typer.Option(help="convolution: locality strength α of every head; default 1.", metavar="A"),
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(help="Number of heads; for a ConViT a square number, and the width grows with it.", min=1),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Side of the images in pixels.", min=1, metavar="PIXELS")] = None,
    patch_size: Annotated[
        int | None, typer.Option(help="Side of a patch in pixels, for small images.", min=1, metavar="PIXELS")
    ] = None,
    num_classes: Annotated[int | None, typer.Option(help="Width of the classifier.", min=0, metavar="N")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write an untrained network whose attention (or filters) starts as convolutions, random impulses, or mimetic.

    Train a directory with `tcnn finetune local-dir:OUT --no-convert`, or pass a file to timm's train.py as
    --initial-checkpoint; timm.create_model loads either.
    """
    init = init or ("convolution" if model.startswith("convit") else "impulse")
    aims = given(window=window, peak=peak)
    if init != "impulse" and aims:
        raise RequestError(f"--{next(iter(aims))}: only --init impulse has offsets, and --init {init} was asked for")
    if locality is not None:
        if init != "convolution":
            raise RequestError(f"--locality: only --init convolution has a strength, and --init {init} was asked for")
        aims["locality"] = locality
    with loading():
        from tcnn.vit.initialise import initialise_file

    arguments = given(img_size=size, patch_size=patch_size, num_classes=num_classes, num_heads=heads)
    with console.steps(12, quiet=as_json) as step:
        report = initialise_file(
            model, output, init, force, step, arguments, seed=seed, positions=positions, **aims,  # type: ignore[arg-type]
        )  # fmt: skip
    if as_json:
        console.print_json(report)
    else:
        console.stdout().print(f"{report}\nwrote {output}", markup=False)
