"""Save in timm's hub layout: a directory with `model.safetensors`, `config.json` and a model card.

``timm.create_model("local-dir:DIR")`` and, after an upload, ``hf-hub:`` build the converted model from it once tcnn is
imported; so does `tcnn.load(DIR)`.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from safetensors.torch import save_file
from timm.models._hub import save_config_for_hf
from torch import nn

from tcnn.arguments import typed
from tcnn.checkpoints.checkpoint import EDITED, contents
from tcnn.checkpoints.edits import in_words
from tcnn.checkpoints.files import licence_of, record_kept
from tcnn.checkpoints.merging import MERGED
from tcnn.conversion.report import ConversionReport
from tcnn.errors import RequestError
from tcnn.files import path_of, replacing
from tcnn.formatting import share
from tcnn.models.checks import unwrapped
from tcnn.verification.report import VerificationReport


@typed()
def save_directory(
    model: nn.Module,
    path: str | Path,
    verification: VerificationReport | None = None,
    sections: Mapping[str, object] | None = None,
    force: bool = False,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """Save a timm model in hub layout, atomically; arguments as for `tcnn.save`.

    Raises what `save` raises, and `RequestError` for a model that timm would build as another.
    """
    path, model = path_of(path, "path"), unwrapped(model)
    refuse_without_layout(model)
    tensors, metadata = contents(model, verification, sections)
    if EDITED in metadata:
        raise RequestError(
            f"{path}: the model was changed by hand ({in_words(json.loads(metadata[EDITED]))}), and from a directory "
            "timm would build it as its name says: write one .safetensors file instead, and load it with source=MODEL"
        )
    if MERGED in metadata:
        raise RequestError(f"{path}: timm has no name for a merged model: write one .safetensors file instead")
    if model.conversion_report.folded:  # type: ignore[union-attr]
        raise RequestError(f"{path}: timm has no name for a folded model: write one .safetensors file instead")
    with replacing(path, force) as temporary:
        temporary.mkdir()
        save_file(tensors, temporary / "model.safetensors", metadata)
        names = json.loads(metadata.get("label_names", "null"))
        # At the top, too, where transformers looks for them.
        save_config_for_hf(
            _told(model, metadata), str(temporary / "config.json"), {"label_names": names} if names else None
        )
        (temporary / "README.md").write_text(model_card(model, verification, sections), encoding="utf-8")
        if check is not None:
            check(temporary)
    return path


def _told(model: nn.Module, metadata: Mapping[str, str]) -> nn.Module:
    """The model with the classes and the description of its file: its classifier may have been replaced by hand."""
    classes = json.loads(metadata["conversion"])["model_args"].get("num_classes", model.num_classes)
    if classes == model.num_classes:
        return model
    told = copy.copy(model)
    told.num_classes, told.pretrained_cfg = classes, json.loads(metadata["pretrained_cfg"])
    return told


def refuse_without_layout(model: nn.Module) -> None:
    """Raise `RequestError` for a model that timm's hub layout has no place for."""
    if not getattr(model, "pretrained_cfg", None):
        raise RequestError(
            f"{type(model).__name__} is no timm model: write one .safetensors file instead of a directory"
        )
    if not hasattr(model, "num_classes"):
        raise RequestError(
            f"{type(model).__name__} has no classes, as timm's hub layout expects: write one .safetensors file instead"
        )


TAGS = ["image-classification", "timm", "tcnn"]
OF_TCNNS = ["transformed-cnn", "gpsa"]


def model_card(
    model: nn.Module,
    verification: VerificationReport | None = None,
    sections: Mapping[str, Any] | None = None,
    *,
    place: str = "local-dir:PATH/TO/THIS/DIRECTORY",
    title: str | None = None,
    license: str | None = None,
    results: Sequence[EvalResult] = (),
    parts: Sequence[str] = (),
) -> str:
    """The model card (README) in the form of the Hub: a YAML head, what the model was made from, how to load it.

    Of a T-CNN it also tells the conversion and how that was verified.

    Args:
        sections: of its file; `weights` says what they were before the conversion.
        place: what timm loads the model from.
        title: default the architecture.
        license: default that of the source weights.
        results: for the head, as the Hub shows them.
        parts: further sections, in Markdown.
    """
    report = model.conversion_report
    assert isinstance(report, ConversionReport)  # noqa: S101 - what writes the file has checked it
    cfg: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    training, earlier = _trainings(model, sections or {})
    weights = (sections or {}).get("weights") or training.get("weights")
    base = report.base_model if weights == "pretrained" else report.base_model.partition(".")[0]
    title = title or str(cfg.get("architecture", report.base_model))
    head = ModelCardData(
        library_name="timm",
        pipeline_tag="image-classification",
        license=license or licence_of(cfg, weights, earlier.get("weights")) or "unknown",
        base_model=cfg.get("hf_hub_id") if weights == "pretrained" else None,
        tags=[*TAGS, *(OF_TCNNS if report.layers else ())],
        model_name=title if results else None,
        eval_results=list(results) or None,
    )
    known = licence_of(cfg, weights, earlier.get("weights")) is not None and not license
    licence = " The licence is that of the source weights." if known else ""
    if not report.layers:
        said = f"timm's `{base}`, trained by tcnn as it is: nothing in it is converted.\nWeights before training: "
        began = weights if training else earlier.get("weights") or weights
        made = [f"# {title}", f"{said}{began or 'unknown'}.{licence}", *parts, _loading(place, "import timm")]
        return f"---\n{head}\n---\n\n" + "\n\n".join(made) + "\n"
    times = "×".join
    layers = "\n".join(
        f"| `{layer.name}` | {layer.source} {times(map(str, layer.kernel_size))} | {layer.heads} | {layer.head_dim} |"
        for layer in report.layers
    )
    made = [
        f"# {title}",
        f"A Transformed CNN (d'Ascoli et al. 2021) made from timm's `{base}` by tcnn: {len(report.layers)} "
        f"convolutions\nof stage `{report.stage}` are gated positional self-attention layers that "
        f"{_claim(report, bool(training))}.\n"
        f"Weights before conversion: {weights or 'unknown'}.{licence}",
        *parts,
        _loading(place, "import tcnn, timm", "  # or tcnn.load of this directory")
        + """

Without tcnn `model.safetensors` is a plain safetensors file of named tensors; `tcnn fold` turns heads that still are
convolutions back into them, up to a plain timm checkpoint, and `tcnn export` writes ONNX.""",
        f"""## Conversion

Parameters: {report.parameters_before:,} before, {report.parameters_after:,} after.

| layer | was | heads | head width |
|---|---|---|---|
{layers}""",
        "## Verification",
        _verified(verification, bool(training)),
    ]
    return f"---\n{head}\n---\n\n" + "\n\n".join(made) + "\n"


def _trainings(model: nn.Module, sections: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The records of the run that trained a model, and of that of its CNN: those of its file's sections, or its own."""
    training = sections.get("training") or {}
    earlier = (sections.get("source") or {}).get("training") or {}
    own = record_kept(model)
    if own is None or training or earlier:
        return training, earlier
    return (own, {}) if own.get("config", {}).get("convert", True) else ({}, own)


def _loading(place: str, imports: str, also: str = "") -> str:
    return f"""## Loading

```python
{imports}

model = timm.create_model("{place}", pretrained=True){also}
```"""


def _claim(report: ConversionReport, trained: bool) -> str:
    if report.config.temperature > 0.05:
        return f"start from its filters at temperature {report.config.temperature:g}"
    at = {"keep": "", "remove": " at stride 1", "dilate": " at stride 1, dilated"}[report.config.stride]
    return (
        f"computed the same function{at} before they were fine-tuned" if trained else f"compute the same function{at}"
    )


def _verified(verification: VerificationReport | None, trained: bool) -> str:
    if verification is None:
        return "Fine-tuned, so no longer equal to its source." if trained else "Not verified."
    rows = "\n".join(
        f"| {result.dtype} | {result.logits.relative:.1e} | {result.logits.max_abs:.1e} | {result.top1_agreement:.0%} |"
        for result in verification.passes
    )
    run = verification.as_run
    if run is not None:
        row = f"{run.logits.relative:.1e} | {run.logits.max_abs:.1e} | {run.top1_agreement:.0%}"
        rows += f"\n| {run.dtype}, as run, compared with its attention | {row} |"
    drift = verification.drift
    far = (
        f"the same weights differ from the source by {share(drift.logits.relative)}"
        if drift.note is None
        else drift.note
    )
    return f"""| dtype | relative error | largest error | top-1 agreement |
|---|---|---|---|
{rows}

At τ = 1, where fine-tuning may take it, {far}."""
