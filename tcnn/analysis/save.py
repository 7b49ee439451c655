"""Write an inspection to a directory: inspect.json and all plots."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tcnn.analysis.plots import gallery, style
from tcnn.analysis.reading.evaluations import EvaluatedRow
from tcnn.analysis.records import Inspection
from tcnn.files import make_directory, replacing


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
    written = []
    drawn = chain(gallery.training_plots(metrics), gallery.inspection_plots(found), gallery.evaluation_plots(evaluated))
    for picture in drawn:
        written += style.write(picture.figure, out / picture.name, kinds, force)
    with replacing(out / "inspect.json", force) as temporary:
        temporary.write_text(found.model_dump_json(indent=1), encoding="utf-8")
    return [*written, out / "inspect.json"]
