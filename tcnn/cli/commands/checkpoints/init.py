"""`tcnn init`: a vision transformer whose attention begins as convolutions, in a file that timm loads."""

from pathlib import Path
from typing import Annotated

import typer

from tcnn.cli.options.shared import AsJson, Force, given
from tcnn.cli.output import console
from tcnn.errors import RequestError
from tcnn.processes import loading


def command(
    model: Annotated[
        str, typer.Argument(help="A network of timm: vit_*, deit_*, convit_*, convmixer_*.", metavar="MODEL")
    ],
    output: Annotated[
        Path, typer.Argument(help="A .safetensors file, or a directory for timm's hub layout.", metavar="OUT")
    ],
    init: Annotated[
        str | None,
        typer.Option(
            help="impulse: every head (of a ConvMixer every filter) looks at one random offset; mimetic: at tokens "
            "like its own; convolution, random: a ConViT's positions; default: timm's. "
            "If not given, impulse or convolution.",
            metavar="KIND",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="impulse: offsets lie in a window of so many patches, odd; default 3.", metavar="W"),
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(help="impulse: mean attention weight of the patch at the offset; default 0.5.", metavar="P"),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            help="What patches' positional embedding becomes: fourier features, or as timm made it; default fourier, "
            "and keep with --init default.",
            metavar="fourier/keep",
        ),
    ] = None,
    locality: Annotated[
        float | None,
        typer.Option(help="convolution: locality strength α of every head; default 1.", metavar="A"),
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="Number of heads; of a ConViT a square, which its width grows with.", min=1)
    ] = None,
    size: Annotated[int | None, typer.Option(help="Side of the images in pixels.", min=1, metavar="PIXELS")] = None,
    patch_size: Annotated[
        int | None, typer.Option(help="Side of a patch in pixels, for small images.", min=1, metavar="PIXELS")
    ] = None,
    num_classes: Annotated[int | None, typer.Option(help="Width of the classifier.", min=0, metavar="N")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all that is random.", min=0)] = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write an untrained network whose attention (or filters) begins as convolutions, random impulses, or mimetic.

    Train a directory with `tcnn finetune local-dir:OUT --no-convert`, a file with timm's train.py as its
    --initial-checkpoint; timm.create_model takes either.
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
