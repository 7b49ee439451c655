"""`tcnn predict`: what images show, by one model, or by a T-CNN and the CNN that it was made from side by side."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tcnn.cli.options.shared import Amp, AnyCheckpoint, AsJson, CropPct, DeviceName, ModelKwargs, Network
from tcnn.cli.options.spellings import image_size, model_arguments, sides
from tcnn.cli.output import console
from tcnn.errors import RequestError
from tcnn.formatting import some
from tcnn.processes import keep_freed_memory, loading

if TYPE_CHECKING:
    from rich.console import Console

    from tcnn.evaluation.predict import Prediction, PredictionReport


def command(
    model: AnyCheckpoint,
    images: Annotated[list[str], typer.Argument(help="Image files or folders of images.", metavar="IMAGE...")],
    compare: Annotated[
        str | None, typer.Option(help="Another model to compare with, such as the source CNN.", metavar="CKPT")
    ] = None,
    model_kwargs: ModelKwargs = None,
    module: Network = None,
    top: Annotated[int, typer.Option(help="Classes to show per image.", min=1, metavar="N")] = 5,
    size: Annotated[str | None, typer.Option("--size", help="Pixels: 224 or 224x160.", metavar="S")] = None,
    crop_pct: CropPct = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", help="Images per forward pass.", min=1, metavar="N")
    ] = 32,
    device: DeviceName = "auto",
    amp: Amp = "float32",
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write one line per prediction.", metavar="FILE")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --csv.")] = False,
    as_json: AsJson = False,
) -> None:
    """Classify images: print the most probable classes, by one model or by two side by side."""
    keep_freed_memory()
    if force and csv_file is None:
        raise RequestError("--force: there is no --csv FILE to replace")
    if compare == model:
        raise RequestError(f"--compare: {model} is the model itself; name another one")
    arguments = model_arguments(model_kwargs)
    if amp not in ("float32", "bfloat16", "float16"):
        raise RequestError(f"--amp: expected float32, bfloat16 or float16, found {amp!r}")
    if csv_file is not None:
        from tcnn.files import check_file

        check_file(csv_file, force)
    with loading():
        from tcnn.checkpoints.opening import open_model
        from tcnn.data.sources.folder import image_files
        from tcnn.evaluation.predict import class_names, predict, side_by_side
        from tcnn.models.precision import emulated
        from tcnn.models.running import usable_device
        from tcnn.models.trace import output_count

    image_files(images, console.note)  # what is not there is told before a model is loaded
    place = usable_device(device)
    if slow := emulated(amp, place):
        console.note(slow)
    names = [model] if compare is None else [model, compare]
    pixels = None if size is None else sides(size)
    found: dict[str, list[Prediction]] = {}
    classes: dict[str, tuple[str, ...]] = {}
    with console.steps(len(names), quiet=as_json) as step:
        for name in names:
            step(name)
            opened = open_model(name, **(arguments if name == model else {}))
            classes[name] = class_names(opened, output_count(opened, pixels) or 0)
            found[name] = predict(
                opened, images, top=top, size=image_size(size), crop_pct=crop_pct,
                batch_size=batch_size, device=place, amp=amp,  # type: ignore[arg-type]
            )  # fmt: skip
    unread = [prediction for prediction in found[model] if prediction.unreadable]
    if len(unread) == len(found[model]):
        raise RequestError(f"no image could be read: {unread[0].file} ({unread[0].unreadable})")
    if not any(prediction.guesses for prediction in found[model]):
        raise RequestError(f"{model}: its output is NaN or infinite for every image, as after a training that diverged")
    report = side_by_side(found, classes)
    if as_json:
        console.print_json(report)
    else:
        _show(report, console.stdout())
    if csv_file is not None:
        _write_csv(found, csv_file, force)


def _show(report: "PredictionReport", out: "Console") -> None:
    from rich.markup import escape
    from rich.table import Table

    from tcnn.evaluation.outcomes import NOT_FINITE

    table = Table(box=None, pad_edge=False)
    table.add_column("image", overflow="fold")
    for answers in report.models:
        table.add_column(escape(answers.model) if len(report.models) > 1 else "class", overflow="fold")
        table.add_column("", justify="right")
    for predictions in zip(*(answers.images for answers in report.models), strict=True):
        first = predictions[0]
        if first.unreadable:
            table.add_row(escape(first.file), f"cannot be read: {escape(first.unreadable)}")
        for place in range(max(len(prediction.guesses) or prediction.not_finite for prediction in predictions)):
            cells = [escape(first.file) if place == 0 else ""]
            for prediction in predictions:
                guess = prediction.guesses[place] if place < len(prediction.guesses) else None
                nothing = NOT_FINITE if prediction.not_finite and place == 0 else ""
                cells += [escape(guess.name), f"{guess.probability:.1%}"] if guess else [nothing, ""]
            table.add_row(*cells)
    out.print(table)
    if len(report.models) == 2 and report.compared is None:
        out.print("the models have different classes, so their predictions are not compared", markup=False)
    if report.compared is not None:
        out.print(
            f"the same first answer on {report.same_first_guess} of {some(report.compared, 'image')}", markup=False
        )


def _write_csv(found: "dict[str, list[Prediction]]", file: Path, force: bool) -> None:
    from tcnn.evaluation.outcomes import NOT_FINITE
    from tcnn.files import replacing

    fields = ("model", "file", "rank", "index", "name", "probability", "unreadable")
    with replacing(file, force) as temporary, temporary.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, fields)
        writer.writeheader()
        for model, predictions in found.items():
            for prediction in predictions:
                line: dict[str, Any] = {"model": model, "file": prediction.file}
                if prediction.unreadable:
                    writer.writerow(line | {"unreadable": prediction.unreadable})
                if prediction.not_finite:
                    writer.writerow(line | {"name": NOT_FINITE})
                for rank, guess in enumerate(prediction.guesses, 1):
                    writer.writerow(line | {"rank": rank, **guess.model_dump()})
