"""What a file, a run or a model's name is, in one record: read from heads of files and the catalogue, without torch.

Of a repository on the Hub, too, heads are asked for, from the cache or the Hub. Only what timm's train.py wrote is
loaded, for its head says nothing.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcnn.analysis.reading.model_info import ModelInfo, Trained, of_config, of_file, of_metadata, of_name
from tcnn.analysis.reading.rundirs import decoded, metadata
from tcnn.checkpoints.files import checkpoint_file, unfinished
from tcnn.errors import RequestError
from tcnn.zoo.catalogue import is_weights_file

if TYPE_CHECKING:
    from tcnn.zoo.weights import WeightsFile

HUB = ("hf-hub:", "hf_hub:")
WEIGHTS, CONFIG = "model.safetensors", "config.json"
"""Files of a repository."""


def info(name: str) -> ModelInfo:
    """What a checkpoint, a run's directory, a hub-layout directory, a file of timm's, a repository or a timm name is.

    Raises: `RequestError` for a file that is none of ours, `UnknownModelError` for a name that nothing has,
    `DownloadError` for a repository that cannot be reached.
    """
    path = Path(name.removeprefix("local-dir:"))
    if is_weights_file(path):
        return of_weights(name, path)
    if name.startswith(HUB):
        return of_repository(name)
    file = checkpoint_file(path)
    if file is not None:
        return of_file(name, file)
    if path.suffix == ".safetensors" or path.is_dir():
        raise RequestError(
            unfinished(path)
            or f"{name}: expected a checkpoint or a run, found {'none in it' if path.is_dir() else 'nothing'}"
        )
    return of_name(name)


def of_repository(name: str) -> ModelInfo:
    """What `hf-hub:ORG/NAME` is; raises `DownloadError`, and `RequestError` for one that is no model of timm's."""
    from timm.models import parse_model_name

    from tcnn.hugging_face import download_errors, offline_if_unreachable, quiet_hub

    identifier = str(parse_model_name(name)[1])
    repository, _, revision = identifier.partition("@")
    with download_errors(name), offline_if_unreachable(), quiet_hub():
        told = _metadata(repository, revision or None)
        if told.get("conversion"):
            return of_metadata(name, told)
        config = json.loads(Path(_file(repository, CONFIG, revision or None)).read_text(encoding="utf-8"))
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), str):
        raise RequestError(f"{name}: a repository that is no model of timm's: its {CONFIG} names no architecture")
    return of_config(name, config)


def _metadata(repository: str, revision: str | None) -> dict[str, Any]:
    """The metadata of the weights, from the cache if they are there; empty where they are of another kind."""
    import huggingface_hub
    import huggingface_hub.errors

    kept = huggingface_hub.try_to_load_from_cache(repository, WEIGHTS, revision=revision)
    if isinstance(kept, str):
        return metadata(Path(kept))
    try:
        head = huggingface_hub.HfApi().parse_safetensors_file_metadata(repository, WEIGHTS, revision=revision)
    except (huggingface_hub.errors.EntryNotFoundError, huggingface_hub.errors.SafetensorsParsingError):
        return {}
    return decoded(head.metadata)


def _file(repository: str, name: str, revision: str | None) -> str:
    import huggingface_hub

    return str(huggingface_hub.hf_hub_download(repository, name, revision=revision))


def of_weights(name: str, path: Path) -> ModelInfo:
    """What a file that names its model has; raises what opening it raises, with what to name it for."""
    from tcnn.checkpoints.checkpoint import contents
    from tcnn.checkpoints.opening import open_model
    from tcnn.conversion.report import ConversionReport
    from tcnn.models.running import gpsa_layers
    from tcnn.models.trace import parameter_count
    from tcnn.zoo import weights as weights_files

    model = open_model(str(path))
    content = weights_files.read(path)
    own = {
        "file": str(path), "bytes": path.stat().st_size, "weights": "file", "parameters": parameter_count(model),
        "classes": getattr(model, "num_classes", None), "training": _trained(content),
        "input_size": tuple((getattr(model, "pretrained_cfg", None) or {}).get("input_size") or ()) or None,
    }  # fmt: skip
    if not isinstance(getattr(model, "conversion_report", None), ConversionReport):
        found = of_name(str(content.architecture))
        return found.model_copy(update={**own, "name": name, "parameters_before": None, "flops": None})
    temperatures = [
        float(tau)
        for layer in gpsa_layers(model).values()
        for tau in (layer.gate_temperature, layer.position_temperature)
    ]
    told = decoded(contents(model)[1])
    return of_metadata(name, told, **own, temperature=(min(temperatures), max(temperatures)), tcnn_version=None)


def _trained(content: "WeightsFile") -> Trained | None:
    """What timm's train.py has noted; its metric is top-1 in percent unless it was told another."""
    options = content.arguments
    if content.epoch is None:
        return None
    percent = content.metric if options.get("eval_metric", "top1") == "top1" else None
    data = options.get("data_dir") or options.get("data")
    top1 = None if percent is None else percent / 100
    return Trained(data=None if data is None else str(data), epoch=content.epoch + 1, top1=top1)
