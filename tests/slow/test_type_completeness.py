"""Types of the public interface are complete, as pyright counts: what an editor shows to those who import tcnn."""

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

PYRIGHT = "pyright@1.1.414"


@pytest.mark.skipif(
    shutil.which("npm") is None, reason="NOT TESTED: complete types, for lack of npm, which has pyright"
)
@pytest.mark.parametrize(("package", "least"), [("tcnn", 0.95), ("tcnn_jobs.client", 1.0)])
def test_types_are_complete(package: str, least: float, tmp_path: Path) -> None:
    """Of this environment from a folder elsewhere, so that the installation, editable or not, is what pyright finds."""
    done = subprocess.run(
        ["npm", "exec", "--yes", "--", PYRIGHT, "--verifytypes", package, "--ignoreexternal", "--outputjson"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        pytest.skip(f"NOT TESTED: complete types, pyright cannot be had ({done.stderr[-200:]})")
    found = json.loads(done.stdout)["typeCompleteness"]
    known = found["exportedSymbolCounts"]
    assert sum(known.values()) > 40, "pyright has found the package"
    incomplete = [
        f"{one['name']}: {one['diagnostics'][0]['message'].splitlines()[0]}"
        for one in found["symbols"]
        if one["isExported"] and not one["isTypeKnown"] and one["diagnostics"]
    ]
    assert found["completenessScore"] >= least, "\n".join(incomplete)
