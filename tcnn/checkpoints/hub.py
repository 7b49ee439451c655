"""Save in timm's hub layout: a directory with `model.safetensors`, `config.json` and a model card.

``timm.create_model("local-dir:DIR")`` and, after an upload, ``hf-hub:`` build the converted model from it once tcnn is
imported; so does `tcnn.load(DIR)`.
"""

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file
from timm.models._hub import save_config_for_hf
from torch import nn

from tcnn.checkpoints.card import model_card
from tcnn.checkpoints.checkpoint import contents
from tcnn.errors import RequestError
from tcnn.files import replacing
from tcnn.models.wrapped import unwrapped
from tcnn.verification.report import VerificationReport


def save_directory(
    model: nn.Module,
    path: str | Path,
    verification: VerificationReport | None = None,
    sections: dict[str, object] | None = None,
    force: bool = False,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """Save a timm model in hub layout, atomically; arguments as for `tcnn.save`."""
    path, model = Path(path), unwrapped(model)
    if not getattr(model, "pretrained_cfg", None):
        raise RequestError(
            f"{type(model).__name__} is no timm model: write one .safetensors file instead of a directory"
        )
    tensors, metadata = contents(model, verification, sections)
    if model.conversion_report.folded:  # type: ignore[union-attr]
        raise RequestError(f"{path}: timm has no name for a folded model: write one .safetensors file instead")
    with replacing(path, force) as temporary:
        temporary.mkdir()
        save_file(tensors, temporary / "model.safetensors", metadata)
        names = (getattr(model, "pretrained_cfg", None) or {}).get("label_names")
        # At the top, too, where transformers looks for them.
        save_config_for_hf(model, str(temporary / "config.json"), {"label_names": names} if names else None)
        (temporary / "README.md").write_text(model_card(model, verification, sections), encoding="utf-8")
        if check is not None:
            check(temporary)
    return path
