"""Verify a checkpoint file against its source, which is found by the file's metadata."""

from pathlib import Path
from typing import Any

from tcnn.checkpoints import checkpoint
from tcnn.config import VerificationConfig
from tcnn.conversion.report import refuse_folded
from tcnn.conversion.surgery import without_stride
from tcnn.errors import RequestError
from tcnn.verification.images import load_images
from tcnn.verification.report import VerificationReport
from tcnn.verification.verify import verify
from tcnn.workflows.pipeline import Progress, Source, open_source, usable_device


def recheck(
    path: Path,
    settings: VerificationConfig,
    against: str | None = None,
    weights: Path | None = None,
    images: Path | None = None,
    device: str = "cpu",
    progress: Progress = lambda step: None,
) -> VerificationReport:
    """Compare a checkpoint with the source recorded in it, or with another one.

    Args:
        against: a timm name (with its pretrained weights), `local-dir:PATH` or `hf-hub:ORG/NAME`.
        weights: the source's weights file; needed again when the checkpoint was made from a file.
        images: a directory of images to compare on.

    Raises: `CheckpointError`, `RequestError`, `DownloadError`; a difference is in the report, not raised.
    """
    place = usable_device(device)
    progress("reading")
    content = checkpoint.read(path)
    refuse_folded(content.conversion, str(path), "verify")
    model = checkpoint.assemble(content, name=str(path)).to(place)
    recorded = Source.model_validate(content.section("source")) if "source" in content.metadata else None
    unknown = against is None and weights is None
    if unknown and "training" in content.metadata:
        raise RequestError(
            f"{path}: has been trained since it was converted, so it equals no source any more; to compare it with a "
            "model all the same, name that with --against MODEL"
        )
    if recorded is None and unknown:
        raise RequestError(
            f"{path}: saved from Python, which records no source; name it with --against MODEL, or give --weights FILE"
        )
    if recorded is not None and recorded.weights == "file" and unknown:
        raise RequestError(f"{path}: made from a weights file; give it again with --weights FILE, or --against MODEL")
    random = recorded is not None and recorded.weights == "random" and unknown
    progress("building the source")
    args: Any = {"num_classes": recorded.num_classes} if recorded else {} if against else content.conversion.model_args
    source, origin = open_source(
        against or (recorded.name if recorded else content.conversion.base_model), not random, weights,
        recorded.seed if recorded else 0, place, **args,
    )  # fmt: skip
    if against is None and recorded is not None and origin.digest != recorded.digest:
        raise RequestError(
            f"{path}: the {'random weights drawn' if random else 'weights found'} for {recorded.name} are not those it "
            "was converted from; name the right ones with --weights or --against"
        )
    config = content.conversion.config
    reference = source if config.stride == "keep" else without_stride(source, config)
    batch = None if images is None else load_images(images, reference).to(place)
    return verify(
        reference, model, settings, batch, randomise=random, progress=lambda step: progress(f"verifying {step}")
    )
