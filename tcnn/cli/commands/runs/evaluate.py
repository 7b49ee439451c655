"""`tcnn evaluate`: evaluate and compare models, at several sizes and under corruptions."""

import csv
import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tcnn.cli.options.shared import ANY_MODEL, Amp, AsJson, CropPct, DeviceName, ModelKwargs, Network
from tcnn.cli.options.spellings import model_arguments, several_sizes
from tcnn.cli.output import console
from tcnn.errors import RequestError
from tcnn.processes import keep_freed_memory, loading


def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(help=ANY_MODEL, metavar="CKPT...", show_default=False),
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Same as CKPT, as in timm's scripts; repeatable.", metavar="CKPT"),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights", "--checkpoint", help="Load the weights of a single CKPT from this file.", metavar="FILE"
        ),
    ] = None,
    model_kwargs: ModelKwargs = None,
    module: Network = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "--data-dir",
            "-d",
            help="Images: a folder, a .tar, hfds/…, torch/…, wds/…, ImageNet-C; default: what a run was validated on.",
            metavar="DATASET",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Split of the data set, if it has splits; default: val, or what a run has held out of train.",
            metavar="NAME",
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--size", help="Pixels: 224, 224x160 (height × width), or several: 160,224,320.", metavar="S"),
    ] = None,
    crop_pct: CropPct = None,
    all_corruptions: Annotated[
        bool,
        typer.Option(
            "--corruptions", help="Also measure under the fifteen ImageNet-C corruptions, applied on the fly."
        ),
    ] = False,
    corruption: Annotated[
        str | None, typer.Option(help="Only these corruptions, such as fog,snow.", metavar="NAMES")
    ] = None,
    severities: Annotated[str, typer.Option(help="Severities of the corruptions.", metavar="LIST")] = "1,2,3,4,5",
    baseline: Annotated[
        str | None, typer.Option(help="Baseline of mCE: alexnet, or one of the CKPT.", metavar="NAME")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="auto, plain, imagenet-c, imagenet-a, imagenet-r.", metavar="NAME")
    ] = "auto",
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="Images per forward pass.", metavar="N")] = 64,
    workers: Annotated[int, typer.Option("--workers", "-j", help="Processes that load images.", metavar="N")] = 0,
    device: DeviceName = "auto",
    amp: Amp = "float32",
    channels_last: Annotated[bool, typer.Option("--channels-last", help="Use channels-last memory format.")] = False,
    limit: Annotated[
        int | None, typer.Option(help="Use at most N images, the first of every class in turn.", metavar="N")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the corruptions.", metavar="N")] = 0,
    per_class: Annotated[bool, typer.Option("--per-class", help="Also report the accuracy of every class.")] = False,
    examples: Annotated[
        int,
        typer.Option(
            help="With --json, list N images that a model gets wrong, or right where the first model does not.",
            metavar="N",
        ),
    ] = 0,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write one line per model, size and corruption.", metavar="FILE")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--shape-bias",
            help="Measure shape bias instead, on cue-conflict images SHAPE/SHAPE1-TEXTURE2.png.",
            metavar="DIR",
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Plot of --shape-bias: a .png or .svg file.", metavar="FILE")
    ] = None,
    results_csv: Annotated[
        Path | None,
        typer.Option(
            "--results-csv", "--results-file", help="Write timm's columns, one line per model and size.", metavar="FILE"
        ),
    ] = None,
    result: Annotated[
        bool, typer.Option("--result", help="Print only the JSON that timm's bulk_runner.py reads.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare top-1 and top-5 of checkpoints: at several sizes, under corruptions, on ImageNet-C, -A and -R."""
    from tcnn.config import build
    from tcnn.config.evaluation import EvaluationConfig

    keep_freed_memory()
    models = [*(models or ()), *(named or ())] or ([] if module is None else [module])
    if not models:
        raise typer.BadParameter(
            "missing; name one or several models, or what builds one with --module", param_hint="CKPT..."
        )
    arguments = model_arguments(model_kwargs)
    if outputs := [file for file in (csv_file, results_csv, figure) if file is not None]:
        from tcnn.files import check_files

        check_files(outputs, force)  # before the work, not after hours of it
    config = build(
        EvaluationConfig,
        {
            "split": split, "layout": layout, "sizes": several_sizes(size), "crop_pct": crop_pct,
            "severities": tuple(_whole(s, "--severities") for s in _listed(severities)),
            "baseline": baseline, "batch_size": batch_size, "workers": workers, "device": device, "amp": amp,
            "channels_last": channels_last, "limit": limit, "seed": seed, "per_class": per_class,
            "examples": examples,
            "corruptions": _corruptions(all_corruptions, corruption),
        },
    )  # fmt: skip

    with loading():
        from tcnn.checkpoints.opening import open_model, weights_of_one
        from tcnn.evaluation.comparing.comparison import compare
        from tcnn.evaluation.comparing.report import csv_rows, notes, tables, timm_rows
        from tcnn.models.precision import emulated
        from tcnn.models.running import usable_device

    if slow := emulated(config.amp, usable_device(config.device)):
        console.note(slow)
    opening = partial(open_model, say=console.note, **arguments)
    if shape is not None:
        from tcnn.cli.output.shape_bias import measure

        if weights is not None:
            opening = partial(opening, weights=weights_of_one(models, weights))
        measure(models, shape, config, opening, figure, force, as_json)
        return
    with console.images(quiet=as_json or result) as progress:
        found = compare(models, data, config, progress=progress, opening=opening, weights=weights)
    if result:
        rows = timm_rows(found)
        console.print_json_text("--result\n" + json.dumps(rows[0] if len(rows) == 1 else rows, indent=4))
    elif as_json:
        console.print_json(found)
    else:
        console.print_tables(tables(found), notes(found))
    if csv_file is not None:  # last: a full disk must not cost what took hours to measure
        _write_csv(list(csv_rows(found)), csv_file, force)
    if results_csv is not None:
        _write_csv(timm_rows(found), results_csv, force)


def _corruptions(every: bool, some: str | None) -> tuple[str, ...]:
    from tcnn.evaluation.corruptions import CORRUPTIONS

    return CORRUPTIONS if every else _listed(some or "")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _whole(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise RequestError(f"{option}: expected whole numbers, found {text!r}") from error


def _write_csv(lines: list[dict[str, Any]], file: Path, force: bool) -> None:
    from tcnn.files import replacing

    with replacing(file, force) as temporary, temporary.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
