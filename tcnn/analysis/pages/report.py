"""`tcnn.report`: a run as one self-contained HTML file, without network access; its one script draws the charts.

It is made without torch from the files of the run's directory, unless images are given: their attention is computed.
What draws and fills the page is loaded where it is needed: its libraries are of the extra `plots`.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from pydantic import BaseModel

from tcnn.analysis.plots import require_plots
from tcnn.analysis.reading.evaluations import read_evaluation
from tcnn.analysis.reading.rundirs import Run, read_run
from tcnn.arguments import typed
from tcnn.errors import RequestError, TcnnError, one_line
from tcnn.files import check_file, path_of, write_atomically


class Page(str):
    """An HTML page; a notebook shows it in a frame."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<an HTML page of {len(self):,} characters>"

    def _repr_html_(self) -> str:
        return f'<iframe title="report" style="border: 0; width: 100%; height: 50em" srcdoc="{escape(self)}"></iframe>'


class Written(BaseModel):
    """Result of a report, as `tcnn report --json` prints it."""

    run: str
    report: str
    bytes: int
    missing: list[str]
    """What the report lacks, and why."""


@typed()
def report(
    run: str | Path,
    images: str | Path | None = None,
    evaluations: Sequence[str | Path] = (),
    names: Mapping[str, str] | None = None,
) -> Page:
    """Make the HTML report of a run, as a string that a notebook displays as a page.

    Args:
        run: a directory of `tcnn finetune`, of `tcnn convert`, or of a job of the service.
        images: an image or a folder of images, for attention maps; computing them loads torch.
        evaluations: files of `tcnn evaluate --json`, besides `evaluation*.json` in the directory.
        names: what the run, data sets and models are called that go by an id.

    Unreadable files are named on the page, and the rest is shown. Raises `RequestError` if there is no file of a run;
    `EnvironmentFailure` without the extra `plots`.
    """
    require_plots()
    found = _read(path_of(run, "run"), images, evaluations)
    if names:
        found.rename(names)
    return Page(_rendered(found))


def write(
    run: Path, file: Path, images: str | Path | None = None, evaluations: Sequence[Path] = (), force: bool = False
) -> Written:
    """Write `report` to a file; raises `OutputError`, before any work is done, and `StorageError` as well."""
    require_plots()
    if run.is_dir():  # else that is what is wrong
        check_file(file, force)
    found = _read(run, images, evaluations)
    page = _rendered(found).encode()
    write_atomically(file, page, force)
    return Written(run=str(run), report=str(file), bytes=len(page), missing=found.missing)


def _rendered(run: Run) -> str:
    from tcnn.analysis.pages.run_page import rendered

    return rendered(run)


def _read(path: Path, images: str | Path | None, evaluations: Iterable[str | Path]) -> Run:
    run = read_run(path)
    for file in evaluations:
        run.evaluations.append(read_evaluation(Path(file)))
    if images is not None:
        _inspect(run, images)
    elif run.inspection is None and not run.only_measured:
        run.missing.append("no inspect.json and no images: there are no attention maps (`tcnn report --images DIR`)")
    run.missing += [] if run.inspection is None else run.inspection.notes
    return run


def _inspect(run: Run, images: str | Path) -> None:
    if run.checkpoint is None:
        raise RequestError(f"{run.path}: attention maps need a checkpoint, and there is none; omit the images")
    from tcnn.analysis.inspect import inspect

    try:
        run.inspection = inspect(run.checkpoint, images)
    except TcnnError as error:
        run.missing.append(f"no attention maps: {one_line(error)}")
        return
    if left_out := len(run.inspection.unreadable):
        files = "1 file is not an image" if left_out == 1 else f"{left_out} files are not images"
        run.missing.append(f"{images}: {files}; skipped")
