"""All plots for a run, an inspection or an evaluation, by file name, or written as files beside the inspection."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from tcnn.analysis.plots import centres, locality, maps, robustness, style, training
from tcnn.analysis.reading.evaluations import EvaluatedRow, improved, titles
from tcnn.analysis.records import Inspection
from tcnn.files import check_output, make_directory, path_of, write_atomically
from tcnn.formatting import distinct


class NamedPlot(NamedTuple):
    """A plot with its file name and caption."""

    name: str
    """File name without suffix."""
    caption: str
    figure: Figure

    def _repr_png_(self) -> bytes:
        """What a notebook shows."""
        return style.png(self.figure)


class Gallery(Mapping[str, NamedPlot]):
    """Plots by name, in the order in which they were drawn; a notebook shows all of them."""

    def __init__(self, drawn: Iterable[NamedPlot]) -> None:
        self._plots = {plot.name: plot for plot in drawn}

    def __getitem__(self, name: str) -> NamedPlot:
        return self._plots[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plots)

    def __len__(self) -> int:
        return len(self._plots)

    def __repr__(self) -> str:
        return "\n".join(f"{plot.name}: {plot.caption}" for plot in self.values())

    def _repr_html_(self) -> str:
        return "".join(
            f'<figure><img alt="{escape(plot.caption)}" style="max-width: 100%" src="data:image/png;base64,'
            f'{b64encode(style.png(plot.figure)).decode()}"><figcaption>{escape(plot.caption)}</figcaption></figure>'
            for plot in self.values()
        )

    def save(
        self, folder: str | Path, kinds: Sequence[style.Format] = ("png", "svg"), force: bool = False
    ) -> list[Path]:
        """Write every plot into a folder, NAME.png and NAME.svg.

        Raises: `OutputError` for a file that exists, unless `force`; `StorageError`.
        """
        into = path_of(folder, "folder")
        make_directory(into)
        return [file for plot in self.values() for file in style.write(plot.figure, into / plot.name, kinds, force)]


def training_plots(rows: training.Rows) -> Iterator[NamedPlot]:
    """Plots of metrics.jsonl."""
    yield from _if("training", "Accuracy, loss and temperature after every epoch.", lambda: training.progress(rows))
    yield from head_plots(rows)


def head_plots(rows: training.Rows) -> Iterator[NamedPlot]:
    """Plots of every head in metrics.jsonl."""
    caption = (
        "Attention span and gate of every head of the taps after every epoch: how far the layers have moved from "
        "convolution."
    )
    yield from _if("gates-and-spans", caption, lambda: training.gates_and_spans(rows))


def inspection_plots(found: Inspection) -> Iterator[NamedPlot]:
    """Plots of an inspection."""
    caption = (
        "Where each head looks from the query: its centre, and circles with 50 % and 90 % of its positional weight."
    )
    yield from _if("centres", caption, lambda: centres.centres(found.layers))
    yield NamedPlot(
        "non-locality",
        "How far and how widely the heads of each layer look: combined, by content alone, by position alone.",
        locality.non_locality(found.layers),
    )
    if found.against:
        models = [(found.model, found.layers), *((other.model, other.layers) for other in found.against)]
        named = [*zip(distinct(name for name, _ in models), (layers for _, layers in models), strict=True)]
        caption = "How far each layer looks, compared with other models."
        yield from _if("non-locality-compared", caption, lambda: locality.compared(named))
    parts: tuple[maps.Part, ...] = ("combined", "content", "positional")
    for number, picture in enumerate(found.pictures, 1):
        for part in parts:
            pages = maps.maps(picture, part)
            for page, figure in enumerate(pages, 1):
                end = f"-{page}" if len(pages) > 1 else ""
                caption = f"What every head attends to in {picture.name}" + (
                    "." if part == "combined" else f", {part} part."
                )
                yield NamedPlot(f"attention-{number}-{part}{end}", caption, figure)


def evaluation_plots(rows: Sequence[EvaluatedRow]) -> Iterator[NamedPlot]:
    """Plots of an evaluation."""
    yield from corruption_plots(rows)
    caption = "Accuracy by size of the test images."
    yield from _if("resolution", caption, lambda: robustness.resolution(rows))


def corruption_plots(rows: Sequence[EvaluatedRow]) -> Iterator[NamedPlot]:
    """Plots of what one model gains over another under corruptions, one for every size."""
    pairs, called = improved(rows), titles(row.model for row in rows)
    models = list(dict.fromkeys(after.model for _, after in pairs))
    several = len({after.size for _, after in pairs}) > 1
    for before, after in pairs:
        end = f"-{models.index(after.model) + 1}" if len(models) > 1 else ""
        name = f"corruptions{end}" + (f"-{after.size.replace('×', 'x')}" if several else "")
        at = f" at {after.size} pixels" if several else ""
        caption = f"Gain of {called[after.model]} over {called[before.model]} under corruptions{at}."
        yield from _if(name, caption, partial(robustness.improvement, before, after, called, at))


def _if(name: str, caption: str, draw: Callable[[], Figure | None]) -> Iterator[NamedPlot]:
    figure = draw()
    if figure is not None:
        yield NamedPlot(name, caption, figure)


def save(
    found: Inspection,
    out: Path,
    metrics: Sequence[Mapping[str, Any]] = (),
    evaluated: Sequence[EvaluatedRow] = (),
    kinds: Sequence[style.Format] = ("png", "svg"),
    force: bool = False,
) -> list[Path]:
    """Write an inspection into a new directory; plots first, so that inspect.json says that all are there.

    Args:
        metrics: lines of a run's metrics.jsonl.
        evaluated: rows of `tcnn evaluate --json`.

    Raises: `OutputError` for a file that exists, unless `force`; `StorageError`.
    """
    make_directory(out)
    files: list[Path] = []

    def new(file: Path) -> Path:
        check_output(file, force)
        files.append(file)  # before it is written: an interrupt may come when it has its name
        return file

    drawn = chain(training_plots(metrics), inspection_plots(found), evaluation_plots(evaluated))
    try:
        for picture in drawn:
            for kind in kinds:
                style.write(picture.figure, new(out / f"{picture.name}.{kind}").with_suffix(""), (kind,), force)
        write_atomically(new(out / "inspect.json"), found.model_dump_json(indent=1), force)
    except BaseException:
        if not force:  # all of them are new, and would be in the way of the next attempt
            for file in files:
                file.unlink(missing_ok=True)
        raise
    return files
