"""What a request names: ids and names as they are given, local files uploaded first, as what each of them is."""

import hashlib
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tcnn.formatting import some

if TYPE_CHECKING:
    from tcnn_jobs.client.client import Client
    from tcnn_jobs.client.connection import Json

OF_TORCH = (".pth", ".pt", ".bin", ".ckpt", ".pth.tar")
"""What files of `torch.save` are called; the last is timm's, and `.tar` alone an archive of images."""


class FileKind(StrEnum):
    """Kinds of uploads."""

    CHECKPOINT = "checkpoint"
    WEIGHTS = "weights"
    DATASET = "dataset"


def kind_of(path: Path) -> FileKind:
    """What a local file is to a server, by its name, and of a safetensors file by its header.

    What is damaged the server says.
    """
    if path.suffix == ".safetensors":
        return FileKind.CHECKPOINT if _is_ours(path) else FileKind.WEIGHTS
    return FileKind.WEIGHTS if path.is_file() and path.name.lower().endswith(OF_TORCH) else FileKind.DATASET


def dataset_of(client: "Client", given: str, key: str | None) -> str:
    """What the server calls a data set; a local folder or archive is uploaded."""
    path = Path(given)
    if re.fullmatch(r"ds_[0-9a-z]+", given) or not (path.is_dir() or path.is_file()):
        return given
    uploaded = client.upload_dataset(path, _own_key(key, path))
    id = _announced(path, uploaded)
    if note := left_out(path, uploaded):
        typer.echo(f"{path}: {note}", err=True)
    return id


def left_out(path: Path, uploaded: "Json") -> str | None:
    """A note of files that are in no data set of the server: of a folder they are not sent, of an archive not kept."""
    if path.is_dir():
        from tcnn.data.sources.folder import in_classes, walk
        from tcnn.data.sources.names import left_out_note

        return left_out_note(in_classes(walk(path).others, None))
    count = uploaded.get("left_out")  # which a server of an older version does not say
    return f"left out: {some(count, 'file')} without the extension of an image" if count else None


def weights_of(client: "Client", given: str | None, key: str | None) -> dict[str, str]:
    """What the server calls a CNN's weights; a local file is uploaded, and of another id the server says what it is."""
    if given is None or re.fullmatch(r"(?:wts|ckpt|job|ds)_[0-9a-z]+", given):
        return {} if given is None else {"weights": given}
    return {"weights": _announced(Path(given), client.upload_weights(given, _own_key(key, Path(given))))}


def model_of(client: "Client", given: str, key: str | None) -> dict[str, str]:
    """What a model is to the server; a local file is uploaded, of a run's directory the best checkpoint."""
    for prefix, name in (("job_", "job"), ("ckpt_", "checkpoint")):
        if given.startswith(prefix):
            return {name: given}
    path = in_run(Path(given))
    if path.name.endswith(".safetensors"):
        return {"checkpoint": _announced(path, client.upload_checkpoint(path, _own_key(key, path)))}
    return {"model": given}


def training_of(
    client: "Client",
    data: str,
    val: str | None,
    preset: str,
    config: "Json",
    baseline: bool,
    num_workers: int,
    key: str | None,
) -> "Json":
    """A request's part that says how to fine-tune; local data is uploaded."""
    found: Json = {"dataset": dataset_of(client, data, key), "preset": preset, "config": config}
    if baseline:
        found["baseline"] = True
    if num_workers > 1:
        found["num_workers"] = num_workers
    return found if val is None else {**found, "val": dataset_of(client, val, key)}


def in_run(path: Path) -> Path:
    """The best checkpoint of a run's directory, as commands on this machine take it; any other path as it is."""
    from tcnn.checkpoints.files import checkpoint_file

    return path if not path.is_dir() else checkpoint_file(path) or path


def _announced(path: Path, upload: "Json") -> str:
    """The id of an upload, printed at once: should the job be refused, it need not be sent again."""
    typer.echo(f"{path}: uploaded as {upload['id']}", err=True)
    return str(upload["id"])


def _own_key(key: str | None, path: Path) -> str | None:
    """With a key for the job its uploads need keys too: new ids would make it another request."""
    return key and f"{key[:190]}.{hashlib.sha256(str(path).encode()).hexdigest()}"


def _is_ours(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as handle:
            return "conversion" in (handle.metadata() or {})
    except (SafetensorError, OSError):
        return True  # is it there, and whole? whoever takes checkpoints tells
