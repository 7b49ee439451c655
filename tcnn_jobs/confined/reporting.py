"""A job's report, made in a confined process (`tcnn_jobs.confined.process`): it reads what strangers have uploaded."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tcnn.files import replacing


def write(attempt: str, name: str, out: str, room: str, names: str, images: str = "") -> dict[str, Any]:
    """Write the page about an attempt's directory to `out`, under the job's name, with pictures of up to all images.

    `names` are those of the ids in it, as JSON.

    The attempt is linked into `room`, so that the page says the job's name and nothing of where it lies on this server.
    Raises what `tcnn.report` raises.
    """
    from tcnn.analysis.pages.report import report

    with tempfile.TemporaryDirectory(dir=room) as folder:
        shutil.copytree(attempt, Path(folder) / name, copy_function=os.link, ignore=shutil.ignore_patterns("resume"))
        os.chdir(folder)
        page = report(name, images=images or None, names=json.loads(names))
        page = page.replace(folder, "").replace(images or folder, "the data set")
        page = page.replace(" (`tcnn report --images DIR`)", "")  # no advice for a command line that nobody has here
        with replacing(Path(out), force=True) as temporary:
            temporary.write_text(page, encoding="utf-8")
        os.chdir(room)
    return {"bytes": len(page)}
