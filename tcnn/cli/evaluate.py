"""`tcnn evaluate`: evaluate and compare models, at several sizes and under corruptions."""

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tcnn.cli.options import sizes
from tcnn.cli.options.renamed import model_arguments
from tcnn.cli.output import console
from tcnn.processes import keep_freed_memory, loading

if TYPE_CHECKING:
    from rich.console import Console

    from tcnn.evaluation.report import Comparison, Row


def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(help=console.ANY_MODEL, metavar="CKPT...", show_default=False),
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="CKPT, too, as timm's scripts name it; may be repeated.", metavar="CKPT"),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights", "--checkpoint", help="Load the weights of the one CKPT from this file.", metavar="FILE"
        ),
    ] = None,
    model_kwargs: Annotated[
        list[str] | None,
        typer.Option(help="Arguments of timm's create_model.", metavar="KEY=VALUE"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "--data-dir",
            "-d",
            help="Images: a folder, a .tar, hfds/…, torch/…, wds/…, ImageNet-C; default what a run was validated on.",
            metavar="DATASET",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Which part of the data set, where it has parts.")] = "val",
    size: Annotated[
        str | None,
        typer.Option("--size", "--img-size", help="Pixels: 224, or several as 160,224,320, or 224x160.", metavar="S"),
    ] = None,
    crop_pct: Annotated[
        float | None, typer.Option(help="The crop's share of the resized image; default the model's own.", metavar="F")
    ] = None,
    all_corruptions: Annotated[
        bool, typer.Option("--corruptions", help="Also under the fifteen ImageNet-C corruptions, made on the fly.")
    ] = False,
    corruption: Annotated[str | None, typer.Option(help="Only these corruptions: fog,snow.", metavar="NAMES")] = None,
    severities: Annotated[str, typer.Option(help="Of the corruptions.", metavar="LIST")] = "1,2,3,4,5",
    baseline: Annotated[
        str | None, typer.Option(help="mCE is relative to alexnet, or to one of CKPT.", metavar="NAME")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="auto, plain, imagenet-c, imagenet-a, imagenet-r.", metavar="NAME")
    ] = "auto",
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", help="Images of one forward pass.", metavar="N")
    ] = 64,
    workers: Annotated[int, typer.Option("--workers", "-j", help="Processes that load images.", metavar="N")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", metavar="D")] = "auto",
    amp: Annotated[str, typer.Option(help="float32, bfloat16 or float16.", metavar="DTYPE")] = "float32",
    channels_last: Annotated[bool, typer.Option("--channels-last", help="Images in channels-last order.")] = False,
    limit: Annotated[
        int | None, typer.Option(help="So many images only, the first of every class in turn.", metavar="N")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the corruptions.", metavar="N")] = 0,
    per_class: Annotated[bool, typer.Option("--per-class", help="Also the accuracy of every class.")] = False,
    examples: Annotated[
        int,
        typer.Option(
            help="In --json, name N images that a model gets wrong, or right and the first one not.", metavar="N"
        ),
    ] = 0,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write one line per model, size and corruption.", metavar="FILE")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--shape-bias", help="Shape or texture? Cue-conflict images, SHAPE/SHAPE1-TEXTURE2.png.", metavar="DIR"
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Of --shape-bias: a .png or .svg file.", metavar="FILE")
    ] = None,
    results_csv: Annotated[
        Path | None,
        typer.Option(
            "--results-csv", "--results-file", help="Write timm's columns, one line per model and size.", metavar="FILE"
        ),
    ] = None,
    result: Annotated[
        bool, typer.Option("--result", help="Print what timm's bulk_runner.py reads, and nothing else.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure top-1 and top-5 of checkpoints side by side: at several sizes, corrupted, on ImageNet-C, -A and -R."""
    from tcnn.config import build
    from tcnn.errors import RequestError
    from tcnn.evaluation.config import EvaluationConfig

    keep_freed_memory()
    models = [*(models or ()), *(named or ())]
    if not models:
        raise typer.BadParameter("missing; name one or several models", param_hint="CKPT...")
    arguments = model_arguments(model_kwargs or [])
    if weights is not None and len(models) > 1:
        raise RequestError("--weights: belong to one model; name one, or evaluate one after the other")
    for file in filter(None, (csv_file, results_csv, figure)):
        from tcnn.files import check_output

        check_output(file, force)  # before the work, not after hours of it
    config = build(
        EvaluationConfig,
        {
            "split": split, "layout": layout, "sizes": sizes.several(size), "crop_pct": crop_pct,
            "severities": tuple(_whole(s, "--severities") for s in _listed(severities)),
            "baseline": baseline, "batch_size": batch_size, "workers": workers, "device": device, "amp": amp,
            "channels_last": channels_last, "limit": limit, "seed": seed, "per_class": per_class,
            "examples": examples,
            "corruptions": _corruptions(all_corruptions, corruption),
        },
    )  # fmt: skip

    with loading():
        from tcnn.checkpoints.opening import open_model
        from tcnn.evaluation.comparison import compare
        from tcnn.evaluation.held_out import measured_by_default
        from tcnn.evaluation.report import csv_rows
        from tcnn.evaluation.timm_results import timm_rows

    opening = partial(open_model, weights=weights, say=_tell, **arguments)
    if shape is not None:
        from tcnn.cli.output.shape_bias import measure

        measure(models, shape, config, opening, figure, force, as_json)
        return
    data = measured_by_default(models) if data is None else data
    with _images(quiet=as_json or result) as progress:
        found = compare(models, data, config, progress, opening=opening)
    if result:
        rows = timm_rows(found)
        console.print_json_text("--result\n" + json.dumps(rows[0] if len(rows) == 1 else rows, indent=4))
    elif as_json:
        console.print_json(found)
    else:
        _show(found, console.stdout())
    if csv_file is not None:  # last: a full disk must not cost what took hours to measure
        _write_csv(list(csv_rows(found)), csv_file, force)
    if results_csv is not None:
        _write_csv(timm_rows(found), results_csv, force)


def _tell(note: str) -> None:
    if not console.silenced:
        typer.echo(f"note: {note}", err=True)


def _corruptions(every: bool, some: str | None) -> tuple[str, ...]:
    from tcnn.evaluation.corruptions import CORRUPTIONS

    return CORRUPTIONS if every else _listed(some or "")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _whole(text: str, option: str) -> int:
    from tcnn.errors import RequestError

    try:
        return int(text)
    except ValueError as error:
        raise RequestError(f"{option}: expected whole numbers, found {text!r}") from error


@contextmanager
def _images(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Progress bar on stderr that counts images; silent when stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    err = Console(stderr=True)
    columns: Any = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(
        *columns, console=err, transient=True, disable=quiet or console.silenced or not err.is_terminal
    ) as bar:
        task = bar.add_task("opening the data set", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _show(result: "Comparison", out: "Console") -> None:
    from rich.table import Table

    rows = result.rows
    corrupted = any(row.corruptions for row in rows)
    table = Table(title=f"{result.data}: {result.images} images", title_justify="left", box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    for name in (
        "parameters",
        "size",
        "top-1",
        "top-5",
        "loss",
        *(("corrupted", "mCE") if corrupted else ()),
        "images/s",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        shares = (_share(row.corruption_top1), _share(row.mce)) if corrupted else ()
        clean = row.clean
        scores = list(row.corruptions.values())
        speed = clean or next(iter(scores[0].severities.values()))
        table.add_row(
            row.model, console.scale(row.parameters), _size(row), _share(clean.top1 if clean else None),
            _share(clean.top5 if clean else None), f"{clean.loss:.3f}" if clean else "–", *shares,
            f"{speed.images_per_second:.0f}",
        )  # fmt: skip
    out.print(table)
    if corrupted:
        _show_corruptions(result, out)
    if any(row.clean and row.clean.per_class for row in rows):
        _show_classes(rows, out)
    _show_notes(result, out)


def _show_corruptions(result: "Comparison", out: "Console") -> None:
    from rich.table import Table

    table = Table(
        title="\ntop-1 under corruption" + (" (CE)" if result.baseline else ""), title_justify="left", box=None
    )
    table.pad_edge = False
    table.add_column("corruption")
    for row in result.rows:
        table.add_column(f"{row.model} {_size(row)}", justify="right", overflow="fold")
    for name in result.rows[0].corruptions:
        scores = [row.corruptions[name] for row in result.rows]
        table.add_row(name, *(_share(s.top1) + (f" ({_share(s.ce)})" if result.baseline else "") for s in scores))
    out.print(table)


def _show_classes(rows: "list[Row]", out: "Console") -> None:
    from rich.table import Table

    table = Table(title="\ntop-1 of every class", title_justify="left", box=None, pad_edge=False)
    table.add_column("class", overflow="fold")
    table.add_column("images", justify="right")
    for row in rows:
        table.add_column(f"{row.model} {_size(row)}", justify="right", overflow="fold")
    results = [row.clean.per_class if row.clean else {} for row in rows]
    for name in dict.fromkeys(name for result in results for name in result):
        images = next(result[name].images for result in results if name in result)
        table.add_row(name, str(images), *(_share(r[name].top1) if name in r else "–" for r in results))
    out.print(table)


def _show_notes(result: "Comparison", out: "Console") -> None:
    if result.held_out:
        out.print("measured on the images that training had held out, and on no others", markup=False)
    if result.trained_on:
        names = ", ".join(result.trained_on)
        out.print(f"trained on these images, so this tells nothing about others: {names}", markup=False)
    for row in {row.model: row for row in result.rows}.values():
        if row.classes < row.outputs:
            out.print(f"{row.model}: {row.classes} of its {row.outputs} classes compete", markup=False)
    if result.baseline is not None:
        whose = "AlexNet's (Hendrycks & Dietterich 2019)" if result.baseline == "alexnet" else f"{result.baseline}'s"
        out.print(f"CE is the error as a share of {whose}, mCE its mean over corruptions.", markup=False)
    worst = max(result.rows, key=lambda row: row.unreadable_count)
    if worst.unreadable_count:
        named = ", ".join(worst.unreadable[:3]) + (" …" if worst.unreadable_count > 3 else "")
        out.print(f"{worst.unreadable_count} images cannot be read and are left out: {named}", markup=False)


def _write_csv(lines: list[dict[str, Any]], file: Path, force: bool) -> None:
    from tcnn.files import replacing

    with replacing(file, force) as temporary, temporary.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _size(row: "Row") -> str:
    return f"{row.height}" if row.height == row.width else f"{row.height}×{row.width}"
