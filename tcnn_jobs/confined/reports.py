"""Reports about jobs, made in a confined process (`process`): a run's plan before it, a job's page after it.

A plan is computed alone, for the worker's device and not this host's; a page reads what strangers have uploaded.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tcnn.errors import RequestError, TcnnError
from tcnn.processes import loading
from tcnn_jobs.errors import for_requests

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from tcnn.data.image_set import ImageSet
import os
import shutil
import tempfile

from tcnn.files import link, write_atomically


def compute(asked: str, file: str = "") -> dict[str, Any]:
    """The plan of a run, as `tcnn plan --seconds 0` has it.

    Args:
        asked: JSON: `model` (a timm name, and what the model is called), `config`, `baseline`, `home`, `device` (`cpu`
            or `cuda`) and its `free` memory in bytes, -1 for this host's; `data` and `val`, a name or path, or of an
            upload its `classes` and the number of its `images`.
        file: the checkpoint, where the model is one.

    Raises: what `tcnn.plan` raises, in the words of a request.
    """
    given = json.loads(asked)
    with loading():
        import torch

        from tcnn.config import FinetuneConfig
        from tcnn.planning import memory
        from tcnn.planning.plan import Target, plan

    device = torch.device(given["device"])
    free = memory.free_bytes(device) if given["free"] == -1 else given["free"]
    data = _images(given["data"])
    assert data is not None  # noqa: S101 - a request names one
    try:
        made = plan(
            Path(file) if file else given["model"], data, _images(given["val"]),
            FinetuneConfig.model_validate(given["config"]), given["home"], seconds=0, baseline=given["baseline"],
            target=Target(device, free),
        )  # fmt: skip
    except TcnnError as error:
        raise RequestError(for_requests(str(error)).replace(file or "\0", given["model"])) from error
    made = made.model_copy(
        update={
            "model": given["model"],
            "notes": tuple(map(for_requests, made.notes)),
            "problems": tuple(map(for_requests, made.problems)),
        }
    )
    return made.model_dump(mode="json")


class _Unopened:
    """Images of which only the number is known: a plan without steps opens none."""

    def __init__(self, images: int) -> None:
        self.images = images

    def open(self, index: int) -> NoReturn:
        raise RequestError(self.filename(index))

    def stamp(self, index: int) -> None:
        return None

    def filename(self, index: int) -> str:
        return f"image {index}, which a plan has no need to open"

    def keys(self) -> None:
        return None

    def identities(self) -> "NDArray[numpy.int64]":
        import numpy

        return numpy.arange(self.images)

    def sizes(self) -> None:
        return None


def _images(given: dict[str, Any] | str | None) -> "ImageSet | str | None":
    return given if given is None or isinstance(given, str) else described(given["classes"], given["images"])


def described(classes: Sequence[str], images: int) -> "ImageSet":
    """So many images, evenly of all classes."""
    import torch

    from tcnn.data.image_set import ImageSet

    return ImageSet(_Unopened(images), classes, torch.arange(images) % max(1, len(classes)))


def write(attempt: str, name: str, out: str, room: str, names: str, images: str = "") -> dict[str, Any]:
    """Write the page about an attempt's directory to `out`, under the job's name, with pictures of up to all images.

    `names` are those of the ids in it, as JSON.

    The attempt is linked into `room`, so that the page says the job's name and nothing of where it lies on this server.
    Raises what `tcnn.report` raises.
    """
    from tcnn.analysis.pages.report import report

    with tempfile.TemporaryDirectory(dir=room) as folder:
        shutil.copytree(attempt, Path(folder) / name, copy_function=link, ignore=shutil.ignore_patterns("resume"))
        os.chdir(folder)
        page = str(report(name, images=images or None, names=json.loads(names)))
        page = page.replace(folder, "").replace(images or folder, "the data set")
        page = page.replace(" (`tcnn report --images DIR`)", "")  # no advice for a command line that nobody has here
        write_atomically(Path(out), page, force=True)
        os.chdir(room)
    return {"bytes": len(page)}
