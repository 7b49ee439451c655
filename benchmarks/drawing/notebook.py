"""Run the notebook of the documentation, docs/notebook.ipynb, anew and keep what it shows.

    python -m benchmarks.drawing.notebook [DIRECTORY]

It needs no network. The cells are those of the file: edit them there. It runs in a temporary directory by default.
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

PAGE = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
SECONDS = 600
"""The most that one cell may take."""
NOT_OURS = "TqdmWarning"
"""Said on stderr where a library that tcnn imports misses widgets of the notebook."""


def executed(directory: Path) -> nbformat.NotebookNode:
    """The notebook after its cells have run in the directory; raises `CellExecutionError` if one fails."""
    notebook = nbformat.read(PAGE, as_version=4)
    NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(directory)}},
        record_timing=False,
    ).execute()  # fmt: skip
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if NOT_OURS not in output.get("text", "")]
    notebook.metadata = nbformat.from_dict({"language_info": {"name": "python"}})
    return notebook


def main(directory: str | None = None) -> None:
    """Write the notebook with what it showed."""
    with tempfile.TemporaryDirectory() as temporary:
        notebook = executed(Path(directory or temporary))
    nbformat.write(notebook, PAGE)


if __name__ == "__main__":
    main(*sys.argv[1:])
