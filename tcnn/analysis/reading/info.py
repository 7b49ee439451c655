"""What a file, a run or a model's name is, in one record: read from heads of files and the catalogue, without torch.

Only what timm's train.py wrote is loaded, for its head says nothing; of a repository on the Hub heads are asked for.
"""

from pathlib import Path

from tcnn.analysis.reading.model_info import ModelInfo, of_file, of_name
from tcnn.checkpoints.places import checkpoint_file
from tcnn.errors import RequestError
from tcnn.zoo.names import is_weights_file

HUB = ("hf-hub:", "hf_hub:")


def info(name: str) -> ModelInfo:
    """What a checkpoint, a run's directory, a hub-layout directory, a file of timm's, a repository or a timm name is.

    Raises: `RequestError` for a file that is none of ours, `UnknownModelError` for a name that nothing has,
    `DownloadError` for a repository that cannot be reached.
    """
    path = Path(name.removeprefix("local-dir:"))
    if is_weights_file(path):
        from tcnn.analysis.reading.loaded import of_weights

        return of_weights(name, path)
    if name.startswith(HUB):
        from tcnn.analysis.reading.repository import of_repository

        return of_repository(name)
    file = checkpoint_file(path)
    if file is not None:
        return of_file(name, file)
    if path.suffix == ".safetensors" or path.is_dir():
        raise RequestError(
            f"{name}: expected a checkpoint or a run, found {'none in it' if path.is_dir() else 'nothing'}"
        )
    return of_name(name)
