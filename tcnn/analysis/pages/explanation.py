"""The page of `tcnn verify --explain`: why two models differ, as one HTML file without network access or scripts."""

from pathlib import Path

from tcnn.analysis.pages.page import pictures, template
from tcnn.analysis.plots import departures
from tcnn.analysis.plots.gallery import NamedPlot
from tcnn.files import replacing
from tcnn.verification.explain import Explanation
from tcnn.version import __version__


def page(found: Explanation, reference: str, candidate: str) -> str:
    """The page, as a string; the models by their names."""
    drawn = [
        NamedPlot(
            "by-layer", "Relative error of every layer's output, in both precisions.", departures.by_layer(found)
        ),
        NamedPlot(
            "histogram", "How many elements of the departing output differ by how much.", departures.histogram(found)
        ),
    ]
    return template("explanation.html").render(
        title=f"{candidate} against {reference}", found=found, pictures=pictures(drawn), made_by=__version__
    )


def write(found: Explanation, reference: str, candidate: str, file: Path, force: bool = False) -> None:
    """Write the page to a file; raises `OutputError` and `StorageError`."""
    content = page(found, reference, candidate).encode()
    with replacing(file, force) as temporary:
        temporary.write_bytes(content)
