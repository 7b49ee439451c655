"""Save in timm's hub layout: a directory with `model.safetensors`, `config.json` and a model card.

``timm.create_model("local-dir:DIR")`` and, after an upload, ``hf-hub:`` build the converted model from it once tcnn is
imported; so does `tcnn.load(DIR)`.
"""

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file
from timm.models._hub import save_config_for_hf
from torch import nn

from tcnn.checkpoints.checkpoint import contents
from tcnn.conversion.report import ConversionReport
from tcnn.errors import RequestError
from tcnn.files import replacing
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
    path = Path(path)
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
        save_config_for_hf(model, str(temporary / "config.json"))
        (temporary / "README.md").write_text(model_card(model, verification, sections), encoding="utf-8")
        if check is not None:
            check(temporary)
    return path


def model_card(
    model: nn.Module, verification: VerificationReport | None = None, sections: dict[str, object] | None = None
) -> str:
    """Model card (README) of a converted model: YAML head, description, usage, verification."""
    report = model.conversion_report
    assert isinstance(report, ConversionReport)  # noqa: S101 - `contents` has checked it
    cfg = getattr(model, "pretrained_cfg", None) or {}
    weights = (sections or {}).get("weights")
    from_hub = weights == "pretrained" and cfg.get("hf_hub_id")
    base = report.base_model if weights == "pretrained" else report.base_model.partition(".")[0]
    head = [
        "---",
        "library_name: timm",
        "pipeline_tag: image-classification",
        f"license: {cfg.get('license') or 'unknown'}",
        *([f"base_model: {cfg['hf_hub_id']}"] if from_hub else []),
        "tags: [image-classification, timm, tcnn, transformed-cnn, gpsa]",
        "---",
    ]
    times = "×".join
    layers = "\n".join(
        f"| `{layer.name}` | {layer.source} {times(map(str, layer.kernel_size))} | {layer.heads} | {layer.head_dim} |"
        for layer in report.layers
    )
    return (
        "\n".join(head)
        + f"""

# {cfg.get("architecture", report.base_model)}

A Transformed CNN (d'Ascoli et al. 2021) made from timm's `{base}` by tcnn: {len(report.layers)} convolutions of
stage `{report.stage}` are gated positional self-attention layers that {_claim(report)}.
Weights before conversion: {weights or "unknown"}. The licence is that of the source weights.

```python
import tcnn, timm

model = timm.create_model("local-dir:PATH/TO/THIS/DIRECTORY", pretrained=True)  # or tcnn.load(...)
```

Parameters: {report.parameters_before:,} before, {report.parameters_after:,} after.

| layer | was | heads | head width |
|---|---|---|---|
{layers}

{_verified(verification)}
"""
    )


def _claim(report: ConversionReport) -> str:
    if report.config.temperature > 0.05:
        return f"start from its filters at temperature {report.config.temperature:g}"
    at = {"keep": "", "remove": " at stride 1", "dilate": " at stride 1, dilated"}
    return "compute the same function" + at[report.config.stride]


def _verified(verification: VerificationReport | None) -> str:
    if verification is None:
        return "Not verified."
    rows = "\n".join(
        f"| {result.dtype} | {result.logits.relative:.1e} | {result.logits.max_abs:.1e} | {result.top1_agreement:.0%} |"
        for result in verification.passes
    )
    run = verification.as_run
    if run is not None:
        row = f"{run.logits.relative:.1e} | {run.logits.max_abs:.1e} | {run.top1_agreement:.0%}"
        rows += f"\n| {run.dtype}, as it is run beside its attention | {row} |"
    drift = verification.drift.logits.relative
    return f"""| dtype | relative error | largest error | top-1 agreement |
|---|---|---|---|
{rows}

At τ = 1, where fine-tuning takes it, the same weights differ from the source by {drift:.1%}."""
