"""Plots of training, attention and robustness; every function returns a matplotlib figure and opens no window.

Whether they can be drawn is asked here, before any work is done: their libraries are of the extra `plots`.
"""

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from tcnn.analysis.records import Inspection
from tcnn.errors import EnvironmentFailure, RequestError, shorten
from tcnn.files import path_of

if TYPE_CHECKING:
    from tcnn.analysis.plots.gallery import Gallery
    from tcnn.evaluation.comparing.report import Comparison

NEEDED = ("matplotlib", "jinja2", "PIL")


def has_plots() -> bool:
    """Whether plots can be drawn here."""
    return not _missing()


def require_plots() -> None:
    """Raise `EnvironmentFailure` if plots cannot be drawn here."""
    if missing := _missing():
        raise EnvironmentFailure(f'pictures need {" and ".join(missing)}, not installed: pip install "tcnn[plots]"')


def _missing() -> list[str]:
    return [name for name in NEEDED if find_spec(name) is None]


def plots(of: "Inspection | Comparison | str | Path") -> "Gallery":
    """Plot results: every plot by its name, displayed by a notebook, and written to files by `save`.

    Args:
        of: what `tcnn.inspect` or `tcnn.compare` returned; the directory of a run, whose training is drawn, and what
            was measured of it; or a file of `tcnn evaluate --json`.

    Raises: `RequestError` for anything else; `EnvironmentFailure` without the extra `plots`.
    """
    require_plots()
    from tcnn.analysis.plots import gallery
    from tcnn.analysis.reading.evaluations import EvaluationFile, read_evaluation
    from tcnn.analysis.reading.rundirs import read_run

    if isinstance(of, Inspection):
        return gallery.Gallery(gallery.inspection_plots(of))
    if isinstance(of, BaseModel):  # a Comparison is known by its fields: its module loads torch
        with suppress(ValidationError):
            return gallery.Gallery(gallery.evaluation_plots(EvaluationFile.model_validate(of.model_dump()).rows))
    if not isinstance(of, str | Path):
        raise RequestError(
            "plots: expected what tcnn.inspect or tcnn.compare returned, a run's directory, or a file of "
            "`tcnn evaluate --json`, found "
            f"{shorten(repr(of), 60)}"
        )
    path = path_of(of, "plots")
    if path.is_file():
        return gallery.Gallery(gallery.evaluation_plots(read_evaluation(path).rows))
    run = read_run(path)
    drawn = [*gallery.training_plots(run.metrics)]
    if run.inspection is not None:
        drawn += gallery.inspection_plots(run.inspection)
    for evaluated in run.evaluations:
        drawn += gallery.evaluation_plots(evaluated.rows)
    return gallery.Gallery(drawn)
