"""docs/notebook.ipynb: its cells run in a real kernel, and what it shows tells nothing of the machine."""

import base64
import json
import os
from pathlib import Path

import pytest
from pages import ROOT

PAGE = ROOT / "docs" / "notebook.ipynb"


def test_what_it_shows() -> None:
    notebook = json.loads(PAGE.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run from top to bottom"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    text = json.dumps(notebook, ensure_ascii=False)
    assert "\\u001b" not in text
    assert str(Path.home()) not in text
    assert "/tmp" not in text
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 2
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
    assert PAGE.stat().st_size < 600_000


@pytest.mark.slow
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.drawing.notebook import executed

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    ran, kept = executed(tmp_path), json.loads(PAGE.read_text(encoding="utf-8"))
    assert [cell.source for cell in ran.cells] == ["".join(cell["source"]) for cell in kept["cells"]]
    for now, before in zip(ran.cells, kept["cells"], strict=True):
        if before["cell_type"] == "code":
            kinds = [set(output.get("data", {})) for output in now.outputs]
            assert kinds == [set(output.get("data", {})) for output in before["outputs"]], now.source
    assert (tmp_path / "tcnn" / "best.safetensors").is_file()
