"""What a repository on the Hugging Face Hub holds: the heads of its files, from the cache or the Hub; no weights."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.errors
from timm.models import parse_model_name

from tcnn.analysis.reading.model_info import ModelInfo, of_config, of_metadata
from tcnn.analysis.reading.rundirs import decoded, metadata
from tcnn.errors import RequestError
from tcnn.zoo.hub import offline_if_unreachable, quiet_hub
from tcnn.zoo.sources import download_errors

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def of_repository(name: str) -> ModelInfo:
    """What `hf-hub:ORG/NAME` is; raises `DownloadError`, and `RequestError` for one that is no model of timm's."""
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
    kept = huggingface_hub.try_to_load_from_cache(repository, WEIGHTS, revision=revision)
    if isinstance(kept, str):
        return metadata(Path(kept))
    try:
        head = huggingface_hub.HfApi().parse_safetensors_file_metadata(repository, WEIGHTS, revision=revision)
    except (huggingface_hub.errors.EntryNotFoundError, huggingface_hub.errors.SafetensorsParsingError):
        return {}
    return decoded(head.metadata)


def _file(repository: str, name: str, revision: str | None) -> str:
    return str(huggingface_hub.hf_hub_download(repository, name, revision=revision))
