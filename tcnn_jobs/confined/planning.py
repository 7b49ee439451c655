"""A run planned by computation alone, in a confined process (`process`): for the worker's device, not this host's."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tcnn.errors import RequestError, TcnnError
from tcnn.processes import loading
from tcnn_jobs.errors import for_requests

if TYPE_CHECKING:
    from tcnn.data.image_set import ImageSet


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
        from tcnn.planning import machine
        from tcnn.planning.plan import Target, plan

    device = torch.device(given["device"])
    free = machine.free_bytes(device) if given["free"] == -1 else given["free"]
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

    def open(self, index: int) -> NoReturn:
        raise RequestError(self.filename(index))

    def stamp(self, index: int) -> None:
        return None

    def filename(self, index: int) -> str:
        return f"image {index}, which a plan has no need to open"


def _images(given: dict[str, Any] | str | None) -> "ImageSet | str | None":
    return given if given is None or isinstance(given, str) else described(given["classes"], given["images"])


def described(classes: Sequence[str], images: int) -> "ImageSet":
    """So many images, evenly of all classes."""
    import torch

    from tcnn.data.image_set import ImageSet

    return ImageSet(_Unopened(), classes, torch.arange(images) % max(1, len(classes)))
