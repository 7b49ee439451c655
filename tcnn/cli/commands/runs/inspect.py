"""`tcnn inspect`: measures, attention maps and plots of the attention layers."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcnn.cli.options.shared import AnyCheckpoint, AsJson, DeviceName, Evaluations, Network
from tcnn.cli.options.spellings import image_size
from tcnn.cli.output import console
from tcnn.errors import RequestError
from tcnn.formatting import some
from tcnn.processes import loading

if TYPE_CHECKING:
    from tcnn.analysis.plots.style import Format
    from tcnn.analysis.records import Inspection

KINDS: "tuple[Format, ...]" = ("png", "svg")


def command(
    model: AnyCheckpoint,
    images: Annotated[str | None, typer.Option(help="An image, or a folder of images.", metavar="DIR")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write inspect.json and pictures into this directory.", metavar="DIR")
    ] = None,
    query: Annotated[
        str, typer.Option(help="Query pixel of the maps, as fractions of height and width.", metavar="Y,X")
    ] = "0.5,0.5",
    against: Annotated[
        list[str] | None, typer.Option(help="Another model to measure on the same images; repeatable.", metavar="MODEL")
    ] = None,
    evaluation: Evaluations = None,
    limit: Annotated[int, typer.Option(help="Number of images to measure.", metavar="N", min=1)] = 32,
    shown: Annotated[int, typer.Option(help="Number of images to draw maps of.", metavar="N", min=0)] = 3,
    size: Annotated[str | None, typer.Option(help="Pixels: 224 or 224x160 (height × width).", metavar="S")] = None,
    formats: Annotated[str, typer.Option("--format", help="Picture formats: png, svg.", metavar="LIST")] = "png,svg",
    module: Network = None,
    device: DeviceName = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output of an earlier inspection.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure and plot gate, span, centre, non-locality, entropy and attention maps of every head."""
    from tcnn.analysis.plots import require_plots
    from tcnn.analysis.reading.rundirs import checkpoint_of, metrics_beside
    from tcnn.files import check_output, directory_for

    kinds = _formats(formats)
    place = _query(query)
    if out is not None:
        require_plots()
    with nullcontext() if out is None else directory_for(out):
        if out is not None:
            check_output(out / "inspect.json", force)  # before the work, not after minutes of it
        from tcnn.analysis.reading.evaluations import read_evaluation

        evaluations = [read_evaluation(file) for file in evaluation or ()]
        source, shape = checkpoint_of(model), image_size(size)

        with loading():
            from tcnn.analysis.inspect import inspect

        found = inspect(
            source, images, place, against=[checkpoint_of(name) for name in against or ()], limit=limit, shown=shown,
            size=shape, device=device,
        )  # fmt: skip
        written: list[Path] = []
        if out is not None:
            from tcnn.analysis.plots.gallery import save

            rows = [row for each in evaluations for row in each.rows]
            written = save(found, out, metrics_beside(source), rows, kinds, force)
    if as_json:
        console.print_json(found)
    else:
        _show(found, written, out)


def _formats(text: str) -> "tuple[Format, ...]":
    kinds = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if not kinds or set(kinds) - set(KINDS):
        raise RequestError(f"--format: expected png, svg or both, found {text!r}")
    return tuple(kind for kind in KINDS if kind in kinds)


def _query(text: str) -> tuple[float, float]:
    try:
        y, x = (float(part) for part in text.split(","))
    except ValueError:
        y = x = -1.0
    if not (0 <= y <= 1 and 0 <= x <= 1):
        raise RequestError(
            f"--query: expected two shares between 0 and 1, such as 0.5,0.25 (height, width), found {text!r}"
        )
    return y, x


def _show(found: "Inspection", written: list[Path], out: Path | None) -> None:
    from rich.table import Table

    from tcnn.analysis.records import UNITS

    printed = console.stdout()
    first, *rows = found.rows()
    table = Table(title=found.title, title_justify="left", box=None, pad_edge=False)
    for name in first:
        table.add_column(
            name, overflow="fold" if name == "layer" else "ellipsis", justify="left" if name == "layer" else "right"
        )
    for row in rows:
        table.add_row(*row)
    printed.print(table)
    printed.print(UNITS, markup=False)
    for name in found.unreadable:
        printed.print(f"left out, no image: {name}", markup=False)
    for note in found.notes:
        printed.print(note, markup=False)
    if written:
        printed.print(f"wrote {some(len(written), 'file')} to {out}", markup=False)
